"""Prints the figures of runs on pretrained models as JSON.

python -m benchmarks.real curve runs/sft runs/rl --steps 29:40
python -m benchmarks.real answers BEFORE.parquet AFTER.parquet --written written.jsonl.gz --train train.jsonl.gz
python -m benchmarks.real habits BEFORE.parquet AFTER.parquet
python -m benchmarks.real conclusions BEFORE.parquet AFTER.parquet
python -m benchmarks.real reach data/multihop
python -m benchmarks.real ceilings data/multihop/dev.jsonl.gz data/multihop/corpus.jsonl.gz --passages 3 --chars 800
python -m benchmarks.real frozen-lake runs/lake/trajectories/evaluate-000000.parquet
python -m benchmarks.real sokoban runs/sokoban/trajectories/evaluate-000000.parquet
python -m benchmarks.real alfworld runs/alfworld/trajectories/evaluate-000000.parquet
python -m benchmarks.real plot runs/auto runs/monitor --to curves.svg
python -m benchmarks.real host runs/rl --own-time
python -m benchmarks.real.profile figures.txt -- train gpu-multihop-smollm2 --run runs/rl
"""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

_OF_FILES = {
    "habits": ("answers", "measure_habits"),
    "conclusions": ("conclusions", "measure_conclusions"),
    "frozen-lake": ("frozen_lake", "check_episodes"),
    "sokoban": ("sokoban", "check_levels"),
    "alfworld": ("alfworld", "measure_rooms"),
}
"""Commands that read episodes and nothing else: the module and the function of each."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _make_parser().parse_args(arguments)
    json.dump(_measure(options), sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    curve = commands.add_parser("curve", help="curve, cold start and seconds of one experiment")
    curve.add_argument("runs", nargs="+", type=Path, help="its run directories, in order")
    curve.add_argument("--steps", type=_range, metavar="FIRST:LAST", help="the steps to take medians of")
    answers = commands.add_parser("answers", help="two evaluations of the same questions, compared")
    answers.add_argument("before", type=Path, help="a run's trajectories/evaluate-*.parquet")
    answers.add_argument("after", type=Path)
    answers.add_argument("--written", nargs="*", type=Path, default=[], help="files of written training questions")
    answers.add_argument("--take", type=int, metavar="N", help="only the first N of the last written file")
    answers.add_argument("--train", nargs="*", type=Path, default=[], help="files of real training questions")
    habits = commands.add_parser("habits", help="episodes that repeat a query or end without an answer")
    habits.add_argument("files", nargs="+", type=Path, help="a run's trajectories/evaluate-*.parquet")
    conclusions = commands.add_parser("conclusions", help="comparisons answered as the reply's own years have it")
    conclusions.add_argument("files", nargs="+", type=Path, help="as those of habits")
    reach = commands.add_parser("reach", help="held-out questions that the writer would use if it did not avoid them")
    reach.add_argument("folder", type=Path, help="a folder with a corpus and questions")
    reach.add_argument("--count", type=int, default=30000, metavar="N", help="questions to write (default: 30000)")
    reach.add_argument("--bridges", type=int, default=0, metavar="N", help="of type bridge, besides (default: 0)")
    reach.add_argument("--contrasts", type=int, default=0, metavar="N", help="of type contrast, besides (default: 0)")
    ceilings = commands.add_parser("ceilings", help="share of questions whose supporting passages search can reach")
    ceilings.add_argument("questions", type=Path)
    ceilings.add_argument("corpus", type=Path)
    ceilings.add_argument("--passages", type=int, default=3, metavar="N", help="that a search shows (default: 3)")
    ceilings.add_argument("--chars", type=int, default=800, metavar="N", help="of each, at most (default: 800)")
    ceilings.add_argument("--index", choices=("bm25", "dense", "hybrid"), default="bm25", help="(default: bm25)")
    ceilings.add_argument("--encoder", metavar="NAME", help="of a dense or hybrid index; pooled by the mean")
    ceilings.add_argument("--bm25", action="append", default=[], metavar="a=b", help="such as title_weight=3 or b=0.4")
    lake = commands.add_parser("frozen-lake", help="how true thoughts are and how good steps")
    lake.add_argument("files", nargs="+", type=Path, help="a run's trajectories/evaluate-*.parquet or train-*.parquet")
    plot = commands.add_parser("plot", help="the curves of several runs as an SVG")
    plot.add_argument("runs", nargs="+", type=Path, help="run directories; each is named by its folder")
    plot.add_argument("--to", type=Path, required=True, metavar="FILE", help="where the SVG goes")
    sokoban = commands.add_parser("sokoban", help="how true thoughts are, and success by the length of a solution")
    sokoban.add_argument("files", nargs="+", type=Path, help="as frozen-lake's")
    rooms = commands.add_parser("alfworld", help="success by kind of goal, and how far episodes come")
    rooms.add_argument("files", nargs="+", type=Path, help="as frozen-lake's")
    host = commands.add_parser("host", help="seconds of the host in a training step, its episodes played again")
    host.add_argument("run", type=Path, help="a run directory with trajectories/train-*.parquet")
    host.add_argument("--tokenizer", type=Path, help="a model's folder (default: the run's last checkpoint)")
    host.add_argument("--rounds", type=int, default=1, metavar="N", help="times to play each step (default: 1)")
    host.add_argument("--own-time", action="store_true", help="count the main thread's time on a core, not the clock's")
    return parser


def _measure(options: argparse.Namespace) -> dict[str, object]:
    if options.command == "curve":
        from benchmarks.real.curve import read_records, summarise_run

        return summarise_run([read_records(run) for run in options.runs], options.steps)
    if options.command in _OF_FILES:
        module, function = _OF_FILES[options.command]
        return dict(getattr(import_module(f"benchmarks.real.{module}"), function)(*options.files))
    if options.command == "plot":
        from benchmarks.real.plot import draw_runs

        options.to.write_text(draw_runs(options.runs), encoding="utf-8")
        return {"written": str(options.to)}
    if options.command == "host":
        from benchmarks.real.host import measure_host

        return measure_host(options.run, options.tokenizer, rounds=options.rounds, own_time=options.own_time)
    if options.command == "ceilings":
        from benchmarks.real.ceilings import measure_ceilings

        return measure_ceilings(
            options.questions,
            options.corpus,
            passages=options.passages,
            passage_chars=options.chars,
            index=options.index,
            encoder=options.encoder,
            bm25=options.bm25,
        )
    if options.command == "reach":
        from benchmarks.real.reach import measure_reach

        return measure_reach(options.folder, options.count, options.bridges, options.contrasts)
    from benchmarks.real.answers import compare_answers, measure_overlap, read_answers, read_supporting

    answers = read_answers(options.before, options.after)
    found = compare_answers(answers)
    if options.written:
        files = [read_supporting(file) for file in options.written]
        files[-1] = files[-1][: options.take]
        written = [ids for file in files for ids in file]
        real = [ids for file in options.train for ids in read_supporting(file)]
        found["overlap"] = measure_overlap(answers, written, real)
    return found


def _range(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last) + 1)


if __name__ == "__main__":
    sys.exit(main())
