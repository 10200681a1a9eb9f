"""`metrics.jsonl`, one JSON object per line: `{"step": 3, "stage": "train", "time": 17.., "rollout/reward": 0.4}`.

Invariant: each line is flushed before training goes on, so a killed run loses at most the line it was writing; a
resumed run's file equals that of an uninterrupted run, apart from times.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from turnwise.errors import RunError
from turnwise.runs.files import replaced

logger = logging.getLogger(__name__)

Record: TypeAlias = dict[str, float | int | str | None]


class MetricsLog:
    """Appends to a `metrics.jsonl`; an incomplete last line is dropped when it is opened."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        path.touch()
        self._rewrite(_whole_lines(path))
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, step: int, stage: str, metrics: Mapping[str, float]) -> None:
        """Appends one record; NaN and infinity are written as null, with a warning."""
        record: Record = {"step": step, "stage": stage, "time": round(self._clock(), 3)}
        for name, value in metrics.items():
            assert "/" in name, f"a metric is named area/name, not {name!r}"
            record[name] = _number(name, value, step)
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def truncate_after(self, step: int, stages: Collection[str] | None = None) -> None:
        """Drops records that a resumed run will repeat: those after `step`, of the given stages or of all.

        -1 drops all records of the stages.
        """
        kept: list[bytes] = []
        for number, line in enumerate(_whole_lines(self._path), 1):
            record = _parse(line, self._path, number)
            chosen = stages is None or record["stage"] in stages
            if not (chosen and int(record["step"] or 0) > step):
                kept.append(line)
        self._file.close()
        self._rewrite(kept)
        self._file = self._path.open("a", buffering=1, encoding="utf-8")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _rewrite(self, lines: list[bytes]) -> None:
        content = b"".join(lines)
        if content != self._path.read_bytes():
            with replaced(self._path) as temporary:
                temporary.write_bytes(content)


def read_metrics(path: str | Path) -> list[Record]:
    """All records of a run, which may still be training: an incomplete last line is left out."""
    if not Path(path).is_file():
        raise RunError(f"{path}: no such metrics file; give the metrics.jsonl of a run")
    return [_parse(line, Path(path), number) for number, line in enumerate(_whole_lines(Path(path)), 1)]


def _whole_lines(path: Path) -> list[bytes]:
    lines = path.read_bytes().splitlines(keepends=True)
    return lines[:-1] if lines and not lines[-1].endswith(b"\n") else lines


def _parse(line: bytes, path: Path, number: int) -> Record:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict) or not {"step", "stage"} <= record.keys():
        raise RunError(f"{path}:{number}: not a metrics record; remove this line to read the rest")
    return record


def _number(name: str, value: float, step: int) -> float | int | None:
    if isinstance(value, Integral):
        return int(value)
    if math.isfinite(value):
        return float(value)
    logger.warning("%s is %s at step %d: written as null", name, float(value), step)
    return None
