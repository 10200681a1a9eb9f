"""Where the seconds of training steps go, from samples of the main thread, beside any command that trains:

python -m benchmarks.real.profile profile.txt --steps 8:20 -- train gpu-multihop-smollm2 --run runs/rl

Every 3 ms the main thread is interrupted, and the time since the last sample is charged to its stack and to the account
that is open in the ledger. Garbage collections are timed. On a GPU, torch counts in one further step what waited for
it. Linux and macOS; a process of one rank.
"""

import argparse
import gc
import signal
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeVar
from unittest.mock import patch

import torch

from turnwise.cli.main import main as turnwise
from turnwise.ledger import Ledger
from turnwise.training.trainer import Trainer

K = TypeVar("K")

_PERIOD = 0.003
_SHOWN = 30
"""Functions of each account that are listed, at the most."""
_LEAST = 0.001
"""Seconds of a step below which a function is not listed."""


class Samples:
    """Seconds by account of the ledger, and by function: in it alone, and in it or what it called."""

    def __init__(self) -> None:
        self.wall: defaultdict[str, float] = defaultdict(float)
        self.cpu: defaultdict[str, float] = defaultdict(float)
        self.own: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.cumulative: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.collections: defaultdict[str, float] = defaultdict(float)
        """Seconds and number of garbage collections, by generation."""

    @contextmanager
    def taken(self, ledger: Ledger) -> Iterator[None]:
        """Samples are taken within the block, which the main thread runs."""
        self._ledger, self._last = ledger, _now()
        before = signal.signal(signal.SIGALRM, self._take)
        signal.siginterrupt(signal.SIGALRM, False)
        gc.callbacks.append(self._time_collection)
        signal.setitimer(signal.ITIMER_REAL, _PERIOD, _PERIOD)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            gc.callbacks.remove(self._time_collection)

    def _take(self, number: int, frame: FrameType | None) -> None:
        (wall, cpu), (wall_before, cpu_before) = _now(), self._last
        account = self._ledger._open[-1]
        self.wall[account] += wall - wall_before
        self.cpu[account] += cpu - cpu_before
        stack = [_name(at.f_code) for at in _frames(frame)]
        self.own[account, stack[0]] += wall - wall_before
        for name in set(stack):
            self.cumulative[account, name] += wall - wall_before
        self._last = _now()  # the sample itself is left out

    def _time_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
            return
        self.collections[f"generation {info['generation']}"] += 1
        self.collections[f"generation {info['generation']}, seconds"] += time.perf_counter() - self._began

    def describe(self, steps: int) -> list[str]:
        """All of it, in milliseconds of a step."""
        lines = ["account: wall, the main thread's own, the rest (waiting), in ms of a step"]
        for account, wall in _most(self.wall):
            own = self.cpu[account]
            lines.append(f"{_ms(wall, steps)} {_ms(own, steps)} {_ms(wall - own, steps)}  {account}")
        lines.append(f"garbage collections in {steps} steps: {dict(sorted(self.collections.items()))}")
        for account, _ in _most(self.wall):
            for title, table in (("in the function", self.own), ("in it or below", self.cumulative)):
                rows = [(name, seconds) for (of, name), seconds in _most(table) if of == account]
                listed = [(name, seconds) for name, seconds in rows if seconds >= _LEAST * steps][:_SHOWN]
                lines += [f"{account}, {title}", *(f"{_ms(seconds, steps)}  {name}" for name, seconds in listed)]
        return lines


@contextmanager
def counted_waits(waits: Counter[str]) -> Iterator[None]:
    """Counts the lines at which torch waits for the GPU, other than for an event, within the block."""
    if not torch.cuda.is_available():
        yield
        return

    def note(message: object, *_: object) -> None:
        if "synchroniz" in str(message):
            waits[" < ".join(f"{_name(at.f_code)}:{at.f_lineno}" for at in list(_frames(sys._getframe(1)))[:4])] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        torch.set_warn_always(True)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with patch.object(warnings, "showwarning", note):
                yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
            torch.set_warn_always(False)


def profile_steps(arguments: Sequence[str], to: Path, *, first: int, last: int) -> int:
    """Runs a command of turnwise and writes what its steps from `first` to `last` took."""
    samples, waits, train = Samples(), Counter[str](), Trainer._train

    async def watched(self: Trainer, step: int) -> None:
        if first <= step + 1 <= last:
            with samples.taken(self.ledger):
                await train(self, step)
        elif step == last:
            with counted_waits(waits):
                await train(self, step)
        else:
            await train(self, step)
        if step + 1 in (last, last + 1):
            lines = samples.describe(last - first + 1)
            lines += ["waits for the GPU in one step", *(f"{count:8d}  {line}" for line, count in waits.most_common())]
            to.write_text("\n".join(lines) + "\n", encoding="utf-8")

    with patch.object(Trainer, "_train", watched):
        return turnwise(list(arguments))


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _name(code: CodeType) -> str:
    return f"{'/'.join(Path(code.co_filename).parts[-3:])}:{code.co_qualname}"


def _most(table: Mapping[K, float]) -> list[tuple[K, float]]:
    """The largest first."""
    return sorted(table.items(), key=lambda item: -item[1])


def _ms(seconds: float, steps: int) -> str:
    return f"{1000 * seconds / steps:8.1f}"


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    return int(first), int(last)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real.profile", description="samples training steps")
    parser.add_argument("to", type=Path, metavar="FILE", help="where the figures go")
    parser.add_argument("--steps", type=_range, default=(8, 20), metavar="FIRST:LAST", help="(default: 8:20)")
    parser.add_argument("command", nargs="+", help="after --: train RECIPE ...; of one step more than LAST, on a GPU")
    options = parser.parse_args(arguments)
    return profile_steps(options.command, options.to, first=options.steps[0], last=options.steps[1])


if __name__ == "__main__":
    sys.exit(main())
