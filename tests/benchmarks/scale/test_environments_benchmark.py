"""The benchmark of environments on other nodes: what it counts, as far as that needs no Ray."""

import asyncio
import time

import pytest

from benchmarks.scale import environments
from benchmarks.scale.slow import Idle, StandingVowels
from turnwise.agents import ScriptedAgent
from turnwise.rollout import run_episode


class Pausing(Idle):
    async def step(self, message):
        await asyncio.sleep(0.02)
        return await super().step(message)


def test_a_step_is_counted_by_itself_and_among_others():
    assert asyncio.run(environments._play(Pausing(), 1, 3)) == pytest.approx(20, rel=0.5)
    assert asyncio.run(environments._play(Pausing(), 10, 3)) == pytest.approx(2, rel=0.8), "ten at once"


def test_tables_have_what_was_measured():
    assert environments.table_of_steps({"here": {1: 0.5, 64: 0.25}}).splitlines()[2] == "| here | 0.500 | 0.250 |"
    table = environments.table_of_training({1: (4, 3.0), 2: (8, 1.5)})
    assert table.splitlines()[3] == "| 2 | 8 | 1.50 | 2.00 x |"


def test_vowels_that_stand_still_do_so_one_after_another():
    async def play():
        episodes = [run_episode(ScriptedAgent(replies=["a"] * 5), env, task, episode_seed=0) for env, task in made]
        began = time.monotonic()
        await asyncio.gather(*episodes)
        return time.monotonic() - began

    env = StandingVowels(seconds=0.01)
    made = [(env.spawn(), task) for task in env.tasks("train")[:3]]
    assert asyncio.run(play()) >= 0.15
