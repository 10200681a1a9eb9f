"""The smallest of lakes with the smallest of models: training jobs of a second."""

from collections.abc import Mapping

from turnwise.config import Config, check_config
from turnwise.settings import parse_settings

TINY: Mapping[str, object] = {
    "env": {"name": "frozen_lake", "args": {"size": 2, "think": False, "max_actions_per_turn": 1, "max_actions": 2}},
    "model": {"small": {"layers": 1, "width": 32, "heads": 2, "positions": 256, "vocabulary": 512, "induction": False}},
    "sft": {"demonstrations": 8, "batch": 8},
    "steps": 2,
    "rollout": {"groups_per_step": 2, "group_size": 2, "max_turns": 2, "turn_tokens": 8, "context_tokens": 256},
    "learner": {"optimizer": {"lr": 1e-3}},
    "evaluate": {"tasks": 2, "every": 1, "temperature": 1.0},
}


def tiny_data(**sections: object) -> dict[str, object]:
    """A recipe's data; a section given as a mapping is laid over the base's own."""
    data = dict(TINY)
    for name, values in sections.items():
        below = data.get(name)
        data[name] = {**below, **values} if isinstance(below, Mapping) and isinstance(values, Mapping) else values
    return data


def tiny_config(**sections: object) -> Config:
    return check_config(parse_settings(Config, tiny_data(**sections), source="the test"))
