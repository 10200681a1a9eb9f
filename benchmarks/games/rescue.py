"""A collapse and its rescue: updates far too large on the bandit, under `monitor`, StarPO-S alone, and `auto`.

python -m benchmarks.games.rescue --folder runs/rescue --picture docs/img/rescue.png

One cold start per seed; then four updates a step at a hundred times the learning rate of games-bandit. Prints the table
of docs/stability.md; a command that was killed goes on when it is given again.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.credit.report import Runs
from benchmarks.harness.jobs import Job, failures
from benchmarks.harness.pool import run_jobs
from benchmarks.harness.progress import make_progress
from benchmarks.harness.results import estimate_mean, markdown_table
from benchmarks.harness.training import read_column, training_job
from turnwise.config import Config, load_config
from turnwise.runs import Panel, Series, draw_panels

MODES = ("monitor", "always", "auto")
STEPS = 40
LAST = 10
"""Steps at the end whose mean success is compared."""
_TITLE = "Updates far too large on the Bandit"
_TOO_LARGE = ("learner.optimizer.lr=1e-2", "learner.minibatches=4")
_SMALL = (
    "credit.estimator=rloo",  # which learns the better arm, where GRPO's own bias would lead into the trap
    "rollout.groups_per_step=12",
    "engine.slots=96",
    "sft.demonstrations=1200",
    "evaluate.tasks=64",
    "checkpoint.every=2",
)


def make_config(mode: str | None, seed: int) -> Config:
    """The run of a mode; None: its cold start."""
    chosen = ("steps=0",) if mode is None else (f"steps={STEPS}", f"stability.mode={mode}", *_TOO_LARGE)
    return load_config("games-bandit", [*_SMALL, *chosen, f"seed={seed}"])


def plan(seeds: Sequence[int]) -> dict[str, list[Job]]:
    """By mode: a job for each seed, after the cold start that they share."""
    jobs: dict[str, list[Job]] = {mode: [] for mode in MODES}
    for seed in seeds:
        cold = training_job(f"cold-start/seed-{seed}", make_config(None, seed))
        for mode in MODES:
            jobs[mode].append(training_job(f"{mode}/seed-{seed}", make_config(mode, seed), after=cold))
    return jobs


def make_table(runs: Mapping[str, Runs]) -> str:
    header = [
        "mode",
        "first step",
        f"last {LAST} steps",
        "less monitor's",
        "by seed",
        "rollbacks",
        "learning rate at the end",
    ]
    rows = []
    ends = {
        mode: [_mean(read_column(run, "train", "rollout/success")[-LAST:]) for run in each]
        for mode, each in runs.items()
    }
    for mode, each in runs.items():
        first = estimate_mean([read_column(run, "train", "rollout/success")[0] for run in each])
        gained = [one - two for one, two in zip(ends[mode], ends["monitor"], strict=True)]
        rows.append(
            [
                mode,
                first.show(2),
                estimate_mean(ends[mode]).show(2),
                "" if mode == "monitor" else estimate_mean(gained).show(2, signed=True),
                ", ".join(f"{end:.2f}" for end in ends[mode]),
                ", ".join(f"{read_column(run, 'train', 'stability/rollbacks')[-1]:.0f}" for run in each),
                ", ".join(f"{read_column(run, 'train', 'optim/lr')[-1]:g}" for run in each),
            ]
        )
    return markdown_table(header, rows)


def make_panels(runs: Mapping[str, Runs]) -> list[Panel]:
    """One for each seed: the success of every step's samples, by mode."""
    panels = []
    for seed, of_seed in enumerate(zip(*runs.values(), strict=True)):
        curves = [read_column(run, "train", "rollout/success") for run in of_seed]
        steps = [float(step) for step in range(1, len(curves[0]) + 1)]
        series = [Series(name=mode, x=steps, y=curve) for mode, curve in zip(runs, curves, strict=True)]
        panels.append(Panel(title=f"seed {seed}", series=series))
    return panels


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.games.rescue", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--folder", type=Path, required=True, help="where the runs go")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="(default: 3)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="where the curves go, as a PNG")
    options = parser.parse_args(arguments)
    jobs = plan(range(options.seeds))
    with make_progress(Console(stderr=True)) as progress:
        every = [job for each in jobs.values() for job in each]
        outcomes = run_jobs(every, options.folder, processes=1, progress=progress)
    for failed in failures(outcomes):
        parser.exit(1, f"{failed.job.name}: {failed.failure}\n")
    results = {outcome.job.name: outcome.result for outcome in outcomes if outcome.result is not None}
    runs = {mode: [results[job.name] for job in each] for mode, each in jobs.items()}
    sys.stdout.write(f"{make_table(runs)}\n")
    if options.picture is not None:
        draw_panels(options.picture, make_panels(runs), title=_TITLE, x_label="step", y_label="success")
    return 0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    sys.exit(main())
