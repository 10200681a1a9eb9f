"""What a rollout, a sampler and the trainer's evaluations owe, as proofs that tests call and planted bugs must fail."""

import tempfile
from pathlib import Path

import pytest
import torch

import turnwise.training.trainer
from byte_render import Scripted, Watched, play, says
from tiny_runs import run_tiny
from turnwise.engines.local.sampling import sample
from turnwise.learner.batch import Batch
from turnwise.types import Group, Message, Step, StopReason

FRESH = (Message(role="user", content="sum"),)


def learnt_rewards(episode):
    """Rewards as the learner gets them: the turn and the reward of every token that has one."""
    batch = Batch.of([Group(task=episode.task, trajectories=(episode,))])
    paid = batch.reward.nonzero().flatten().tolist()
    return [(int(batch.turn[token]), float(batch.reward[token])) for token in paid]


def prove_the_clock_keeps_the_last_reward():
    """The move that an environment's own clock cut off is paid for, and so are those before it."""
    late = says("x", rewards={"r": 2.0}, metrics={"depth": 3.0}, done=True, truncated=True)
    episode = play(Watched("a"), Scripted(says("x", rewards={"r": 1.0}), late))
    assert episode.stop is StopReason.TIME_UP
    assert [dict(turn.rewards) for turn in episode.turns] == [{"r": 1.0}, {"r": 2.0}]
    assert (episode.reward, episode.metrics) == (3.0, {"depth": 3.0})
    assert learnt_rewards(episode) == [(0, 1.0), (1, 2.0)]


def prove_a_rewrite_pays_nothing_again():
    """Two rewrites, the first in answer to the first move: every reward is learnt from once, where it was earned."""
    first = Step(rewrites=FRESH, rewards={"r": 1.0})
    episode = play(
        Watched("a", "b", "c", "d"),
        Scripted(first, says("x"), Step(rewrites=FRESH), Step(done=True, rewards={"r": 4.0})),
    )
    assert [turn.opens_row for turn in episode.turns] == [True, True, False, True]
    assert [dict(turn.rewards) for turn in episode.turns] == [{"r": 1.0}, {}, {}, {"r": 4.0}]
    assert episode.reward == 5.0
    assert learnt_rewards(episode) == [(0, 1.0), (3, 4.0)]


def prove_top_p_cuts_between_equals():
    """Of equally likely tokens the first are kept, as many as it takes to hold `top_p` and not one more.

    Four tokens of ¼ and `top_p` .5: two of them hold ½, so the third goes.
    """
    kept = {top_p: _reachable(torch.zeros(4), top_p) for top_p in (0.25, 0.26, 0.5, 0.51, 0.75, 0.76)}
    assert kept == {0.25: [0], 0.26: [0, 1], 0.5: [0, 1], 0.51: [0, 1, 2], 0.75: [0, 1, 2], 0.76: [0, 1, 2, 3]}
    assert _reachable(torch.tensor([-5.0, 0.0, -5.0, 0.0, 0.0, 0.0]), 0.4) == [1, 3]


def _reachable(logits: torch.Tensor, top_p: float) -> list[int]:
    """The tokens that an even grid of uniforms draws."""
    count = 64
    tokens, logprobs = sample(
        logits.repeat(count, 1),
        (torch.arange(count, dtype=torch.float64) + 0.5) / count,
        torch.ones(count),
        torch.zeros(count, dtype=torch.long),
        torch.full((count,), top_p),
        greedy=False,
        truncate=True,
    )
    found = sorted(set(tokens.tolist()))
    assert logprobs.exp().tolist() == pytest.approx([1 / len(found)] * count), "equals stay equal"
    return found


def prove_evaluations_share_their_seed():
    """All evaluations of a run play the same tasks with the same episode seeds."""
    played = []
    real = turnwise.training.trainer.evaluate

    async def evaluate(*arguments, **settings):
        result = await real(*arguments, **settings)
        played.append([(group.task.id, t.episode_seed) for group in result.groups for t in group.trajectories])
        return result

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(turnwise.training.trainer, "evaluate", evaluate)
        run_tiny(Path(folder) / "run", steps=2, evaluate={"every": 1, "tasks": 3, "samples_per_task": 2})
    assert len(played) == 3
    assert len(set(played[0])) == 6
    assert played[1] == played[2] == played[0]
