"""A run's line in the list, kept up to date by reading only what was appended to its metrics.

Invariant: lines of training steps are not parsed, so a hundred long runs are listed in a moment; a line that is not a
record is counted and the others are used.
"""

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from turnwise.errors import RunError, TurnwiseError
from turnwise.settings import leaves, load_yaml
from turnwise.studio.library import Run
from turnwise.types import Json

_QUIET_SECONDS: Final = 300.0
"""As in `turnwise runs`: a run that recorded nothing for this long counts as stopped."""
_HEAD: Final = re.compile(rb'\{"step": (\d+), "stage": "(\w+)", "time": ([0-9.]+)')
_REWARD: Final = re.compile(rb'"rollout/reward": (-?[0-9.eE+-]+)')
_EPISODES: Final = re.compile(rb'"rollout/episodes": ([0-9.]+)')
_TELLING: Final = ("seed", "model.name", "learner.optimizer.lr", "rollout.group_size")
"""Settings that are named first where runs differ in many."""
_SPARK_POINTS: Final = 60
_SHORT: Final = 120
"""Characters of a config's value in the list."""


class TailReader:
    """The whole lines that were appended to a file since the last call; all of them once it was replaced or cut."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._file = path, 0, (0, 0)

    def read(self) -> tuple[list[bytes], bool]:
        """New lines, and whether they are the file from its start."""
        with self._path.open("rb") as file:
            stat = self._path.stat()
            identity = (stat.st_dev, stat.st_ino)
            anew = identity != self._file or stat.st_size < self._offset
            if anew:
                self._offset, self._file = 0, identity
            file.seek(self._offset)
            content = file.read()
        end = content.rfind(b"\n") + 1
        self._offset += end
        return content[:end].splitlines(), anew


@dataclass(slots=True)
class _Seen:
    """What was read of a run's metrics."""

    step: int = 0
    episodes: int = 0
    ended: bool = False
    scores: list[tuple[int, float]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    records: int = 0
    bad_lines: int = 0


class RunScan:
    """One run's line, updated at each call of `describe`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._tail = TailReader(run.directory.metrics)
        self._seen = _Seen()
        self._config: Mapping[str, object] = {}
        self._config_stamp: tuple[int, int] | None = None
        self._config_problem = ""

    @property
    def settings(self) -> Mapping[str, object]:
        """The config's values by dotted key, as `describe` last read them."""
        return self._config

    def describe(self, now: float | None = None) -> dict[str, Json]:
        """The run as the list shows it, without what differs between configs."""
        problems = [problem for problem in (self._read_config(), self._read_metrics()) if problem]
        seen, written = self._seen, self._last_written()
        age = max(0.0, (time.time() if now is None else now) - written)
        best = max(seen.scores, key=lambda one: (one[1], -one[0]), default=(None, None))
        steps = self._config.get("steps")
        return {
            "id": self._run.id,
            "name": self._run.name,
            "path": str(self._run.directory.path),
            "status": self._status(age),
            "step": seen.step,
            "steps": steps if isinstance(steps, int) else None,
            "episodes": seen.episodes,
            "best": best[1],
            "best_step": best[0],
            "last": seen.scores[-1][1] if seen.scores else None,
            "environment": str(self._config.get("env.name", "")),
            "estimator": str(self._config.get("credit.estimator", "")),
            "age": age,
            "spark": _thin([score for _, score in seen.scores] if len(seen.scores) > 1 else seen.rewards),
            "problem": "; ".join(problems),
        }

    def _status(self, age: float) -> str:
        if self._seen.ended:
            return "finished"
        if age < _QUIET_SECONDS:
            return "training"
        return "stopped" if self._seen.records else "new"

    def _last_written(self) -> float:
        files = (self._run.directory.metrics, self._run.directory.config)
        return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)

    def _read_config(self) -> str:
        path = self._run.directory.config
        try:
            stat = self._run.config.stat()
            if (stat.st_mtime_ns, stat.st_size) != self._config_stamp:
                self._config_stamp = (stat.st_mtime_ns, stat.st_size)
                self._config, self._config_problem = {}, ""
                loaded = load_yaml(path.read_text(encoding="utf-8"), source=str(path))
                if not isinstance(loaded, dict):
                    raise RunError("it has no settings in it")
                self._config = {".".join(key): value for key, value in leaves(loaded)}
        except (TurnwiseError, OSError, UnicodeDecodeError) as error:
            self._config_problem = f"config.yaml cannot be read: {' '.join(str(error).split())}"
        return self._config_problem

    def _read_metrics(self) -> str:
        try:
            if not self._run.metrics.is_file():
                return ""
            lines, anew = self._tail.read()
        except (OSError, TurnwiseError) as error:
            return f"metrics.jsonl cannot be read: {error}"
        if anew:
            self._seen = _Seen()
        for line in lines:
            self._add(line)
        return f"metrics.jsonl: {self._seen.bad_lines} lines are no records" if self._seen.bad_lines else ""

    def _add(self, line: bytes) -> None:
        seen, head = self._seen, _HEAD.match(line)
        if head is None or not line.endswith(b"}"):
            seen.bad_lines += 1
            return
        step, stage = int(head[1]), head[2]
        seen.records += 1
        if stage in (b"train", b"end"):
            seen.step = max(seen.step, step)
            seen.ended = stage == b"end"
        if stage == b"train":
            if paid := _REWARD.search(line):
                seen.rewards.append(float(paid[1]))
            if played := _EPISODES.search(line):
                seen.episodes += round(float(played[1]))
        if stage == b"evaluate":
            score = _score(line)
            if score is None:
                seen.bad_lines += 1
            elif math.isfinite(score):
                seen.scores.append((step, score))


def what_differs(scans: Mapping[str, RunScan]) -> dict[str, dict[str, Json]]:
    """By run, the settings in which the runs differ: `{"demo-1a2b3c": {"learner.optimizer.lr": "0.0003"}}`."""
    every = [scan.settings for scan in scans.values() if scan.settings]
    keys = dict.fromkeys(key for settings in every for key in settings)
    differing = [key for key in keys if len({_show(settings.get(key)) for settings in every}) > 1]

    def rank(key: str) -> tuple[int, bool]:
        # Settings that runs have in common and set otherwise tell more than those that some of them lack.
        lacking = len({_show(settings[key]) for settings in every if key in settings}) == 1
        return _TELLING.index(key) if key in _TELLING else len(_TELLING), lacking

    differing.sort(key=rank)
    return {
        run: {key: _show(scan.settings[key]) for key in differing if _has_effect(key, scan.settings)}
        for run, scan in scans.items()
    }


def _has_effect(key: str, settings: Mapping[str, object]) -> bool:
    """The shape of the built-in model says nothing of a run that has another."""
    return key in settings and not (key.startswith("model.small.") and settings.get("model.name") != "small")


def _score(line: bytes) -> float | None:
    """Held-out success; NaN where the record has none, None for a line that is no record."""
    try:
        value = json.loads(line).get("evaluate/success")
    except ValueError:
        return None
    return float(value) if isinstance(value, int | float) else math.nan


def _thin(values: list[float]) -> list[float]:
    if len(values) <= _SPARK_POINTS:
        return values
    return [values[round(place * (len(values) - 1) / (_SPARK_POINTS - 1))] for place in range(_SPARK_POINTS)]


def _show(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"
