"""Tool calls that hang, crash and kill their process at random: every episode is counted, and what is paid is right."""

import asyncio
import math
import os
import statistics
import time
from dataclasses import dataclass

import pytest

from fickle import Counting, Desk
from tiny_runs import SIGNALS, records, run_tiny
from turnwise.agents import ExpertAgent
from turnwise.agents.expert import ExpertSession
from turnwise.cli.arguments import accept_rest
from turnwise.cli.main import make_parser
from turnwise.config import load_config
from turnwise.envs.chaos import ChaosSettings, parse_chaos, with_chaos
from turnwise.envs.registry import describe_env
from turnwise.envs.workers.env import in_workers
from turnwise.errors import ConfigError
from turnwise.rollout import Limits, run_groups
from turnwise.types import Message, StopReason

LONG = os.environ.get("TURNWISE_FAULTS") == "long"
CHAOS = ChaosSettings(hang=0.05, crash=0.05, kill=0.01)
EPISODES = 2000 if LONG else 160
TURN_SECONDS = (0.1, 0.3) if LONG else (0.1,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking(ExpertAgent):
    """The expert, who takes as long as a model that samples a turn."""

    seconds: float

    def open(self, env, *, session, context_tokens):
        return _ThinkingSession(env, self.seconds)


class _ThinkingSession(ExpertSession):
    def __init__(self, env, seconds):
        super().__init__(env)
        self._seconds = seconds

    async def act(self, *, max_tokens, seed):
        await asyncio.sleep(self._seconds)
        return await super().act(max_tokens=max_tokens, seed=seed)


def play(env, turn_seconds, episodes=EPISODES, seed=3):
    tasks = Desk().tasks("train")
    began = time.monotonic()
    groups = asyncio.run(
        run_groups(
            Thinking(seconds=turn_seconds),
            env,
            tasks,
            group_size=episodes // len(tasks),
            seed=seed,
            limits=Limits(env_seconds=10.0, max_turns=8),
            concurrency=64,
        )
    )
    return [one for group in groups for one in group.trajectories], time.monotonic() - began


def make(chaos, workers=4):
    settings = describe_env(Desk()).model_copy(update={"chaos": chaos})
    return in_workers(with_chaos(Desk(), chaos), workers, settings=settings).with_faults()


@pytest.mark.parametrize("turn_seconds", TURN_SECONDS)
def test_every_episode_is_counted_and_what_is_paid_is_right(turn_seconds, record_property):
    clean_env, chaos_env = make(None), make(CHAOS)
    try:
        clean, clean_seconds = play(clean_env, turn_seconds)
        struck, struck_seconds = play(chaos_env, turn_seconds)
        counts = chaos_env.host.counts()
    finally:
        clean_env.host.close()
        chaos_env.host.close()
    assert len(struck) == len(clean) == EPISODES, "nothing is lost"
    record_property("clean episodes/s", round(EPISODES / clean_seconds, 1))
    record_property("struck episodes/s", round(EPISODES / struck_seconds, 1))
    record_property("workers that died", counts["deaths"])
    failed = [one for one in struck if one.stop is StopReason.ENV_FAILED]
    assert all(one.failure for one in failed), "and what failed is named"
    assert {one.stop for one in struck} <= {StopReason.DONE, StopReason.ENV_FAILED}
    assert not any(one.stop is StopReason.ENV_FAILED for one in clean)
    # Five calls an episode, of which a sync one that hangs (half of them) costs its episode: 1 - .95 ** 2.5 is 12 %.
    assert 0.03 * EPISODES < len(failed) < 0.3 * EPISODES
    assert counts["deaths"] >= 0.01 * 5 * EPISODES * 0.3, "one call in a hundred kills its worker"
    errors = sum(one.metrics["tool_errors"] for one in struck if one.stop is StopReason.DONE)
    assert errors > 0.02 * 5 * EPISODES, "calls that crash or hang are observations"
    scores = [[one.reward for one in played if one.stop is StopReason.DONE] for played in (clean, struck)]
    noise = math.sqrt(sum(statistics.variance(one) / len(one) for one in scores))
    assert abs(statistics.mean(scores[0]) - statistics.mean(scores[1])) < 4 * noise
    # At .1 s a turn the waits for hanging tools alone are an eighth of an episode: recorded, and held by no bar.
    if turn_seconds >= 0.3:
        assert struck_seconds < clean_seconds / 0.85, (
            f"{EPISODES / clean_seconds:.0f}/s, {EPISODES / struck_seconds:.0f}/s"
        )


def test_the_seed_repeats_the_chaos():
    env = with_chaos(Counting(), ChaosSettings(crash=0.2)).with_faults()
    tasks = Counting().tasks("train")

    def run(seed):
        groups = asyncio.run(run_groups(ExpertAgent(), env, tasks, group_size=4, seed=seed))
        return [one.failure for group in groups for one in group.trajectories]

    assert run(3) == run(3) != run(4)
    assert 10 < sum(map(bool, run(3))) < 60


def test_only_training_is_struck(tmp_path):
    """Three of ten steps crash; the evaluation knows nothing of it."""
    run = run_tiny(
        tmp_path / "run", steps=1, env={"name": SIGNALS, "chaos": {"crash": 0.3}}, rollout={"max_failures": 1}
    )
    assert 4 <= records(run, "train")[0]["rollout/failed"] <= 14
    assert [record["evaluate/failed"] for record in records(run, "evaluate")] == [0.0, 0.0]


def test_what_faults_do_not_touch_is_the_environments_own():
    class Remembering(Desk):
        keeps_conversation = True

        def expert_summary(self):
            return Message(role="assistant", content="two of three are done")

    struck = with_chaos(Remembering(), CHAOS).with_faults().spawn()
    assert struck.keeps_conversation
    assert struck.expert_summary().content == "two of three are done"


def test_the_option_is_short_for_settings():
    options, rest = make_parser().parse_known_args(["train", "--chaos", "hang=.05,crash=.1", "encyclopedia-grpo"])
    accept_rest(options, rest)
    config = load_config(options.recipe, parse_chaos(options.chaos))
    assert config.env.chaos == ChaosSettings(hang=0.05, crash=0.1)
    with pytest.raises(ConfigError, match=r"--chaos: 'hang' is not a list of shares"):
        parse_chaos("hang")
    with pytest.raises(
        ConfigError, match=r"env\.chaos\.kill: it would kill the trainer: set env\.workers to 1 or more"
    ):
        load_config("encyclopedia-grpo", parse_chaos("kill=.01"))
    assert load_config("encyclopedia-grpo", ["env.workers=2", *parse_chaos("kill=.01")]).env.workers == 2
