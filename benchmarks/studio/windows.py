"""What a page costs a run, from windows of one run in which the page was closed and open in turn.

The estimator, and why. A virtual machine's noise is slow and has a heavy tail: the same steps take a tenth longer for
seconds or minutes. So windows are short and come in blocks, closed open open closed: the contrast within a block knows
neither the level nor a trend. Within a window it is the mean over steps: only some of them coincide with a request of
the page, which a median would not see. Over blocks it is the mean without the lowest and the highest fifth: a hiccup
of the machine is in some blocks, the page's cost in all. The interval is a bootstrap over blocks, of one run or more.

The cost is what training computes more for a step, and all that the server computes meanwhile, as a share of training's
CPU: what an open page takes from a machine that has no core to spare. A server without a page counts as cost, too.
Where one page's cost is lost in the noise, that of ten is not. A tenth of it is too little for one alone, since pages
of a run share some of the server's work: compare the server's share with one page and with ten.

Invariant: a step counts for a window only if it began and ended within it, and windows are compared within their block
alone.
"""

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from turnwise.training.callbacks import Callback

ORDER: Final = (False, True, True, False)
"""Whether the page is open, in the windows of a block."""
_TRIMMED: Final = 0.2
_DRAWS: Final = 10_000
_BAR: Final = 0.01
_FEWEST: Final = 12
"""Blocks below which the bootstrap's interval is too narrow to decide anything."""


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
    """A time in which the page was open, or closed, all the time: means over its steps, and CPU beside them."""

    is_open: bool
    steps: int
    cpu: float
    """CPU seconds of a step."""
    seconds: float
    """Clock seconds of a step."""
    server: float
    """CPU seconds of the server, in a second."""
    page: float
    """The same of what shows the page."""


Block: TypeAlias = tuple[Window, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How much more with the page than without: a share, and its 95 % interval over blocks."""

    mean: float
    low: float
    high: float
    blocks: int

    def __str__(self) -> str:
        return f"{self.mean:+.2%}, 95 % interval {self.low:+.2%} to {self.high:+.2%}"

    def divide(self, pages: int) -> "Change":
        """The part of one page, of so many."""
        return replace(self, mean=self.mean / pages, low=self.low / pages, high=self.high / pages)

    @property
    def verdict(self) -> str:
        if self.blocks < _FEWEST:
            return f"undecided: {self.blocks} blocks are too few for an interval; measure {_FEWEST}, or --join runs"
        if self.high < _BAR:
            return f"below {_BAR:.0%}"
        return (
            f"not below {_BAR:.0%}" if self.low >= _BAR else f"undecided at {_BAR:.0%}: measure longer, or --join runs"
        )


def read_steps(file: Path) -> list[Step]:
    ends = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]
    return [
        Step(began=before[0], ended=after[0], cpu=after[1] - before[1]) for before, after in itertools.pairwise(ends)
    ]


def make_window(
    steps: Sequence[Step], began: float, ended: float, *, is_open: bool, server: float = 0.0, page: float = 0.0
) -> Window:
    """Of the steps between two times, in which server and page computed so many seconds."""
    within = [step for step in steps if step.began >= began and step.ended <= ended]
    if not within:
        raise SystemExit(f"no step of training fits into {ended - began:.0f} s: ask for longer windows")
    return Window(
        is_open=is_open,
        steps=len(within),
        cpu=float(np.mean([step.cpu for step in within])),
        seconds=float(np.mean([step.seconds for step in within])),
        server=server / (ended - began),
        page=page / (ended - began),
    )


def cpu_change(block: Block) -> float:
    """How much more training computes for a step with the page."""
    return _change(block, lambda window: window.cpu)


def time_change(block: Block) -> float:
    """How much longer a step takes with the page."""
    return _change(block, lambda window: window.seconds)


def server_share(block: Block) -> float:
    """What the server computes while the page is open, as a share of what training computes without it."""
    beside = np.mean([window.server * window.seconds for window in block if window.is_open])  # during a step
    return float(beside / np.mean([window.cpu for window in block if not window.is_open]))


def cost(block: Block) -> float:
    """Of the page in all."""
    return cpu_change(block) + server_share(block)


def _change(block: Block, of: Callable[[Window], float]) -> float:
    logs = {is_open: [np.log(of(one)) for one in block if one.is_open is is_open] for is_open in (True, False)}
    return float(np.expm1(np.mean(logs[True]) - np.mean(logs[False])))


def estimate(blocks: Sequence[Block], of: Callable[[Block], float]) -> Change:
    """The trimmed mean over blocks, with a bootstrap over blocks."""
    values = np.array([of(block) for block in blocks])  # [blocks]
    drawn = np.random.default_rng(0).integers(len(values), size=(_DRAWS, len(values)))
    low, high = np.percentile(_trimmed_mean(values[drawn]), [2.5, 97.5])
    return Change(mean=float(_trimmed_mean(values[None])[0]), low=float(low), high=float(high), blocks=len(values))


def _trimmed_mean(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of each row, without its lowest and highest fifth; [draws, blocks] to [draws]."""
    left_out = int(_TRIMMED * values.shape[1])
    means: npt.NDArray[np.float64] = np.sort(values, axis=1)[:, left_out : values.shape[1] - left_out].mean(axis=1)
    return means


def save_blocks(file: Path, blocks: Sequence[Block]) -> None:
    file.write_text(json.dumps({"blocks": [[asdict(window) for window in block] for block in blocks]}, indent=1))


def read_blocks(file: Path) -> list[Block]:
    return [tuple(Window(**window) for window in block) for block in json.loads(file.read_text())["blocks"]]


def report(blocks: Sequence[Block], say: Callable[[str], None], *, pages: int = 1) -> None:
    """Says what so many open pages cost, and each of them on average; one alone costs more than that."""
    windows = [window for block in blocks for window in block]
    steps = sum(window.steps for window in windows)
    say(f"{len(blocks)} blocks of {len(ORDER)} windows (closed, open, open, closed), {steps} steps of training")
    opened = "the page" if pages == 1 else f"{pages} pages"
    say(f"CPU of a step with {opened}: {estimate(blocks, cpu_change)}")
    longer = estimate(blocks, time_change)
    say(f"time of a step with {opened}: {longer}")
    for what, is_open in (("closed", False), ("open", True)):
        seen = [window for window in windows if window.is_open is is_open]
        server, page = np.mean([(one.server, one.page) for one in seen], axis=0)
        say(f"{what}: server {server:.2%} of a core, {opened} {page:.2%}")
    say(f"server with {opened}, as a share of training's CPU: {estimate(blocks, server_share)}")
    each = "" if pages == 1 else f", of {pages}"
    for name, change in (("time of a step", longer), ("cost", estimate(blocks, cost))):
        of_one = change.divide(pages)
        say(f"{name}, by an open page{each}: {of_one}: {of_one.verdict}")
