"""One recipe on every engine and cluster: does it learn the same?

    python -m benchmarks.scale.ways local asynchronous ray fsdp2 --seeds 2
    python -m benchmarks.scale.ways vllm                     # in an environment with vLLM

One cold start of `encyclopedia-grpo`, and from its model one run of `turnwise train` for each way and seed; ways differ
in nothing else. Prints held-out success and writes benchmarks/results/scale-ways.json, of all runs that are
finished under `--run`. Runs that are finished are not repeated: the command goes on where it ended.
"""

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.machine import describe_machine

RECIPE = "encyclopedia-grpo"
RESULTS = Path("benchmarks/results/scale-ways.json")
RANKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a run is started, and what of the recipe it changes."""

    title: str = ""
    settings: tuple[str, ...] = ()
    torchrun: bool = False

    def command(self, arguments: Sequence[str]) -> list[str]:
        """For a shell of the same environment: `[python, -m, turnwise, train, ...]`."""
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", "-m", "--"]
        return [sys.executable, "-m", *(launcher if self.torchrun else []), "turnwise", "train", *arguments]

    @property
    def shown(self) -> str:
        """As a reader would type it."""
        launcher = f"torchrun --standalone --nproc-per-node {RANKS} -m -- " if self.torchrun else ""
        return " ".join([f"{launcher}turnwise train {RECIPE}", *self.settings])


WAYS: Mapping[str, Way] = {
    "local": Way(title="local"),
    "asynchronous": Way(title="asynchronous, staleness 1", settings=("rollout.staleness=1",)),
    "ray": Way(title="Ray, two rollout workers", settings=("cluster.kind=ray",)),
    "fsdp2": Way(title="FSDP2, two ranks", settings=("learner.shard=true",), torchrun=True),
    "vllm": Way(title="vLLM", settings=("engine.kind=vllm",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """`Learnt(held_out=[[4, .723, .665, .774], ...], sampled=[.359, ...])`."""

    held_out: list[list[float]]
    """Of each evaluation: its step, success, and the 95 % interval."""
    sampled: list[float]
    """The share of each step's episodes that succeeded."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.ways", description=__doc__)
    parser.add_argument("ways", nargs="*", choices=[*WAYS, []], help=f"of {', '.join(WAYS)}; none: only print")
    parser.add_argument("--run", type=Path, default=Path("runs/bench/ways"), help="where the runs are kept")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args(arguments)
    cold = options.run / "cold"
    for seed, name in itertools.product(range(options.seeds), options.ways):
        train(Way(), cold, [RECIPE, "steps=0"])
        model = cold.resolve() / "checkpoints" / "step-000000" / "model"
        start = [RECIPE, f"seed={seed}", "sft=null", f"model.name={model}"]
        train(WAYS[name], options.run / f"seed-{seed}" / name, [*start, *WAYS[name].settings])
    measured = {
        f"{name}/seed-{folder.name.removeprefix('seed-')}": measure(folder / name)
        for name in WAYS
        for folder in sorted(options.run.glob("seed-*"))
        if is_finished(folder / name)
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    about = {"command": "python -m benchmarks.scale.ways", **describe_machine()}
    RESULTS.write_text(
        json.dumps({"about": about} | {name: asdict(found) for name, found in measured.items()}, indent=1) + "\n"
    )
    sys.stdout.write(table(measured))
    return 0


def is_finished(folder: Path) -> bool:
    return (folder / "report.html").exists()


def train(way: Way, folder: Path, arguments: Sequence[str]) -> None:
    if not is_finished(folder):
        command = way.command([*arguments, "--run", str(folder), "--resume=auto"])
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure(folder: Path) -> Learnt:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    names = ("step", "evaluate/success", "evaluate/success_low", "evaluate/success_high")
    return Learnt(
        held_out=[[round(one[name], 4) for name in names] for one in records if one["stage"] == "evaluate"],
        sampled=[round(one["rollout/success"], 4) for one in records if one["stage"] == "train"],
    )


def table(measured: Mapping[str, Learnt]) -> str:
    """The first evaluation, any in between, and the last."""
    lines = [
        "| | command | seed | held-out success before | in between | at the end | sampled, step by step |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in measured.items():
        way, _, seed = name.partition("/seed-")
        before, *middle, last = (
            f"{_short(success)} [{_short(low)}, {_short(high)}]" for _, success, low, high in found.held_out
        )
        sampled = " ".join(_short(share, 2) for share in found.sampled)
        shown = f"| {WAYS[way].title} | `{WAYS[way].shown}` | {seed} | {before} | {', '.join(middle)} | {last} |"
        lines.append(f"{shown} {sampled} |")
    return "\n".join(lines) + "\n"


def _short(share: float, digits: int = 3) -> str:
    """`.996`"""
    shown = f"{share:.{digits}f}"
    return shown.removeprefix("0") if share < 1 else shown


if __name__ == "__main__":
    sys.exit(main())
