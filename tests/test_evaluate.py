"""How good, and how sure: intervals against known values, and failures that are not scored."""

import asyncio

import pytest

from turnwise.engines.scripted import ScriptedEngine
from turnwise.envs.tool_env import ToolEnv
from turnwise.evaluate import EvaluateSettings, evaluate, wilson_interval
from turnwise.learner.small import SmallSettings, train_tokenizer
from turnwise.render import make_render
from turnwise.rewards import exact_match_reward
from turnwise.rollout import Player
from turnwise.types import StopReason


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # (share + z²/2n ± z √(share (1 − share) / n + z²/4n²)) / (1 + z²/n), with z² = 3.841459
        (8, 10, 0.490162, 0.943318),
        (2, 10, 1 - 0.943318, 1 - 0.490162),
        (0, 10, 0.0, 0.277533),  # z² / (n + z²)
        (10, 10, 1 - 0.277533, 1.0),
        (1, 1, 1 / (1 + 3.841459), 1.0),
        (100, 200, 0.431360, 0.568640),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilsons_interval(successes, trials, low, high):
    assert wilson_interval(successes, trials) == (pytest.approx(low, abs=2e-6), pytest.approx(high, abs=2e-6))


class Quiz(ToolEnv):
    def __init__(self):
        tasks = [{"question": question, "answers": ["yes"]} for question in ("one?", "two?", "broken?", "three?")]
        super().__init__(tasks={"test": tasks}, rewards=[exact_match_reward.weighted(2.0)])

    def begin(self, task, luck):
        if task.data["question"] == "broken?":
            raise ConnectionError("no simulator")


def test_failures_are_not_scored():
    render = make_render(train_tokenizer(["yes no"], SmallSettings(vocabulary=270)))

    def reply(session, prompt):
        return f"<answer>{'no' if 'two?' in render.decode(prompt) else 'yes'}</answer>"

    env, told = Quiz(), []
    result = asyncio.run(
        evaluate(
            Player(engine=ScriptedEngine(reply, render.encode_action), render=render),
            env,
            env.tasks("test"),
            responses=2,
            progress=lambda done, total: told.append((done, total)),
        )
    )
    low, high = wilson_interval(4, 6)
    assert (result.success, result.episodes) == (pytest.approx(4 / 6), 6)
    assert result.interval == (low, high)
    assert result.reward == pytest.approx(2 * 4 / 6)
    assert [group.trajectories[0].stop for group in result.groups] == [
        StopReason.DONE,
        StopReason.DONE,
        StopReason.ENV_FAILED,
        StopReason.DONE,
    ]
    assert told[-1] == (8, 8)
    assert result.metrics() == {
        "evaluate/success": result.success,
        "evaluate/success_low": low,
        "evaluate/success_high": high,
        "evaluate/reward": result.reward,
        "evaluate/episodes": 6.0,
    }
    assert str(result) == f"success 0.667 [{low:.3f}, {high:.3f}], reward 1.333, 6 episodes"


def test_evaluation_is_greedy_unless_told_otherwise():
    sampling = EvaluateSettings().sampling(max_tokens=3, stop_ids=(2,), seed=0)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 1.0, 0)
