"""How often a recipe's demonstrations succeed: `python -m benchmarks.tools.demonstrations RECIPE`.

The environment's expert, with the recipe's own noise, plays held-out tasks under the recipe's limits. A cold start that
is far below this has not learnt to imitate; one that is equal to it leaves the rest to reinforcement learning.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from turnwise.agents import ExpertAgent
from turnwise.config import Config, load_config
from turnwise.envs.registry import make_env
from turnwise.evaluation import wilson_interval
from turnwise.rollout import Limits, run_episode
from turnwise.seeds import derive_seed
from turnwise.types import StopReason


async def play(config: Config, count: int) -> tuple[int, int]:
    """Successes among the episodes that did not fail."""
    env = make_env(config.env)
    limits = Limits(max_turns=config.rollout.max_turns)
    won = played = 0
    for task in list(env.tasks("test"))[:count]:
        seed = derive_seed(config.seed, "demonstrations", task.id)
        episode = await run_episode(ExpertAgent(), env.spawn_for(task), task, episode_seed=seed, limits=limits)
        played += episode.stop is not StopReason.ENV_FAILED
        won += episode.success
    return won, played


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="a.b=c")
    parser.add_argument("--episodes", type=int, default=64)
    options = parser.parse_args(argv)
    won, played = asyncio.run(play(load_config(options.recipe, options.overrides), options.episodes))
    low, high = wilson_interval(won, played)
    sys.stdout.write(f"success {won / played:.3f} [{low:.3f}, {high:.3f}] in {played} episodes\n")


if __name__ == "__main__":
    main()
