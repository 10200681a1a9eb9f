"""A run's stored episodes of a game, to be played again: task, seed and the replies as they were written."""

import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from turnwise.envs.games.game import TextGame
from turnwise.types import Message, Task

_ACTIONS = ("Up", "Down", "Left", "Right")
_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_PLACE = re.compile(r"\((\d), (\d)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One episode of a `trajectories/*.parquet` file, an evaluation's or a training step's."""

    task: Task
    seed: int
    replies: tuple[str, ...]


def read_episodes(files: Iterable[Path]) -> list[Episode]:
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return [
        Episode(
            task=_task(row),
            seed=row["episode_seed"] if "episode_seed" in row else row["luck"],  # older runs: the latter
            replies=tuple(turn["action_text"].replace("<|im_end|>", "") for turn in row["turns"]),
        )
        for row in rows
    ]


def read_reply(reply: str) -> Message:
    """The message that a reply was read as."""
    thought = _THOUGHT.search(reply)
    return Message(
        role="assistant", thinking=thought[1].strip() if thought else "", content=_THOUGHT.sub("", reply).strip()
    )


def read_places(text: str) -> list[tuple[int, int]]:
    """The places that a thought names, in its order."""
    return [(int(row), int(column)) for row, column in _PLACE.findall(text)]


async def play(env: TextGame, episode: Episode, rng: random.Random | None) -> float:
    """Success of random play, one action a turn, or of the solver without an `rng`; same task and same slips."""
    game = env.spawn()
    await game.reset(episode.task, episode.seed)
    while True:
        step = await game.step(game.expert() if rng is None else _say(rng.choice(_ACTIONS)))
        if step.done:
            return step.metrics["success"]


def _say(action: str) -> Message:
    return Message(role="assistant", thinking="x", content=f"<answer>{action}</answer>")


def _task(row: dict[str, object]) -> Task:
    """The task as the run stored it."""
    stored = json.loads(str(row["task"]))
    return Task(id=str(row["task_id"]), seed=stored["seed"], data=stored.get("data", {}))
