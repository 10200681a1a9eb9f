"""One model on several environments beside one model on each: `python examples/mixture.py [RECIPE] [a.b=c ...]`.

Trains the recipe's mixture, then each of its environments alone, with the demonstrations and the groups a step that it
has in the mixture, and prints held-out success after the cold start and after training.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import turnwise
from turnwise import Config
from turnwise.config import load_config
from turnwise.envs.registry import MixtureSettings
from turnwise.rollout.mixture_sampler import share_out
from turnwise.runs import RunDirectory, read_metrics

RUNS = Path("runs/mixture-compared")


def alone(config: Config, name: str) -> Config:
    """The same experiment with one of the environments, and its share of the groups."""
    assert isinstance(config.env, MixtureSettings), "the recipe of a mixture"
    weights = {each: entry.weight for each, entry in config.env.mixture.items()}
    groups = share_out(config.rollout.groups_per_step, weights)[name]
    return config.model_copy(
        update={
            "env": MixtureSettings(mixture={name: config.env.mixture[name]}),
            "rollout": config.rollout.model_copy(update={"groups_per_step": groups}),
        }
    )


def success(run: RunDirectory) -> Mapping[str, tuple[float, float]]:
    """By environment: held-out success in the first and in the last evaluation."""
    evaluations = [record for record in read_metrics(run.metrics) if record["stage"] == "evaluate"]
    found = {}
    for key in evaluations[0]:
        if key.startswith("evaluate/env=") and key.endswith("/success"):
            first, last = (float(str(record[key])) for record in (evaluations[0], evaluations[-1]))
            found[key.split("=")[1].split("/")[0]] = (first, last)
    return found


def main(recipe: str = "mixture", overrides: Sequence[str] = (), runs: Path = RUNS) -> None:
    config = load_config(recipe, overrides)
    assert isinstance(config.env, MixtureSettings), "the recipe of a mixture"
    together = success(turnwise.train(config=config, run=runs / "together", resume="auto"))
    print(f"{'environment':16} {'in the mixture':>20} {'alone':>20}")
    for name in config.env.mixture:
        single = success(turnwise.train(config=alone(config, name), run=runs / name, resume="auto"))
        figures = (f"{before:.3f} → {after:.3f}" for before, after in (together[name], single[name]))
        print(f"{name:16} {next(figures):>20} {next(figures):>20}")


if __name__ == "__main__":
    recipes = [word for word in sys.argv[1:] if "=" not in word]
    main(*recipes[:1], overrides=[word for word in sys.argv[1:] if "=" in word])
