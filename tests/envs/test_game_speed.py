"""Games must never be what a rollout waits for: steps per second on one core, with room for a busy machine."""

import asyncio
import time

import pytest

from turnwise.envs import EnvSettings, make_env
from turnwise.types import Message

FLOOR = 5_000
"""A quarter of what is aimed at, 20,000: other processes may be running."""
STEPS = 3_000


@pytest.mark.parametrize(
    ("name", "args", "answers"),
    [
        ("bandit", {}, ("Dragon", "phoenix")),
        ("frozen_lake", {}, ("Up", "Right", "Down", "Left")),
        ("frozen_lake", {"slippery": False, "size": 8, "max_actions": 30}, ("Up", "Right", "Down", "Left")),
        ("countdown", {"max_actions": 100}, ("12 + 57 * 9 - 50", "(50 - 9) * 21")),
    ],
)
def test_a_game_steps_faster_than_any_model_samples(name, args, answers):
    env = make_env(EnvSettings(name=name, args=args))
    messages = [Message(role="assistant", content=f"<answer>{one}</answer>", thinking="So.") for one in answers]
    task = env.tasks("train")[0]

    async def play():
        game = env.spawn()
        await game.reset(task, 0)
        started = time.process_time()
        for number in range(STEPS):
            if (await game.step(messages[number % len(messages)])).done:
                await game.reset(task, number)
        return STEPS / (time.process_time() - started)

    assert max(asyncio.run(play()) for _ in range(3)) > FLOOR
