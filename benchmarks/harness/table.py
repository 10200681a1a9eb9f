"""A benchmark whose results are a table over a user's recipe, row by row and in pieces.

Invariant: a row is evaluated by the jobs `evaluation/ROW/seed-N`, which come after all that the row needs. A row that
is missing costs no other.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.harness.benchmark import Benchmark, Scope
from benchmarks.harness.jobs import Job, JobResult
from benchmarks.harness.training import read_unfinished
from turnwise.config import Config
from turnwise.errors import ConfigError
from turnwise.spelling import suggest

LEAN = ("evaluate.untrained=false", "checkpoint.keep=1")
"""Of every row's training: a job of its own evaluates it, and only its last model is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBenchmark(Benchmark):
    """`TableBenchmark(name="starpo", first_seed=30, ...)`: rows may be missing, but in a quick run."""

    first_seed: int
    takes_rows: bool = True

    def seeds_of(self, scope: Scope) -> range:
        return range(self.first_seed, self.first_seed + scope.seeds)

    def default_processes(self, scope: Scope) -> int:
        """One on a GPU, whose memory has to hold all of them."""
        return 1 if torch.cuda.is_available() and not scope.quick else Benchmark.default_processes(self, scope)

    def choose(self, scope: Scope, jobs: Sequence[Job]) -> Sequence[Job]:
        """The evaluations of the rows, each of which comes after the row's training; all of a seed first."""
        evaluations = {job.name: job for job in jobs if job.name.startswith("evaluation/")}
        known = list(dict.fromkeys(name.split("/")[1] for name in evaluations))
        for key in scope.rows:
            if key not in known:
                raise ConfigError(f"--rows: there is no '{key}'{suggest(key, known)}; the rows are {', '.join(known)}")
        chosen = [evaluations[f"evaluation/{key}/seed-{seed}"] for seed in self.seeds_of(scope) for key in scope.rows]
        return chosen or jobs

    def publishes_unfinished(self, scope: Scope) -> bool:
        return not scope.quick

    def read_unfinished(self, job: Job, root: Path) -> JobResult | None:
        return read_unfinished(job, root)


def name_file(words: str) -> str:
    """Words as a part of a file's name: `my-recipe` of `my recipe`."""
    return re.sub(r"[^\w.-]+", "-", words)


def refuse_overrides(scope: Scope, *keys: str) -> None:
    """Refuses settings of the command that its rows differ in, and the seed."""
    for key in (override.partition("=")[0].strip() for override in scope.overrides):
        if key == "seed":
            raise ConfigError("seed: is different for each run of a row: give --seeds")
        if key in keys:
            raise ConfigError(f"{key}: is what rows differ in: choose among them with --rows")


def refuse_hold_out(base: Config, name: str) -> None:
    """For a benchmark whose rows are evaluated on the split: it would be looked at where it is to be left alone."""
    if base.evaluate.hold_out:
        raise ConfigError(
            f"evaluate.hold_out: bench {name} evaluates its rows on the split '{base.evaluate.split}', and on no tasks "
            "that are held out; bench ablation does: leave it, or set evaluate.hold_out=0"
        )


def override_model(scope: Scope) -> tuple[str, ...]:
    """The setting that `--model` gives all rows, if it was given; JSON is YAML too, whatever a path may hold."""
    return () if scope.model is None else (f"model.name={json.dumps(scope.model)}",)


def name_model(name: str) -> str:
    """A hub's id as it is; of a folder or file of the user's, its own name alone."""
    path = Path(name).expanduser()
    return path.name if path.exists() else name
