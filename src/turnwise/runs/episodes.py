"""Stored episodes for people to look at: listed by what they earned, and read whole, with every number of every token.

Invariant: nothing here changes a run; a file that cannot be read is reported by name, and the others are still listed.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from turnwise.errors import RunError
from turnwise.runs.directory import RunDirectory
from turnwise.runs.store import Known, StoredRow, read_rows, trajectory_of
from turnwise.types import Trajectory

_LISTED = ("step", "group", "member", "task_id", "stop", "failure", "reward", "rewards", "metrics", "seconds")
_FILE = re.compile(r"(?P<stage>[a-z_]+)-(?P<step>[0-9]+)\.parquet")
_NAME = re.compile(r"(?P<stage>[a-z_]+)-(?P<step>[0-9]+)/(?P<group>[0-9]+)/(?P<member>[0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLine:
    """One episode in a listing, without its turns."""

    stage: str
    """`train`, `evaluate`, `untrained` or `sft`."""
    step: int
    group: int
    member: int
    task_id: str
    stop: str
    failure: str
    reward: float
    rewards: Mapping[str, float]
    metrics: Mapping[str, float]
    seconds: float

    @property
    def name(self) -> str:
        """`train-12/3/1`: step 12, group 3, member 1."""
        return f"{self.stage}-{self.step}/{self.group}/{self.member}"

    @property
    def failed(self) -> bool:
        """Whether infrastructure failed; such an episode was never scored."""
        return self.stop == "env_failed"

    @property
    def success(self) -> float | None:
        """The environment's own metric, where it has one."""
        return self.metrics.get("success")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """A turn's text, and one number per action token where it was trained on; None where it was not."""

    context_text: str
    action_text: str
    advantages: Known | None
    learner_logprobs: Known | None
    """Before the update; with `Turn.logprobs`, the gap between sampler and learner."""
    entropies: Known | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first token in which two episodes differ: `Difference(turn=1, part="sampled", place=7)`, all from 0."""

    turn: int
    part: Literal["read", "sampled"]
    place: int
    """Where one of them ends before the other, its length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEpisode:
    """An episode as it was stored."""

    line: EpisodeLine
    trajectory: Trajectory
    turns: tuple[TurnRecord, ...]
    tail_text: str


def trajectory_files(run: RunDirectory, *, stage: str | None = None, step: int | None = None) -> list[Path]:
    """The files of a run in the order in which a run writes them."""
    order = ("sft", "untrained", "evaluate", "train")
    found = []
    for path in run.trajectories.glob("*.parquet"):
        match = _FILE.fullmatch(path.name)
        if match and stage in (None, match["stage"]) and step in (None, int(match["step"])):
            rank = order.index(match["stage"]) if match["stage"] in order else len(order)
            found.append((rank, int(match["step"]), path))
    return [path for *_, path in sorted(found)]


def list_episodes(files: Sequence[Path], problems: list[str]) -> Iterator[EpisodeLine]:
    """Every episode of these files; a file that cannot be read adds a line to `problems`."""
    for path in files:
        match = _FILE.fullmatch(path.name)
        assert match is not None, "`trajectory_files` found it"
        try:
            with pq.ParquetFile(path) as file:
                rows: list[StoredRow] = file.read(columns=list(_LISTED)).to_pylist()
            yield from [_line(match["stage"], row) for row in rows]
        except (pa.ArrowException, OSError, KeyError, TypeError) as error:
            problems.append(f"{path}: cannot be read: {' '.join(str(error).split())}")


def read_episode(run: RunDirectory, name: str) -> StoredEpisode:
    """The episode of a name: `read_episode(run, "train-12/3/1")`."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise RunError(f"'{name}' is not a trajectory: name it as STAGE-STEP/GROUP/MEMBER, such as train-12/3/1")
    stage, step, group, member = match["stage"], *(int(match[part]) for part in ("step", "group", "member"))
    path = run.trajectory_file(stage, step)
    if not path.is_file():
        near = ", ".join(file.stem for file in trajectory_files(run)[-3:])
        raise RunError(f"{path}: no such file; the last ones of this run are: {near or 'none'}")
    rows = read_rows(path, {(group, member)})
    if not rows:
        raise RunError(f"{path}: has no group {group} with a member {member}; list them with: turnwise show {run.path}")
    return _episode(stage, rows[0])


def read_episode_file(path: Path) -> StoredEpisode:
    """The first episode of a file, which may lie outside a run: what `turnwise replay --save` wrote."""
    match = _FILE.fullmatch(path.name)
    rows = read_rows(path)
    if not rows:
        raise RunError(f"{path}: has no trajectory in it")
    return _episode(match["stage"] if match else "branch", rows[0])


def read_episodes(
    run: RunDirectory, stage: str, step: int, chosen: Collection[tuple[int, int]] | None = None
) -> list[StoredEpisode]:
    """The episodes of one training step or evaluation, with their turns: all, or those of these groups' members."""
    return [_episode(stage, row) for row in read_rows(run.trajectory_file(stage, step), chosen)]


def first_difference(one: StoredEpisode, other: StoredEpisode) -> Difference | None:
    """Where two episodes part; None where one begins with the other."""
    for number, (a, b) in enumerate(zip(one.trajectory.turns, other.trajectory.turns, strict=False)):
        parts: tuple[tuple[Literal["read", "sampled"], tuple[int, ...], tuple[int, ...]], ...] = (
            ("read", a.context_ids, b.context_ids),
            ("sampled", a.action_ids, b.action_ids),
        )
        for part, here, there in parts:
            place = next((i for i, (x, y) in enumerate(zip(here, there, strict=False)) if x != y), None)
            if place is None and len(here) != len(there):
                place = min(len(here), len(there))
            if place is not None:
                return Difference(turn=number, part=part, place=place)
    return None


def _episode(stage: str, row: StoredRow) -> StoredEpisode:
    return StoredEpisode(
        line=_line(stage, row),
        trajectory=trajectory_of(row),
        turns=tuple(
            TurnRecord(
                context_text=turn["context_text"],
                action_text=turn["action_text"],
                advantages=turn["advantages"],
                learner_logprobs=turn.get("learner_logprobs"),
                entropies=turn.get("entropies"),
            )
            for turn in row["turns"]
        ),
        tail_text=row.get("tail_text") or "",
    )


def _line(stage: str, row: StoredRow) -> EpisodeLine:
    return EpisodeLine(
        stage=stage,
        step=row["step"],
        group=row["group"],
        member=row["member"],
        task_id=row["task_id"],
        stop=row["stop"],
        failure=row["failure"],
        reward=row["reward"],
        rewards=dict(row["rewards"]),
        metrics=dict(row["metrics"]),
        seconds=row["seconds"],
    )
