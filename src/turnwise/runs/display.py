"""What a user sees while a run trains: a live panel on a terminal, one line per step anywhere else.

Invariant: a display only shows; no other code reads from it.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from turnwise.runs.picture import sparkline


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A number worth watching: `Column(title="grad norm", metrics=("policy/grad_norm", "sft/grad_norm"))`."""

    title: str
    metrics: tuple[str, ...]
    """Metric names; the first that a step has is shown."""
    format: str = ".3f"
    curve: bool = False
    """Also draw a sparkline over the whole stage."""

    def read(self, metrics: Mapping[str, float]) -> float | None:
        """Its value in a step's metrics, or None."""
        return next((float(metrics[name]) for name in self.metrics if name in metrics), None)

    def show(self, metrics: Mapping[str, float]) -> str:
        value = self.read(metrics)
        return format(value, self.format) if value is not None and math.isfinite(value) else "–"


COLUMNS = (
    Column(title="loss", metrics=("sft/loss",), curve=True),
    Column(title="reward", metrics=("rollout/reward",), curve=True),
    Column(title="success", metrics=("rollout/success",), curve=True),
    Column(title="entropy", metrics=("policy/entropy",)),
    Column(title="grad norm", metrics=("policy/grad_norm", "sft/grad_norm")),
    Column(title="tokens/s", metrics=("rollout/tokens_per_second", "sft/tokens_per_second"), format=",.0f"),
)
_HISTORY = 6
_PAUSE = 2.0
"""Minimum seconds between two lines of the plain display within a stage."""
_PATIENCE = 30.0
"""Seconds without output after which the plain display shows the progress of a long step."""


class Display(ABC):
    """Shows the progress of a run; a context manager, so that the terminal is restored."""

    def __init__(self, console: Console, columns: Sequence[Column], clock: Callable[[], float]) -> None:
        self._console = console
        self._columns = columns
        self._clock = clock
        self._stage = Stage(name="", total=0, began=clock())

    def stage(self, name: str, total: int) -> None:
        """A stage of `total` steps begins: `stage("cold start", 300)`; 0 for one that has progress but no steps."""
        self._stage = Stage(name=name, total=total, began=self._clock())

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is done, the `step`-th of its stage counted from 1 (a resumed stage begins in the middle)."""
        self._stage.seen += 1
        self._stage.step = step

    @abstractmethod
    def progress(self, done: int, total: int, what: str) -> None:
        """Progress within a long step: `progress(37, 128, "rollout")`."""

    @abstractmethod
    def note(self, text: str) -> None:
        """A line of its own that stays on the screen."""

    @abstractmethod
    def close(self) -> None:
        """Restores the terminal; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(slots=True, kw_only=True)
class Stage:
    """Progress of a stage and an estimate of the time left."""

    name: str
    total: int
    began: float
    step: int = 0
    seen: int = 0
    """Steps done by this process: fewer than `step` in a resumed stage."""

    def left(self, now: float) -> float | None:
        """Seconds until its end, or None before the first step."""
        return (now - self.began) / self.seen * max(self.total - self.step, 0) if self.seen else None


class PlainDisplay(Display):
    """A line per step, for logs, pipes and terminals without colour; steps in quick succession share one."""

    def __init__(
        self, console: Console, columns: Sequence[Column] = COLUMNS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(console, columns, clock)
        self._spoke = clock()

    def stage(self, name: str, total: int) -> None:
        super().stage(name, total)
        self._say(f"{name}: {total} steps" if total else name)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        super().step(step, metrics)
        if self._clock() - self._spoke < _PAUSE and 1 < step < self._stage.total:
            return
        left = self._stage.left(self._clock())
        ending = [f"{show_duration(left)} left"] if left else []
        self._say(
            "  ".join([f"{self._stage.name} {step}/{self._stage.total}", *_show(self._columns, metrics), *ending])
        )

    def progress(self, done: int, total: int, what: str) -> None:
        if self._clock() - self._spoke >= _PATIENCE:
            self._say(f"{self._stage.name} {self._stage.step}/{self._stage.total}  {what} {done}/{total}")

    def note(self, text: str) -> None:
        self._say(text)

    def close(self) -> None:
        return

    def _say(self, line: str) -> None:
        self._spoke = self._clock()
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class LiveDisplay(Display):
    """A bar with the time left, the latest steps and the curves so far, redrawn in place."""

    def __init__(
        self, console: Console, columns: Sequence[Column] = COLUMNS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(console, columns, clock)
        self._rows: list[tuple[int, Mapping[str, float]]] = []
        self._within = ""
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=4, transient=False)

    def stage(self, name: str, total: int) -> None:
        if self._stage.seen:
            self.note(self._closing_line())
        super().stage(name, total)
        self._rows, self._within = [], ""
        self._live.start(refresh=True)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        super().step(step, metrics)
        self._rows.append((step, dict(metrics)))
        self._within = ""
        self._live.refresh()

    def progress(self, done: int, total: int, what: str) -> None:
        self._within = f"{what} {done}/{total}"

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._within = ""
        self._live.stop()

    def render(self) -> RenderableType:
        """The current panel; called by the refreshing thread, too, so it only reads."""
        rows = self._rows[:]
        present = [column for column in self._columns if any(column.read(metrics) is not None for _, metrics in rows)]
        parts: list[RenderableType] = [self._bar()]
        if rows:
            parts += [self._table(rows[-_HISTORY:], present), self._curves(rows, present)]
        return Group(*parts)

    def _bar(self) -> RenderableType:
        stage, now = self._stage, self._clock()
        left = stage.left(now)
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(stage.name, style="bold"),
            ProgressBar(total=max(stage.total, 1), completed=stage.step, width=30, pulse=not stage.total),
            Text(f"{stage.step}/{stage.total}" if stage.total else "", style="cyan"),
            Text(f"{show_duration(now - stage.began)} elapsed"),
            Text(f"{show_duration(left)} left" if left is not None else "", style="green"),
            Text(self._within, style="dim"),
        )
        return bar

    def _table(self, rows: Sequence[tuple[int, Mapping[str, float]]], present: Sequence[Column]) -> RenderableType:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("step", justify="right")
        for column in present:
            table.add_column(column.title, justify="right")
        for step, metrics in rows:
            table.add_row(str(step), *(column.show(metrics) for column in present))
        return table

    def _curves(self, rows: Sequence[tuple[int, Mapping[str, float]]], present: Sequence[Column]) -> RenderableType:
        grid = Table.grid(padding=(0, 1))
        for column in present:
            if column.curve:
                values = [value for _, metrics in rows if (value := column.read(metrics)) is not None]
                grid.add_row(Text(column.title, style="dim"), Text(sparkline(values, width=48), style="cyan"))
        return grid

    def _closing_line(self) -> str:
        last = self._rows[-1][1]
        took = show_duration(self._clock() - self._stage.began)
        return "  ".join([f"{self._stage.name}: {self._stage.step} steps in {took}", *_show(self._columns, last)])


def make_display(console: Console | None = None, columns: Sequence[Column] = COLUMNS) -> Display:
    """The live display where it can be drawn, the plain one elsewhere (no terminal, NO_COLOR, TERM=dumb)."""
    console = console or Console()
    live = console.is_terminal and not console.is_dumb_terminal and not console.no_color
    return LiveDisplay(console, columns) if live else PlainDisplay(console, columns)


def _show(columns: Sequence[Column], metrics: Mapping[str, float]) -> list[str]:
    return [f"{column.title} {column.show(metrics)}" for column in columns if column.read(metrics) is not None]


def show_duration(seconds: float) -> str:
    """`0:42`, `12:05`, `3:07:00`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
