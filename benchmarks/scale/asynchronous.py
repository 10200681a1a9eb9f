"""Steps per second and success with and without training while sampling, side by side on slow tools:

    python -m benchmarks.scale.asynchronous              # the encyclopedia, from one cold start
    python -m benchmarks.scale.asynchronous --vowels     # a game so small that waiting is most of it

Runs of `turnwise train` in turn, one for each staleness and seed, that differ in nothing else.
Steps per second are those between the first and the last step, with no evaluation or checkpoint in between; success is
on 256 held-out questions after the last. Runs that are finished are not repeated: the command goes on where it ended.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

RECIPE = "encyclopedia-grpo"
_HERE = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> int:
    options = _make_parser().parse_args(arguments)
    recipe, settings = str(_HERE / "vowels.yaml"), {"env.name": f"{_HERE / 'slow.py'}:SlowVowels"}
    if not options.vowels:
        recipe, settings = RECIPE, {"env.name": f"{_HERE / 'slow.py'}:SlowEncyclopedia", "sft": "null"}
        settings["model.name"] = str(cold_start(options.run, options.overrides))
    measured: dict[int, list[dict[str, float]]] = {staleness: [] for staleness in options.staleness}
    for seed in range(options.seeds):
        for staleness in options.staleness:
            folder = options.run / f"staleness-{staleness}-seed-{seed}"
            settings |= {
                "env.args": f"{{seconds: {options.seconds:g}}}",
                "seed": str(seed),
                "steps": str(options.steps),
                "rollout.staleness": str(staleness),
                "rollout.groups_per_step": str(options.groups),
                "evaluate.every": "0",
                "checkpoint.every": str(options.steps),
            }
            train(folder, recipe, [*(f"{name}={value}" for name, value in settings.items()), *options.overrides])
            measured[staleness].append(measure(folder))
    sys.stdout.write(table(measured, options.steps))
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.asynchronous", description=__doc__)
    parser.add_argument("overrides", nargs="*", help="further settings of all runs: learner.optimizer.lr=1e-4")
    parser.add_argument("--vowels", action="store_true", help="train on a small game in place of the encyclopedia")
    parser.add_argument("--run", type=Path, default=Path("runs/bench/asynchronous"), help="where the runs are kept")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1], help="the values compared")
    parser.add_argument("--seconds", type=float, default=0.2, help="how long a search takes")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--groups", type=int, default=8, help="groups of 8 episodes per step")
    parser.add_argument("--seeds", type=int, default=1)
    return parser


def cold_start(run: Path, overrides: Sequence[str]) -> Path:
    """The model that all runs start from, trained once."""
    model = run / "cold" / "checkpoints" / "step-000000" / "model"
    if not model.is_dir():
        train(run / "cold", RECIPE, ["steps=0", *overrides])
    return model.resolve()


def train(folder: Path, recipe: str, overrides: Sequence[str]) -> None:
    if not (folder / "report.html").exists():
        command = [sys.executable, "-m", "turnwise", "train", recipe, *overrides, "--run", str(folder), "--resume=auto"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure(folder: Path) -> dict[str, float]:
    """`{"steps_per_second": 1.2, "before": .31, "after": .84, "tasks": 256.0, "tool_wait": .35, ...}`."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [record for record in records if record["stage"] == "train"]
    evaluations = [record for record in records if record["stage"] == "evaluate"]
    success = [record["evaluate/success"] for record in evaluations]
    seconds = trained[-1]["time"] - trained[0]["time"]
    wall = sum(record["ledger/wall_seconds"] for record in trained[1:])
    return {
        "steps_per_second": (len(trained) - 1) / seconds,
        "before": success[0],
        "after": success[-1],
        "tasks": float(evaluations[-1].get("evaluate/tasks", 256)),
        "tool_wait": sum(record.get("ledger/tool_wait_seconds", 0.0) for record in trained[1:]) / wall,
        "staleness": statistics.fmean(record.get("staleness/mean", 0.0) for record in trained),
        "dropped": sum(record.get("staleness/dropped_groups", 0.0) for record in trained),
    }


def table(measured: Mapping[int, Sequence[Mapping[str, float]]], steps: int) -> str:
    """Means over seeds, and the standard error of success over all held-out tasks."""
    lines = [
        f"| staleness | steps/s | against the first | idle for tools | success before | after {steps} steps |"
        " mean age of tokens | dropped groups |",
        "|---|---|---|---|---|---|---|---|",
    ]
    base = None
    for staleness, runs in measured.items():
        mean = {name: statistics.fmean(one[name] for one in runs) for name in runs[0]}
        base = base or mean["steps_per_second"]
        error = math.sqrt(mean["after"] * (1 - mean["after"]) / (mean["tasks"] * len(runs)))
        lines.append(
            f"| {staleness} | {mean['steps_per_second']:.2f} | {mean['steps_per_second'] / base:.2f} x |"
            f" {mean['tool_wait']:.0%} | {mean['before']:.3f} | {mean['after']:.3f} ± {error:.3f} |"
            f" {mean['staleness']:.2f} | {mean['dropped']:.0f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
