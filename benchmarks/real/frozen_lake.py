"""What a model on FrozenLake reads and plays: its episodes are replayed, and each thought and step is checked.

A thought names the player's and the goal's place, so whether it is true can be counted; a step is compared with the
solver's from the same cell. Random play and the solver on the same maps, with the same slips, are beside it.
"""

import asyncio
import random
import re
from collections import Counter
from pathlib import Path

from benchmarks.real.episodes import Episode, play, read_episodes, read_places, read_reply
from turnwise.envs.games.frozen_lake import FrozenLake
from turnwise.evaluation.intervals import wilson_interval

_ANSWER = re.compile(r"<answer>\s*(\w+)")


def check_episodes(*files: Path) -> dict[str, object]:
    """The figures of a run's `trajectories/*.parquet` files, evaluations or training steps, of 4 x 4 slippery maps."""
    episodes = read_episodes(files)
    env = FrozenLake(size=4, slippery=True, expert_reasons=True)
    return asyncio.run(_measure(env, episodes)) | {"same_first_action": _same_first_action(episodes)}


def _same_first_action(episodes: list[Episode]) -> float:
    """The share of a task's episodes that begin with its most frequent action, a mean over tasks."""
    first: dict[str, Counter[str]] = {}
    for episode in episodes:
        answer = _ANSWER.search(episode.replies[0])
        first.setdefault(episode.task.id, Counter())[answer[1] if answer else ""] += 1
    return round(sum(max(counts.values()) / counts.total() for counts in first.values()) / len(first), 3)


async def _measure(env: FrozenLake, episodes: list[Episode]) -> dict[str, object]:
    counts: Counter[str] = Counter()
    for episode in episodes:
        counts += await _replay(env, episode)
    rng = random.Random(0)
    solver = [await play(env, episode, None) for episode in episodes]
    chance = [await play(env, episode, rng) for episode in episodes]
    low, high = wilson_interval(counts["won"], len(episodes))
    return {
        "success": round(counts["won"] / len(episodes), 4),
        "success_low": round(low, 4),
        "success_high": round(high, 4),
        "thoughts_with_the_players_true_place": round(counts["player"] / counts["turns"], 3),
        "thoughts_with_the_goals_true_place": round(counts["goal"] / counts["turns"], 3),
        "thoughts_with_all_reasons_true": round(counts["reasons"] / counts["turns"], 3),
        "steps_as_the_solver": round(counts["step"] / counts["turns"], 3),
        "solver_on_the_same_maps_and_slips": round(sum(solver) / len(solver), 4),
        "random_play_on_the_same_maps_and_slips": round(sum(chance) / len(chance), 4),
    }


async def _replay(env: FrozenLake, episode: Episode) -> Counter[str]:
    """Plays an episode's replies again and counts what is true of each."""
    counts: Counter[str] = Counter()
    game = env.spawn()
    assert isinstance(game, FrozenLake)
    await game.reset(episode.task, episode.seed)
    for reply in episode.replies:
        facts, best, message = game.facts(), game.plan()[0], read_reply(reply)
        places, answer = read_places(reply), _ANSWER.search(reply)
        counts["turns"] += 1
        counts["player"] += places[:1] == [facts["player"]]
        counts["goal"] += places[1:2] == [facts["goal"]]
        counts["reasons"] += message.thinking == game.explain()
        counts["step"] += answer is not None and answer[1] == best
        step = await game.step(message)
        if step.done:
            counts["won"] += int(step.metrics["success"])
            break
    return counts
