"""What the files of a run show by themselves: recorded alarms, updates that moved nothing, rows that do not add up."""

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from turnwise.checks.diagnosis import Diagnosis
from turnwise.runs.episodes import StoredEpisode

_LOW = 2**30
"""Bytes below which a disk is nearly full."""


def check_recorded(findings: Sequence[Mapping[str, object]]) -> list[Diagnosis]:
    """A diagnosis for every alarm that the run recorded while it trained, each kind once."""
    found: dict[str, Diagnosis] = {}
    for one in findings:
        kind, step = str(one.get("kind", "")), one.get("step")
        if one.get("severity") == "alarm" and kind not in found:
            found[kind] = Diagnosis(
                kind="recorded_alarm",
                cause=f"the run recorded {kind} while it trained: {one.get('sentence', '')}",
                advice="see the findings in its report, or in `turnwise studio`",
                evidence={"step": float(step) if isinstance(step, int) else math.nan},
            )
    return list(found.values())


def check_updates(train: Sequence[Mapping[str, object]]) -> list[Diagnosis]:
    """A diagnosis where rewards vary within groups, step after step, and no update ever took a step."""
    varied = [record for record in train if _number(record, "rollout/reward_std_in_group") > 0]
    trained = [record for record in varied if "policy/steps_taken" in record and not record.get("critic/warming_up")]
    idle = [r for r in trained if not _number(r, "policy/steps_taken") and not _number(r, "policy/steps_skipped")]
    found = []
    if len(trained) >= 2 and len(idle) == len(trained):
        found.append(
            Diagnosis(
                kind="zero_gradient",
                cause="rewards vary within groups, and yet no update moved the weights",
                advice="no weight that the loss depends on requires a gradient: check frozen parameters, "
                "model.lora.targets and the loss mask",
                evidence={"steps without an update": float(len(idle)), "of": float(len(trained))},
            )
        )
    return found


def check_stored(episodes: Sequence[StoredEpisode]) -> list[Diagnosis]:
    """A diagnosis where a stored reward is not the sum of its turns', or a number per token is missing or too many."""
    lost = 0
    uneven = 0
    for episode in episodes:
        paid = math.fsum(turn.reward for turn in episode.trajectory.turns)
        lost += not math.isclose(paid, episode.line.reward, rel_tol=1e-6, abs_tol=1e-6)
        for turn, record in zip(episode.trajectory.turns, episode.turns, strict=True):
            uneven += record.advantages is not None and len(record.advantages) != len(turn.action_ids)
    found = []
    if lost:
        figures = {"episodes": float(lost), "of": float(len(episodes))}
        cause = "the rewards of an episode's turns do not add up to the episode's"
        found.append(Diagnosis(kind="rewards_lost", cause=cause, advice=_WRONG, evidence=figures))
    if uneven:
        figures = {"turns": float(uneven)}
        cause = "the learner computed advantages of another number of tokens than was sampled"
        found.append(Diagnosis(kind="tokens_lost", cause=cause, advice=_WRONG, evidence=figures))
    return found


_WRONG = "results of this run are wrong: a change to `types.lay_out` or `learner.batch` broke it; undo that change"


def check_free_disk(folder: Path) -> list[Diagnosis]:
    """A diagnosis where the disk of a run is nearly full."""
    free = shutil.disk_usage(folder).free
    if free >= _LOW:
        return []
    cause = f"the disk of {folder} is nearly full: a checkpoint may not fit any more"
    figures = {"GiB free": free / 2**30}
    return [Diagnosis(kind="disk_short", cause=cause, advice="free some before the run goes on", evidence=figures)]


def _number(record: Mapping[str, object], name: str) -> float:
    value = record.get(name, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0
