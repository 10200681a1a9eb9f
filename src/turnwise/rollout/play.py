"""A person plays one episode: the loop that trains, with a person in the policy's place."""

import asyncio
import sys

from rich.console import Console
from rich.text import Text

from turnwise.agents.person import Ask, PersonAgent, Show, list_channels
from turnwise.envs.base import Env
from turnwise.errors import EnvError
from turnwise.rollout.episode import run_episode
from turnwise.rollout.limits import Limits
from turnwise.types import StopReason, Task


async def play(env: Env, task: Task, episode_seed: int, ask: Ask, show: Show) -> float:
    """Plays one episode of `task`, without a limit on turns, and returns the sum of its rewards."""
    person = PersonAgent(ask=ask, show=show)
    limits = Limits(max_turns=sys.maxsize)
    episode = await run_episode(person, env.spawn_for(task), task, limits=limits, episode_seed=episode_seed)
    if episode.stop is StopReason.ENV_FAILED:
        raise EnvError(f"the episode failed, {episode.failure}; try `turnwise check`")
    channels = list_channels(episode.rewards)
    show(Text(f"Reward {episode.reward:g}{f' ({channels})' if channels else ''}", style="bold"))
    return episode.reward


def play_in_terminal(env: Env, task_index: int = 0, split: str = "train", episode_seed: int = 0) -> float:
    """Plays one task of a split in this terminal: `play_in_terminal(env, task_index=3, split="test")`."""
    tasks = env.tasks(split)
    if not 0 <= task_index < len(tasks):
        raise EnvError(f"no task {task_index} in '{split}': it has {len(tasks)}, counted from 0")
    console = Console()
    task = tasks[task_index]
    console.print(Text(f"Task {task.id}, episode seed {episode_seed}", style="bold"))
    return asyncio.run(play(env, task, episode_seed, lambda: console.input("> "), console.print))
