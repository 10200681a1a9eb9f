"""Stored trajectories scored by another reward, without sampling anew.

Invariant: a reward sees what it would have seen at the episode's end, but for the environment itself, which is gone; an
episode that failed, and one on which the reward raises, is counted and never scored.
"""

import asyncio
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnwise.errors import RewardError
from turnwise.plugins import find_plugin
from turnwise.rewards.foreign import read_signature
from turnwise.rewards.named import MADE, NAMED, REWARD, can_reward, choose_rewards
from turnwise.rewards.reward import Episode, Reward
from turnwise.runs.conversation import read_conversation
from turnwise.runs.episodes import StoredEpisode
from turnwise.sources import claim_names
from turnwise.types import Message, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """One trajectory: `Rescored(name="train-3/0/1", reward=1.0, scores={"brevity": 0.25}, ...)`."""

    name: str
    stage: str
    step: int
    group: int
    task_id: str
    reward: float
    """What was paid then."""
    scores: Mapping[str, float]
    """By reward, weights applied; empty where it was not scored."""
    problem: str = ""

    @property
    def rescored(self) -> float:
        return math.fsum(self.scores.values())


def find_rewards(names: Sequence[str]) -> tuple[Reward, ...]:
    """Rewards by name, as in a recipe; a plain function of an `Episode` will do as well."""
    claim_names(list(names))
    return tuple(reward for name in names for reward in _find(name))


def _find(name: str) -> tuple[Reward, ...]:
    if ":" not in name or name in NAMED:
        return choose_rewards(name)
    found = find_plugin(REWARD, name, MADE, can_reward)
    plain = inspect.isfunction(found) and read_signature(found) is None
    if plain and len(inspect.signature(found).parameters) == 1:  # type: ignore[arg-type]  # a function
        return (Reward(name=name.rpartition(":")[2], function=found),)  # type: ignore[arg-type]
    return choose_rewards(name)


async def rescore(episodes: Sequence[StoredEpisode], rewards: Sequence[Reward]) -> list[Rescored]:
    """Scores every episode by every reward."""
    return [await _rescore(episode, rewards) for episode in episodes]


def rescore_now(episodes: Sequence[StoredEpisode], rewards: Sequence[Reward]) -> list[Rescored]:
    """The same outside an event loop."""
    return asyncio.run(rescore(episodes, rewards))


async def _rescore(stored: StoredEpisode, rewards: Sequence[Reward]) -> Rescored:
    line, scores, problem = stored.line, dict[str, float](), ""
    if line.failed:
        problem = f"it failed: {line.failure}"
    else:
        try:
            seen = as_episode(stored)
            scores = {reward.name: reward.weight * await reward.score_episode(seen) for reward in rewards}
        except RewardError as error:
            problem = str(error)
    return Rescored(
        name=line.name,
        stage=line.stage,
        step=line.step,
        group=line.group,
        task_id=line.task_id,
        reward=line.reward,
        scores=scores,
        problem=problem,
    )


def as_episode(stored: StoredEpisode) -> Episode:
    """What a reward saw of it when it ended, read from its tokens."""
    blocks = read_conversation(stored)
    messages = tuple(
        Message(role=_role(block.role), content=block.text, thinking=block.thinking, tool_calls=block.calls)
        for block in blocks
    )
    last = next((message for message in reversed(messages) if message.role == "assistant"), None)
    ended = stored.line.stop == "done" and last is not None and not last.tool_calls
    measured = stored.line.metrics
    called = sum(len(message.tool_calls) for message in messages)
    return Episode(
        task=stored.trajectory.task,
        messages=messages,
        answer=last.content if ended and last is not None else None,
        tool_calls=int(measured.get("tool_calls", called)),
        tool_errors=int(measured.get("tool_errors", 0)),
    )


def _role(role: str) -> Role:
    return role if role in ("system", "user", "assistant", "tool") else "user"  # type: ignore[return-value]  # one of these


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScores:
    """The trajectories of one file, before and after."""

    stage: str
    step: int
    scored: int
    left_out: int
    reward: float
    rescored: float
    teaching: int
    """Groups whose rewards differed."""
    teaching_now: int
    groups: int


def summarise(scored: Sequence[Rescored]) -> list[StepScores]:
    """By stage and step: mean rewards, and how many groups have anything to teach, under either reward."""
    files: dict[tuple[str, int], list[Rescored]] = {}
    for one in scored:
        files.setdefault((one.stage, one.step), []).append(one)
    return [_summarise(stage, step, some) for (stage, step), some in files.items()]


def _summarise(stage: str, step: int, everyone: Sequence[Rescored]) -> StepScores:
    some = [one for one in everyone if not one.problem]
    groups: dict[int, list[Rescored]] = {}
    for one in some:
        groups.setdefault(one.group, []).append(one)
    return StepScores(
        stage=stage,
        step=step,
        scored=len(some),
        left_out=len(everyone) - len(some),
        reward=_mean([one.reward for one in some]),
        rescored=_mean([one.rescored for one in some]),
        teaching=sum(_differ([one.reward for one in group]) for group in groups.values()),
        teaching_now=sum(_differ([one.rescored for one in group]) for group in groups.values()),
        groups=len(groups),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _differ(values: Sequence[float]) -> bool:
    return max(values) - min(values) > 1e-9
