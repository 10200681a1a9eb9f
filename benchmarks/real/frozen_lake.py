"""What a model on FrozenLake reads and plays: its episodes are replayed, and each thought and step is checked.

A thought names the player's and the goal's place, so whether it is true can be counted; a step is compared with the
solver's from the same cell. Random play and the solver on the same maps, with the same slips, are beside it.
"""

import asyncio
import json
import random
import re
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from turnwise.envs.games.frozen_lake import FrozenLake
from turnwise.types import Message, Task

_ACTIONS = ("Up", "Down", "Left", "Right")
_TURNS = 10
_ANSWER = re.compile(r"<answer>\s*(\w+)")


def check_episodes(*files: Path) -> dict[str, object]:
    """The figures of a run's `trajectories/*.parquet` files, evaluations or training steps, of 4 x 4 slippery maps."""
    env = FrozenLake(size=4, slippery=True, test_tasks=512)
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    episodes = [(_task(row), _episode_seed(row), row["turns"]) for row in rows]
    return asyncio.run(_measure(env, episodes)) | {"same_first_action": _same_first_action(rows)}


def _task(row: dict[str, object]) -> Task:
    """The task as the run stored it."""
    stored = json.loads(str(row["task"]))
    return Task(id=str(row["task_id"]), seed=stored["seed"], data=stored.get("data", {}))


def _same_first_action(rows: list[dict[str, object]]) -> float:
    """The share of a task's episodes that begin with its most frequent action, a mean over tasks."""
    first: dict[object, Counter[str]] = {}
    for row in rows:
        turns = row["turns"]
        assert isinstance(turns, list)
        answer = _ANSWER.search(turns[0]["action_text"])
        first.setdefault(row["task_id"], Counter())[answer[1] if answer else ""] += 1
    return round(sum(max(counts.values()) / counts.total() for counts in first.values()) / len(first), 3)


def _episode_seed(row: dict[str, object]) -> int:
    seed = row["episode_seed"] if "episode_seed" in row else row["luck"]  # older runs: the latter
    assert isinstance(seed, int)
    return seed


async def _measure(env: FrozenLake, episodes: list[tuple[Task, int, list[dict[str, str]]]]) -> dict[str, object]:
    counts: Counter[str] = Counter()
    for task, seed, turns in episodes:
        counts += await _replay(env, task, seed, [turn["action_text"] for turn in turns])
    rng = random.Random(0)
    solver = [await _play(env, task, seed, None) for task, seed, _ in episodes]
    chance = [await _play(env, task, seed, rng) for task, seed, _ in episodes]
    return {
        "success": round(counts["won"] / len(episodes), 4),
        "thoughts_with_the_players_true_place": round(counts["player"] / counts["turns"], 3),
        "thoughts_with_the_goals_true_place": round(counts["goal"] / counts["turns"], 3),
        "steps_as_the_solver": round(counts["step"] / counts["turns"], 3),
        "solver_on_the_same_maps_and_slips": round(sum(solver) / len(solver), 4),
        "random_play_on_the_same_maps_and_slips": round(sum(chance) / len(chance), 4),
    }


async def _replay(env: FrozenLake, task: Task, seed: int, replies: list[str]) -> Counter[str]:
    """Plays an episode's replies again and counts what is true of each."""
    counts: Counter[str] = Counter()
    game = env.spawn()
    assert isinstance(game, FrozenLake)
    await game.reset(task, seed)
    for reply in replies:
        text = reply.replace("<|im_end|>", "")
        facts, best = game.facts(), game.plan()[0]
        places = [(int(row), int(column)) for row, column in re.findall(r"\((\d), (\d)\)", text)]
        answer = _ANSWER.search(text)
        counts["turns"] += 1
        counts["player"] += places[:1] == [facts["player"]]
        counts["goal"] += places[1:2] == [facts["goal"]]
        counts["step"] += answer is not None and answer[1] == best
        thought = re.search(r"<think>(.*?)</think>", text, re.DOTALL)
        content = re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL).strip()
        message = Message(role="assistant", thinking=thought[1].strip() if thought else "", content=content)
        step = await game.step(message)
        if step.done:
            counts["won"] += int(step.metrics["success"])
            break
    return counts


async def _play(env: FrozenLake, task: Task, seed: int, rng: random.Random | None) -> float:
    """Success of random play, or of the solver without an `rng`."""
    game = env.spawn()
    await game.reset(task, seed)
    for _ in range(_TURNS):
        action = game.expert() if rng is None else _say(rng.choice(_ACTIONS))
        step = await game.step(action)
        if step.done:
            return step.metrics["success"]
    return 0.0


def _say(action: str) -> Message:
    return Message(role="assistant", thinking="x", content=f"<answer>{action}</answer>")
