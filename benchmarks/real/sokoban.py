"""What a model on Sokoban, 6 x 6 with one box, reads and plans: its episodes are replayed and its thoughts checked.

A thought names three places, so whether it is true can be counted; random play on the same levels is beside it. The
solver solves all of them: a level's shortest solution is within the actions that an episode allows.
"""

import asyncio
import random
from collections import Counter
from pathlib import Path

from benchmarks.real.episodes import Episode, play, read_episodes, read_places, read_reply
from turnwise.envs.games.sokoban.env import Sokoban
from turnwise.evaluation.intervals import wilson_interval

_KINDS = ("player", "box", "target")


def check_levels(*files: Path) -> dict[str, object]:
    """The figures of a run's `trajectories/*.parquet` files, evaluations or training steps."""
    return asyncio.run(_measure(Sokoban(size=6, boxes=1), read_episodes(files)))


async def _measure(env: Sokoban, episodes: list[Episode]) -> dict[str, object]:
    counts: Counter[str] = Counter()
    by_length: dict[int, list[int]] = {}
    for episode in episodes:
        found, shortest = await _replay(env, episode)
        counts += found
        by_length.setdefault(shortest, []).append(found["won"])
    rng = random.Random(0)
    chance = [await play(env, episode, rng) for episode in episodes]
    low, high = wilson_interval(counts["won"], len(episodes))
    later = counts["turns"] - len(episodes)
    return {
        "success": round(counts["won"] / len(episodes), 4),
        "success_low": round(low, 4),
        "success_high": round(high, 4),
        **{f"thoughts_with_the_{kind}s_true_place": round(counts[kind] / counts["turns"], 3) for kind in _KINDS},
        "players_true_place_in_first_turns": round(counts["player first"] / len(episodes), 3),
        "players_true_place_in_later_turns": _share(counts["player"] - counts["player first"], later),
        "later_turns": later,
        "first_turns_that_begin_a_shortest_solution": round(counts["begins"] / len(episodes), 3),
        "random_play_on_the_same_levels": round(sum(chance) / len(chance), 4),
        "by_moves_of_the_shortest_solution": {
            str(length): {"levels": len(won), "success": round(sum(won) / len(won), 3)}
            for length, won in sorted(by_length.items())
        },
    }


async def _replay(env: Sokoban, episode: Episode) -> tuple[Counter[str], int]:
    """Plays an episode's replies again: what is true of each, and the length of the shortest solution."""
    counts: Counter[str] = Counter()
    game = env.spawn()
    assert isinstance(game, Sokoban)
    await game.reset(episode.task, episode.seed)
    shortest = len(game.plan())
    for number, reply in enumerate(episode.replies):
        places = read_places(reply)
        counts["turns"] += 1
        for place, kind in enumerate(_KINDS):
            counts[kind] += places[place : place + 1] == [game.facts()[kind]]
        if number == 0:
            counts["player first"] = counts["player"]
        left = len(game.plan())
        step = await game.step(read_reply(reply))
        if number == 0:
            played = round(step.metrics["actions"])
            counts["begins"] += bool(step.metrics["success"]) or (played > 0 and _left(game) == left - played)
        if step.done:
            counts["won"] += int(step.metrics["success"])
            break
    return counts, shortest


def _share(part: int, whole: int) -> float:
    return round(part / whole, 3) if whole else 0.0


def _left(game: Sokoban) -> int:
    """Moves that the shortest solution still takes; many where there is none."""
    hopeless = "cannot be solved" in game.explain()
    return 1000 if hopeless else len(game.plan())
