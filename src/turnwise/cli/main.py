"""The command line: `turnwise train | eval | report | play | check | demo | recipes | bench | serve-search`.

Invariant: a user's mistake ends in one line on standard error and exit code 2; a traceback is always a bug of ours.
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler

from turnwise import __version__
from turnwise.compute.process import configure_process
from turnwise.errors import ConfigError, TurnwiseError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    options = _parse(arguments)
    configure_process()
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=Console(stderr=True), show_path=False)],
    )
    try:
        code = options.command(options)
    except TurnwiseError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[red]error:[/] {_escape(str(error))}")
        return 2
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; a training run goes on from its last checkpoint with --resume")
        return 130
    assert isinstance(code, int)
    return code


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Overrides may stand anywhere; argparse alone takes no list of positionals that an option interrupts."""
    parser = _parser()
    options, late = parser.parse_known_args(arguments)
    if unknown := [argument for argument in late if argument.startswith("-")]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    options.overrides += late
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="turnwise", description="Train LLM agents over many turns.")
    parser.add_argument("--version", action="version", version=f"turnwise {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train an agent by a recipe")
    train.add_argument("recipe", help="a recipe of the package, such as encyclopedia-grpo, or a YAML file")
    train.add_argument("overrides", nargs="*", metavar="a.b=c", help="settings that replace the recipe's")
    train.add_argument("--run", metavar="DIR", help="where the run is written (default: runs/NAME-OF-RECIPE)")
    train.add_argument("--resume", action="store_true", help="go on from the run's last checkpoint")
    train.set_defaults(command=_train)

    evaluate = commands.add_parser("eval", help="evaluate a run, a checkpoint, any model, or one behind an API")
    evaluate.add_argument("what", help="the folder of a run or of one of its checkpoints, or a recipe")
    evaluate.add_argument("overrides", nargs="*", metavar="a.b=c", help="such as evaluate.tasks=1000")
    evaluate.add_argument("--model", metavar="NAME", help="a folder or a model on the hub, in place of the recipe's")
    evaluate.add_argument("--endpoint", metavar="URL", help="an OpenAI-compatible API whose model plays instead")
    evaluate.add_argument("--api-model", metavar="NAME", help="which of the endpoint's models")
    evaluate.add_argument("--key-env", metavar="VARIABLE", help="the environment variable with the endpoint's key")
    evaluate.add_argument(
        "--api", action="append", default=[], metavar="a=b", help="such as concurrency=4 or options.seed=null"
    )
    evaluate.add_argument("--save", metavar="FILE", help="write the trajectories behind the figures to a Parquet file")
    evaluate.add_argument("--answers", metavar="FILE", help="write the answers to each task, as JSON lines")
    evaluate.add_argument("--json", action="store_true", help="print the figures as JSON")
    evaluate.set_defaults(command=_evaluate)

    report = commands.add_parser("report", help="write a run's report.html, and show where its time went")
    report.add_argument("run", help="the folder of a run, whether it is finished or still going on")
    report.set_defaults(command=_report, overrides=[])

    play = commands.add_parser("play", help="play an environment yourself")
    play.add_argument("env", help="a built-in name, module:Class, file.py:Class, or a recipe")
    play.add_argument("overrides", nargs="*", metavar="a=b", help="arguments of the environment")
    play.add_argument("--task", type=int, default=0, metavar="N", help="which task of the split (default: 0)")
    play.add_argument("--split", default="train")
    play.add_argument("--episode-seed", type=int, default=0, metavar="SEED", help="the seed of the episode's own noise")
    play.set_defaults(command=_play)

    check = commands.add_parser("check", help="check an environment against the contract")
    check.add_argument("env", help="a built-in name, module:Class, file.py:Class, or a recipe")
    check.add_argument("overrides", nargs="*", metavar="a=b", help="arguments of the environment")
    check.add_argument("--episodes", type=int, default=3, metavar="N", help="tasks to check on (default: 3)")
    check.set_defaults(command=_check)

    demo = commands.add_parser("demo", help="train the embedded agent and compare it with its baselines")
    demo.add_argument("overrides", nargs="*", metavar="a.b=c", help="such as seed=1")
    demo.add_argument("--recipe", default="encyclopedia-grpo", metavar="FILE")
    demo.add_argument("--run", default="runs/demo", metavar="DIR", help="an earlier demo there is kept aside")
    demo.set_defaults(command=_demo)

    recipes = commands.add_parser("recipes", help="list the recipes that come with the package")
    recipes.set_defaults(command=_recipes, overrides=[])

    bench = commands.add_parser("bench", help="run a benchmark and write its page and figures")
    bench.add_argument("name", help="which one, such as credit")
    bench.add_argument("--quick", action="store_true", help="a look in minutes, with fewer seeds")
    bench.add_argument("--seeds", type=int, metavar="N", help="seeds per figure (default: the benchmark's own number)")
    bench.add_argument("--jobs", type=int, metavar="N", help="processes at once (default: one per core)")
    bench.add_argument("--model", metavar="NAME", help="for multihop and speed: a folder or, for multihop, a hub's id")
    bench.add_argument("--data", metavar="FOLDER", help="for multihop with a model: corpus, train and dev files")
    bench.add_argument("--device", choices=["cpu", "cuda"], help="for speed: what is measured (default: cpu)")
    bench.add_argument("--peer", metavar="PYTHON", help="for speed: the python of an environment that has trl or vllm")
    bench.add_argument("--tokenizer", metavar="FOLDER", help="for speed: one of 49,152 tokens (default: a stand-in)")
    bench.add_argument("--out", metavar="DIR", help="where jobs work and are kept (default: runs/bench/NAME)")
    bench.set_defaults(command=_bench, overrides=[])

    serve = commands.add_parser("serve-search", help="serve a corpus to search agents over HTTP")
    serve.add_argument("corpus", help="a .jsonl, .jsonl.gz or .parquet file, or a folder of .txt and .md files")
    serve.add_argument("--index", choices=["bm25", "dense", "hybrid"], default="bm25", help="(default: bm25)")
    serve.add_argument("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1, this machine alone)")
    serve.add_argument("--port", type=int, default=8000, metavar="N", help="(default: 8000; 0 takes any free one)")
    serve.add_argument("--topk", type=int, default=3, metavar="N", help="hits if a request does not say (default: 3)")
    serve.add_argument("--encoder", metavar="NAME", help="for dense and hybrid: a folder or a model on the hub")
    serve.add_argument("--query-prefix", default="", metavar="TEXT", help="such as 'query: ' for e5 models")
    serve.add_argument("--passage-prefix", default="", metavar="TEXT", help="such as 'passage: ' for e5 models")
    serve.add_argument("--cache", default="auto", metavar="DIR", help="where indexes are kept; off: nowhere")
    serve.set_defaults(command=_serve_search, overrides=[])
    return parser


# The commands import what they need when they run: torch and transformers take seconds, and `--help` should not.


def _train(options: argparse.Namespace) -> int:
    from turnwise.ledger import Ledger

    ledger = Ledger()
    with ledger.spend("prepare"):
        from turnwise.config import load_config
        from turnwise.learner.group import LearnerGroup
        from turnwise.runs import RunDirectory
        from turnwise.training.launch import launch
        from turnwise.training.trainer import run_training

    run = options.run or Path("runs") / Path(options.recipe).stem

    def train(learners: LearnerGroup) -> RunDirectory:
        with ledger.spend("prepare"):
            config = load_config(options.recipe, options.overrides)
        return run_training(config, run, resume=options.resume, ledger=ledger, learners=learners)

    directory = launch(train)
    if directory is None:  # a process that followed; rank 0 says where the run is
        return 0
    _say(f"The report is in {directory.path / 'report.html'}")
    _say(f"The run is in {directory.path}; evaluate it with: turnwise eval {directory.path}")
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from turnwise.agents import ApiAgent, Endpoint
    from turnwise.evaluation.report import show_evaluation, to_json
    from turnwise.runs import make_display
    from turnwise.training.evaluate import load_target, read_endpoint, run_evaluation

    endpoint = read_endpoint(options.endpoint, options.api_model, key_env=options.key_env, settings=options.api)
    if endpoint and options.model:
        raise ConfigError("--model and --endpoint both say who plays: give one of them")
    config = load_target(options.what, options.overrides, model=options.model, local=endpoint is None)
    agent = ApiAgent(endpoint=Endpoint(endpoint), decoding=config.evaluate) if endpoint else None
    with make_display(Console(stderr=options.json)) as display:
        result = run_evaluation(config, display, agent=agent, save=options.save, answers=options.answers)
    name, asked = endpoint.model if endpoint else config.model.name, config.evaluate
    if options.json:
        about = {"model": name, "env": config.env.name, "split": asked.split, "temperature": asked.temperature}
        _say(to_json(result, {**about, "samples_per_task": asked.samples_per_task, "seed": config.seed}))
    else:
        show_evaluation(Console(), name, result)
    return 0


def _report(options: argparse.Namespace) -> int:
    from turnwise.runs import RunDirectory
    from turnwise.runs.ledger.totals import read_totals, show_totals
    from turnwise.runs.report.writer import read_view, write_report

    if options.overrides:
        raise ConfigError(f"report: what is '{options.overrides[0]}'? It takes the folder of one run")
    run = RunDirectory.open(options.run)
    path = write_report(run)
    show_totals(Console(), read_totals(read_view(run).records))
    _say(f"The report is in {path}")
    return 0


def _play(options: argparse.Namespace) -> int:
    from turnwise.rollout.play import play_in_terminal

    play_in_terminal(
        _find_env(options), task_index=options.task, split=options.split, episode_seed=options.episode_seed
    )
    return 0


def _check(options: argparse.Namespace) -> int:
    from turnwise.envs import check_env

    env = _find_env(options)
    findings = asyncio.run(check_env(env, episodes=options.episodes))
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        console.print(f"[red]✗[/] {_escape(finding)}")
    if not findings:
        console.print(f"[green]✓[/] {type(env).__name__} keeps the contract")
    return 1 if findings else 0


def _demo(options: argparse.Namespace) -> int:
    from turnwise.cli.demo import run_demo
    from turnwise.config import load_config

    run_demo(load_config(options.recipe, options.overrides), Path(options.run), Console())
    return 0


def _recipes(options: argparse.Namespace) -> int:
    from rich.table import Table

    from turnwise.recipes import describe_recipe, packaged_recipes

    if options.overrides:
        raise ConfigError(f"recipes: unexpected argument '{options.overrides[0]}'")
    table = Table("recipe", "what it trains", box=None)
    for name, path in packaged_recipes().items():
        table.add_row(name, _escape(describe_recipe(path)))
    Console().print(table)
    return 0


def _bench(options: argparse.Namespace) -> int:
    _find_benchmarks()
    from benchmarks.harness.benchmark import find_benchmark, run_benchmark

    if options.overrides:
        raise ConfigError(f"bench: what is '{options.overrides[0]}'? A benchmark's settings are in its recipe")
    try:
        return run_benchmark(
            find_benchmark(options.name),
            Console(),
            quick=options.quick,
            seeds=options.seeds,
            processes=options.jobs,
            out=options.out,
            model=options.model,
            data=options.data,
            device=options.device,
            peer=options.peer,
            tokenizer=options.tokenizer,
        )
    except KeyboardInterrupt:
        _say("stopped; the same command goes on with the jobs that are left")
        return 130


def _find_benchmarks() -> None:
    """Makes the benchmarks of a checkout importable; they are not part of an installed package."""
    checkout = Path(__file__).parents[3]
    if not (checkout / "benchmarks" / "harness").is_dir():
        raise ConfigError("bench: benchmarks come with a checkout of turnwise, not with the package: run it in a clone")
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))


def _serve_search(options: argparse.Namespace) -> int:
    from turnwise.tools.search.retrieval import check_k
    from turnwise.tools.search.server import SearchServer, serve_search
    from turnwise.tools.search.tool import open_index

    if options.overrides:
        raise ConfigError(f"serve-search: what is '{options.overrides[0]}'? It serves one corpus, set by --options")
    check_k(options.topk)
    encoder = None
    if options.encoder or options.query_prefix or options.passage_prefix:
        prefixes = {"query_prefix": options.query_prefix, "passage_prefix": options.passage_prefix}
        encoder = {"encoder": options.encoder or "", **prefixes}
    index = open_index(options.corpus, options.index, cache=options.cache, encoder=encoder)
    server = SearchServer(index, host=options.host, port=options.port, topk=options.topk)
    serve_search(server, lambda url: _say(f"{len(index.passages)} passages at {url}/retrieve; Ctrl-C ends it"))
    return 0


def _find_env(options: argparse.Namespace):  # type: ignore[no-untyped-def]  # noqa: ANN202 (an Env, imported late)
    from turnwise.envs.registry import EnvSettings, make_env
    from turnwise.recipes import read_recipe
    from turnwise.settings import parse_settings

    data: dict[str, object] = {"name": options.env}
    if options.env.endswith((".yaml", ".yml")):
        section = read_recipe(options.env).get("env")
        data = dict(section) if isinstance(section, dict) else data
    overrides = [f"args.{override}" for override in options.overrides]
    return make_env(parse_settings(EnvSettings, data, overrides=overrides, source=options.env))


def _say(text: str) -> None:
    """One line, however long: a command that is shown must be one that can be copied."""
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
