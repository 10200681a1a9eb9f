"""One model on several environments beside one model on each: `python examples/mixture.py [PART ...] [a.b=c ...]`.

Trains the recipe `mixture`, then each of its environments alone, with the demonstrations and the groups a step that it
has in the mixture, and prints held-out success after the cold start and after training. PART is `together` or the name
of an environment; all of them by default. What was trained before is not trained again.
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
TOGETHER = "together"


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


def success(run: RunDirectory) -> Mapping[str, tuple[str, str]]:
    """By environment: held-out success in the first and in the last evaluation, each with its 95% interval."""
    evaluations = [record for record in read_metrics(run.metrics) if record["stage"] == "evaluate"]
    keys = [key for key in evaluations[0] if key.startswith("evaluate/env=") and key.endswith("/success")]

    def show(record: Mapping[str, object], key: str) -> str:
        return "{:.3f} [{:.3f}, {:.3f}]".format(*(float(str(record[f"{key}{end}"])) for end in ("", "_low", "_high")))

    return {
        key.removeprefix("evaluate/env=").removesuffix("/success"): (
            show(evaluations[0], key),
            show(evaluations[-1], key),
        )
        for key in keys
    }


def main(parts: Sequence[str] = (), overrides: Sequence[str] = (), recipe: str = "mixture", runs: Path = RUNS) -> None:
    config = load_config(recipe, overrides)
    assert isinstance(config.env, MixtureSettings), "the recipe of a mixture"
    lines = [f"{'trained':14} {'environment':14} {'after the cold start':>24} {'after training':>24}"]
    for part in parts or (TOGETHER, *config.env.mixture):
        chosen = config if part == TOGETHER else alone(config, part)
        run = turnwise.train(config=chosen, run=runs / part / f"seed-{config.seed}", resume="auto")
        for name, (before, after) in success(run).items():
            lines.append(f"{part if part == TOGETHER else 'alone':14} {name:14} {before:>24} {after:>24}")
    print("\n".join(lines))


if __name__ == "__main__":
    words = sys.argv[1:]
    main([word for word in words if "=" not in word], [word for word in words if "=" in word])
