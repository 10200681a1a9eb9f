"""Replays the monitor over recorded runs: which of them it alarms on, and how soon after success was lost.

python -m benchmarks.real.replay tests/stability/recorded                        # the table of docs/stability.md
python -m benchmarks.real.replay --record runs/mine --about "my run" --outcome healthy --to recorded/mine.json

A recording is a run's health metrics, step by step, to three digits: what the monitor goes by, and nothing else.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from turnwise.stability import Finding, HealthMetrics, Monitor, MonitorSettings
from turnwise.stability.signal import RewardSignal

Outcome: TypeAlias = Literal["healthy", "declining", "collapsed", "trapped"]
"""`declining`: success sank by less than its noise; `trapped`: slowly; `collapsed`: within a few steps."""
_RECORDED = tuple(
    each.name for each in fields(HealthMetrics) if each.name not in ("signal", "on_policy_clip", "context_full")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One run, as its monitor saw it."""

    about: str
    outcome: Outcome
    episodes: int
    """Of a step."""
    group_size: int
    health: Mapping[str, Sequence[float | None]]
    """By name of a health metric: a value for each step."""

    @classmethod
    def read(cls, file: Path) -> "Recording":
        return cls(**json.loads(file.read_text(encoding="utf-8")))

    @classmethod
    def of_run(cls, run: Path, *, about: str, outcome: Outcome) -> "Recording":
        """From a run directory's `metrics.jsonl`."""
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        steps = {record["step"]: record for record in map(json.loads, lines) if record["stage"] == "train"}
        records = [steps[step] for step in sorted(steps)]
        columns = {name: [_rounded(record.get(f"health/{name}")) for record in records] for name in _RECORDED}
        first = records[0]
        groups = first["filter/kept"] + first["filter/dropped"]
        return cls(
            about=about,
            outcome=outcome,
            episodes=int(first["rollout/episodes"]),
            group_size=int(first["rollout/episodes"] / groups),
            health={name: column for name, column in columns.items() if any(value is not None for value in column)},
        )

    def write(self, file: Path) -> None:
        columns = ",\n  ".join(f'"{name}": {json.dumps(column)}' for name, column in self.health.items())
        head = {"about": self.about, "outcome": self.outcome, "episodes": self.episodes, "group_size": self.group_size}
        text = json.dumps(head, ensure_ascii=False).removesuffix("}")
        file.write_text(f'{text},\n "health": {{\n  {columns}\n }}}}\n', encoding="utf-8")

    @property
    def curve(self) -> list[HealthMetrics]:
        """A step's measurements each."""
        steps = range(len(self.health["reward"]))
        return [self._step({name: column[step] for name, column in self.health.items()}) for step in steps]

    def _step(self, values: Mapping[str, float | None]) -> HealthMetrics:
        success, varies = values.get("success"), (values["zero_variance"] or 0.0) < 1
        signal = RewardSignal(
            varies_in_groups=varies,
            varies=varies,
            episodes=self.episodes,
            group_size=self.group_size,
            success=success,
            paid={},
        )
        known = {name: values.get(name) for name in _RECORDED}
        return HealthMetrics(**known, signal=signal)  # type: ignore[arg-type]  # None only where it may be

    @property
    def half_lost(self) -> int | None:
        """The step at which success was first below half of what the run had reached, by means of five steps."""
        success = [value or 0.0 for value in self.health["success"]]
        best = 0.0
        for step in range(1, len(success) + 1):
            mean = sum(success[max(0, step - 5) : step]) / min(5, step)
            best = max(best, mean)
            if success[step - 1] < best / 2 and mean < 0.75 * best:
                return step
        return None


def watch(recording: Recording, settings: MonitorSettings | None = None) -> list[Finding]:
    """Everything that the monitor finds in a recorded run."""
    monitor = Monitor(settings or MonitorSettings())
    return [finding for step, health in enumerate(recording.curve, 1) for finding in monitor.observe(step, health)]


def make_table(recordings: Sequence[Recording]) -> str:
    """A row for each run, those with something to find first."""
    rows = ["| run | steps | success, first and last five | ended | half of success lost | first alarm |"]
    rows.append("|---|---:|---:|---|---:|---|")
    for recording in sorted(recordings, key=lambda one: (-get_args(Outcome).index(one.outcome), one.about)):
        success = [value or 0.0 for value in recording.health["success"]]
        alarm = next((finding for finding in watch(recording) if finding.severity == "alarm"), None)
        lost = recording.half_lost if recording.outcome in ("trapped", "collapsed") else None
        rows.append(
            f"| {recording.about} | {len(success)} | {_mean(success[:5]):.2f} → {_mean(success[-5:]):.2f} "
            f"| {recording.outcome} | {lost or '–'} "
            f"| {'–' if alarm is None else f'step {alarm.step}, `{alarm.kind}`'} |"
        )
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real.replay", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", nargs="?", type=Path, help="a folder of recordings: prints a table")
    parser.add_argument("--record", type=Path, metavar="RUN", help="a run directory to record")
    parser.add_argument("--about", default="", help="what the recorded run is, in a few words")
    parser.add_argument("--outcome", choices=get_args(Outcome), default="healthy")
    parser.add_argument("--to", type=Path, metavar="FILE", help="where the recording goes")
    options = parser.parse_args(arguments)
    if options.record is not None and options.to is not None:
        Recording.of_run(options.record, about=options.about, outcome=options.outcome).write(options.to)
    elif options.folder is not None:
        table = make_table([Recording.read(file) for file in sorted(options.folder.glob("*.json"))])
        sys.stdout.write(f"{table}\n")
    else:
        parser.error("name a folder of recordings, or a run to --record and a file to write it --to")
    return 0


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    sys.exit(main())
