"""Plays an episode of an environment to its end, by its expert or by given commands."""

import asyncio

import pytest

from turnwise.types import Message


async def _play(env, task, commands=None, episode_seed=0):
    episode = env.spawn()
    opening = await episode.reset(task, episode_seed)
    steps = []
    for number in range(200 if commands is None else len(commands)):
        if commands is None:
            message = episode.expert()
        else:
            message = Message(role="assistant", content=f"<answer>{commands[number]}</answer>")
        steps.append(await episode.step(message))
        if steps[-1].done:
            break
    await episode.close()
    return opening, steps


@pytest.fixture
def play():
    """`opening, steps = play(env, task)`."""
    return lambda *args, **kwargs: asyncio.run(_play(*args, **kwargs))
