"""A wrapped environment: what is not overridden is the inner one's own."""

import asyncio
import inspect

from turnwise.envs.base import Env
from turnwise.envs.games.bandit import Bandit
from turnwise.envs.games.corridor import Corridor
from turnwise.envs.mixture import ScaledRewards
from turnwise.envs.wrapper import WrappedEnv
from turnwise.types import Message, Task

BEFORE = {
    "spawn",
    "spawn_for",
    "episode_limits",
    "with_faults",
}
"""What is asked before an episode has an environment of its own."""


def test_everything_that_an_episode_can_ask_is_passed_on():
    asked = {name for name, _ in inspect.getmembers(Env) if not name.startswith("_")} - BEFORE
    assert asked - vars(WrappedEnv).keys() == set()


def test_an_episode_is_the_inner_ones():
    plain, wrapped = Corridor(think=False), WrappedEnv(Corridor(think=False))
    task = Task(id="one", seed=1)

    async def play(env):
        seen = [await env.reset(task, 0)]
        for _ in range(3):
            seen.append((env.state_key(), env.expert(), await env.step(env.expert())))
        return seen, env.expert_summary()

    assert asyncio.run(play(wrapped)) == asyncio.run(play(plain))


def test_a_fork_goes_on_by_itself():
    env = ScaledRewards(Bandit(think=False, max_actions=3), 2.0)
    asyncio.run(env.reset(Task(id="one"), 0))
    twin = env.fork()
    pull = Message(role="assistant", content="<answer>Phoenix</answer>")
    first = asyncio.run(env.step(pull))
    assert asyncio.run(twin.step(pull)) == first
    assert 0.2 <= first.rewards["game"] <= 0.3, "twice what the low arm pays"
