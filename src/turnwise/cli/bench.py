"""`turnwise bench`: runs a benchmark of the checkout; the wheel has none."""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from turnwise.cli.arguments import add_overrides, print_line
from turnwise.errors import ConfigError

HELP = "run a benchmark and write its page and results"
EXPECTS = "one benchmark"
_OWN_CHECKOUT = Path(__file__).parents[3]
"""The folder that holds src/ and benchmarks/, where the package itself is used from a checkout."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="which one, such as credit")
    add_overrides(parser, "a.b=c", "with --recipe: settings that replace the recipe's")
    parser.add_argument("--quick", action="store_true", help="minutes instead of hours, with fewer seeds")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds per result (default: the benchmark's own number)")
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="processes at once (default: one per core; a table over a recipe on a GPU: 1)",
    )
    parser.add_argument("--minutes", type=float, metavar="N", help="stop after so many; the same command goes on later")
    parser.add_argument(
        "--recipe", help="for ablation, multihop, starpo: what all rows share; for speed: measure a run by it"
    )
    parser.add_argument(
        "--change",
        action="append",
        default=[],
        metavar="A.B=C",
        help="for ablation: a row, the recipe with this setting, or with several in quotes; once for each row",
    )
    parser.add_argument(
        "--cold-change",
        action="append",
        default=[],
        metavar="A.B=C",
        help="likewise, for what acts on the cold start: the row has one of its own",
    )
    parser.add_argument(
        "--rows", type=_split, default=(), metavar="A,B", help="for ablation, multihop, starpo: rows to run now"
    )
    parser.add_argument(
        "--model", metavar="NAME", help="for ablation, multihop, starpo, speed: a folder or, but for speed, a hub id"
    )
    parser.add_argument("--data", metavar="FOLDER", help="for multihop: corpus, train, dev; for speed: a recipe's data")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="for speed (default: cpu; of a recipe, a GPU if any)")
    parser.add_argument("--peer", metavar="PYTHON", help="for speed: the python of an environment that has trl or vllm")
    parser.add_argument("--tokenizer", metavar="FOLDER", help="for speed: one of 49,152 tokens (default: a stand-in)")
    parser.add_argument("--out", metavar="DIR", help="where jobs run and are kept (default: runs/bench/NAME)")


def run(options: argparse.Namespace) -> int:
    import_benchmarks()
    from benchmarks.harness.benchmark import find_benchmark, run_benchmark

    try:
        return run_benchmark(
            find_benchmark(options.name),
            Console(),
            quick=options.quick,
            seeds=options.seeds,
            processes=options.jobs,
            out=options.out,
            minutes=options.minutes,
            rows=options.rows,
            overrides=options.overrides,
            changes=options.change,
            cold_changes=options.cold_change,
            recipe=options.recipe,
            model=options.model,
            data=options.data,
            device=options.device,
            peer=options.peer,
            tokenizer=options.tokenizer,
        )
    except KeyboardInterrupt:
        print_line("stopped; the same command continues with the jobs that are left")
        return 130


def _split(names: str) -> tuple[str, ...]:
    """`grpo,rloo` is two rows."""
    return tuple(name.strip() for name in names.split(",") if name.strip())


def import_benchmarks() -> None:
    """Makes the benchmarks of a checkout importable: the package's own, or else that of the working folder."""
    checkouts = [folder for folder in (_OWN_CHECKOUT, Path.cwd()) if (folder / "benchmarks" / "harness").is_dir()]
    if not checkouts:
        raise ConfigError(
            "bench: the benchmarks come with a checkout of turnwise and not with the installed package: clone the "
            "repository and run this there"
        )
    if str(checkouts[0]) not in sys.path:
        sys.path.insert(0, str(checkouts[0]))
