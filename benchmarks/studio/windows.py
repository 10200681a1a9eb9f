"""What a page costs a run, from windows of one run in which the page was open and closed in turn.

Invariant: a step counts for a window only if it began and ended within it, and each window is compared with its
neighbour alone, so that neither a run that grows slower nor a machine that grows busier is taken for the page's cost.
"""

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from turnwise.training.callbacks import Callback


class Stopwatch(Callback):
    """Writes the clock and the CPU time of the training process after each step."""

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([time.monotonic(), time.process_time()]) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of training, by a clock that all processes of the machine share."""

    began: float
    ended: float
    cpu: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A time in which the page was open, or closed, all the time; CPU seconds beside it."""

    is_open: bool
    began: float
    ended: float
    server: float = 0.0
    browser: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How much more with the page than without: a share, and its 95 % interval over pairs of windows."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.2%}, 95 % interval {self.low:+.2%} to {self.high:+.2%}"


def read_steps(file: Path) -> list[Step]:
    ends = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]
    return [
        Step(began=before[0], ended=after[0], cpu=after[1] - before[1]) for before, after in itertools.pairwise(ends)
    ]


def mean_in(window: Window, steps: Sequence[Step], of: Callable[[Step], float]) -> float:
    """Of the steps within the window."""
    within = [of(step) for step in steps if step.began >= window.began and step.ended <= window.ended]
    if not within:
        raise SystemExit(f"no step of training fits into {window.ended - window.began:.0f} s: ask for longer windows")
    return float(np.mean(within))


def compare(pairs: Sequence[tuple[Window, Window]], steps: Sequence[Step], of: Callable[[Step], float]) -> Change:
    """The mean over pairs of log ratios, open over closed; the interval by a bootstrap over pairs."""
    ratios = np.array([_log_ratio(pair, steps, of) for pair in pairs])  # [pairs]
    drawn = np.random.default_rng(0).integers(len(ratios), size=(10_000, len(ratios)))
    low, high = np.expm1(np.percentile(ratios[drawn].mean(axis=1), [2.5, 97.5]))
    return Change(mean=float(np.expm1(ratios.mean())), low=float(low), high=float(high))


def _log_ratio(pair: tuple[Window, Window], steps: Sequence[Step], of: Callable[[Step], float]) -> float:
    closed, opened = sorted(pair, key=lambda window: window.is_open)
    assert opened.is_open
    assert not closed.is_open
    return float(np.log(mean_in(opened, steps, of) / mean_in(closed, steps, of)))
