"""From a run and one of its trajectories to a branch of it: played again up to a turn, and another way from there.

Invariant: with the weights that sampled it and no change, a branch is the stored trajectory again; the run is only
read.
"""

import asyncio
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from turnwise.agents import Decoding
from turnwise.agents.replay import Changes, ReplayAgent
from turnwise.config import Config
from turnwise.errors import RunError
from turnwise.rollout import run_episode
from turnwise.rollout.limits import limits_for
from turnwise.runs import write_trajectories
from turnwise.runs.episodes import EpisodeLine, StoredEpisode, TurnRecord
from turnwise.runs.store import Decode
from turnwise.training.build import assemble
from turnwise.training.memory import TO_SAMPLE, one_line_out_of_memory
from turnwise.types import Group, Trajectory

STAGE = "branch"
"""In the name of a branch's file: `branch-000012.parquet`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchPoint:
    """Where a branch leaves, and what is different from there: `BranchPoint(from_turn=2, temperature=0.0)`."""

    from_turn: int
    """The first turn that is played anew, counted from 1."""
    temperature: float | None = None
    """None: as the stored trajectory was sampled."""
    turns: int | None = None
    """Play so many turns from there at the most; None: to the episode's end."""
    changes: Changes = field(default_factory=Changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """What came of it."""

    episode: StoredEpisode
    trajectory: Trajectory
    diverged: int | None
    """The first repeated turn, counted from 0, that read something else than the stored one; None: none did."""
    decode: Decode

    def save(self, path: Path) -> None:
        """Writes it as a file of trajectories with one row."""
        group = Group(task=self.trajectory.task, trajectories=(self.trajectory,))
        write_trajectories(path, self.episode.line.step, [group], None, self.decode)


def branch_episode(config: Config, stored: StoredEpisode, point: BranchPoint) -> Branch:
    """Plays a stored episode up to a turn and on from there, with the config's model and environment."""
    stored.trajectory.require_tokens("replay it")
    taken = len(stored.trajectory.turns)
    if not 1 <= point.from_turn <= taken + 1:
        raise RunError(f"--from-turn {point.from_turn}: the trajectory ends after turn {taken}; give 1 to {taken + 1}")
    components = assemble(config)
    decoding: Decoding = config.rollout if stored.line.stage == "train" else config.evaluate
    if point.temperature is not None:
        decoding = decoding.model_copy(update={"temperature": point.temperature})
    agent = ReplayAgent(
        policy=components.policy(decoding),
        turns=stored.trajectory.turns,
        keep=point.from_turn - 1,
        changes=point.changes,
        version=_step_of(config.model.name),
    )
    limits = limits_for(components.env, stored.trajectory.task, config.rollout)
    if point.turns is not None:
        most = min(limits.max_turns, point.from_turn - 1 + point.turns)
        limits = limits.model_copy(update={"max_turns": most})
    with one_line_out_of_memory(TO_SAMPLE):
        trajectory = asyncio.run(
            run_episode(
                agent,
                components.env.spawn_for(stored.trajectory.task),
                stored.trajectory.task,
                episode_seed=stored.trajectory.episode_seed,
                limits=limits,
            )
        )
    decode = components.render.decode
    return Branch(
        episode=_as_stored(trajectory, stored.line, decode),
        trajectory=trajectory,
        diverged=agent.diverged,
        decode=decode,
    )


def _step_of(model: str) -> int:
    """The step of a checkpoint's model: 12 for `runs/demo/checkpoints/step-000012/model`; 0 for any other."""
    step = Path(model).parent.name.removeprefix("step-")
    return int(step) if step.isdecimal() else 0


def _as_stored(trajectory: Trajectory, line: EpisodeLine, decode: Decode) -> StoredEpisode:
    return StoredEpisode(
        line=dataclasses.replace(
            line,
            stage=STAGE,
            group=0,
            member=0,
            stop=trajectory.stop.value,
            failure=trajectory.failure,
            reward=trajectory.reward,
            rewards=trajectory.rewards,
            metrics=trajectory.metrics,
            seconds=trajectory.seconds,
        ),
        trajectory=trajectory,
        turns=tuple(
            TurnRecord(
                context_text=decode(turn.context_ids),
                action_text=decode(turn.action_ids),
                advantages=None,
                learner_logprobs=None,
                entropies=None,
            )
            for turn in trajectory.turns
        ),
        tail_text=decode(trajectory.tail_ids),
    )
