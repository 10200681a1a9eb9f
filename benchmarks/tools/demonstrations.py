"""How often a recipe's demonstrations succeed, in what time: `python -m benchmarks.tools.demonstrations RECIPE`.

The environment's expert, with the recipe's own noise, plays held-out tasks under the recipe's limits. A cold start that
is far below this has not learnt to imitate; one that is equal to it leaves the rest to reinforcement learning.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

from turnwise.agents import ExpertAgent
from turnwise.config import Config, load_config
from turnwise.envs.registry import make_env
from turnwise.evaluation import wilson_interval
from turnwise.rollout import Limits, run_episode
from turnwise.seeds import derive_seed
from turnwise.types import StopReason


async def play(config: Config, count: int) -> tuple[int, int, float]:
    """Successes, the episodes that did not fail, and the seconds that one took."""
    env = make_env(config.env)
    limits = Limits(max_turns=config.rollout.max_turns)
    won = played = 0
    tasks = list(env.tasks(config.evaluate.split))[:count]
    began = time.perf_counter()
    for task in tasks:
        seed = derive_seed(config.seed, "demonstrations", task.id)
        episode = await run_episode(ExpertAgent(), env.spawn_for(task), task, episode_seed=seed, limits=limits)
        played += episode.stop is not StopReason.ENV_FAILED
        won += episode.success
    return won, played, (time.perf_counter() - began) / len(tasks)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="a.b=c")
    parser.add_argument("--episodes", type=int, default=64)
    options = parser.parse_args(argv)
    won, played, seconds = asyncio.run(play(load_config(options.recipe, options.overrides), options.episodes))
    low, high = wilson_interval(won, played)
    share = f"success {won / played:.3f} [{low:.3f}, {high:.3f}]"
    sys.stdout.write(f"{share} in {played} episodes of {1000 * seconds:.1f} ms\n")


if __name__ == "__main__":
    main()
