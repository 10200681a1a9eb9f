"""How fast the games are, and whether they keep the contract: `python -m benchmarks.tools.game_speed`.

One core, CPU time. A step is one message with one action through `await env.step`; resets make a new level each and are
counted apart. Levels are made, solved and counted. The target: 20,000 steps a second, 200 Sokoban levels a second,
every one of them solvable.
"""

import asyncio
import random
import time

from rich.console import Console
from rich.table import Table

from turnwise.envs import check_env
from turnwise.envs.games.game import TextGame
from turnwise.envs.games.sokoban.generator import LevelRecipe, generate_level
from turnwise.envs.games.sokoban.solver import Verdict, solve
from turnwise.envs.registry import EnvSettings, make_env
from turnwise.types import Message

GAMES = {
    "bandit": {"max_actions": 10},
    "frozen_lake": {},
    "sokoban": {},
    "countdown": {"max_actions": 10},
    "gymnasium": {},
}
STEPS = 40_000
LEVELS = 1_000


def main() -> None:
    console = Console(highlight=False)
    table = Table("game", "steps/s", "resets/s", "contract", title=f"{STEPS:,} steps each")
    for name, args in GAMES.items():
        env = make_env(EnvSettings(name=name, args={"max_actions_per_turn": 1, **args}))
        assert isinstance(env, TextGame)
        findings = asyncio.run(check_env(env))
        steps, resets = asyncio.run(play(env))
        table.add_row(name, f"{steps:,.0f}", f"{resets:,.0f}", "kept" if not findings else findings[0])
    console.print(table)
    table = Table("levels", "levels/s", "solvable", "distinct", title=f"{LEVELS:,} Sokoban levels each")
    for recipe in (
        LevelRecipe(size=6, boxes=1, min_moves=2, max_moves=10),
        LevelRecipe(size=8, boxes=2, min_moves=5, max_moves=20),
    ):
        began = time.process_time()
        levels = [generate_level(recipe, seed) for seed in range(LEVELS)]
        rate = LEVELS / (time.process_time() - began)
        solvable = sum(solve(level).verdict is Verdict.SOLVED for level in levels)
        distinct = len({level.text for level in levels})
        table.add_row(
            f"{recipe.size} × {recipe.size}, {recipe.boxes} box(es)", f"{rate:,.0f}", str(solvable), str(distinct)
        )
    console.print(table)


async def play(env: TextGame) -> tuple[float, float]:
    """Steps and resets per second of CPU time, over tasks that differ and actions that are drawn at random."""
    rng = random.Random(0)
    tasks = env.tasks("train")
    live = env.spawn()
    await live.reset(tasks[0], 0)
    messages = [
        Message(role="assistant", thinking="Go on.", content=f"<answer>{live.wander(rng)}</answer>") for _ in range(64)
    ]
    began, resetting, episodes, over = time.process_time(), 0.0, 0, False
    for number in range(STEPS):
        if over:
            episodes += 1
            before = time.process_time()
            await live.reset(tasks[episodes % len(tasks)], episodes)
            resetting += time.process_time() - before
        over = (await live.step(messages[number % len(messages)])).done
    return STEPS / (time.process_time() - began - resetting), episodes / resetting


if __name__ == "__main__":
    main()
