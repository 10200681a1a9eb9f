"""Algorithms by name: `algorithm: gspo` in a recipe or an override, `turnwise.train(algorithm="gspo")` in Python.

Invariant: a name is a layer of settings beneath those of the place that names it, and above the recipes that place
extends; a recipe that names another algorithm leaves nothing of the first.

Departures: `dapo` is its clip-higher, dynamic sampling and token-level loss; its penalty of overlong answers is a
reward, and so the environment's. `starpo` is StarPO by PPO, as RAGEN runs it; by GRPO it is `grpo`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from turnwise.errors import ConfigError
from turnwise.settings import Layer, Recipe, Settings, show_value
from turnwise.settings.explain import tell_familiar
from turnwise.spelling import suggest

Preset: TypeAlias = Mapping[str, Mapping[str, object]]
ALGORITHM = "algorithm"
"""The key by which a recipe names one."""
_CLIP = {"form": "clip", "ratio": "token", "aggregation": "token", "fixed_length": None}
"""PPO's loss, spelled out: it replaces whatever an extended recipe has."""


def _preset(estimator: str, loss: Mapping[str, object] | None = None, **sections: Mapping[str, object]) -> Preset:
    credit = {"estimator": estimator, **sections.pop("credit", {})}
    return {"credit": credit, "loss": {**_CLIP, **(loss or {})}, **sections}


ALGORITHMS: Mapping[str, Preset] = {
    "ppo": _preset("gae"),
    "turn-ppo": _preset("turn-gae"),
    "bilevel-ppo": _preset("bilevel-gae"),
    "grpo": _preset("grpo"),
    # 8 turns of 256 tokens, the default limits
    "dr-grpo": _preset("dr-grpo", {"aggregation": "fixed", "fixed_length": 2048}),
    "dapo": _preset("grpo", {"clip_high": 0.28}, stability={"filter": {"rule": "nonzero", "refill": 10}}),
    "gspo": _preset(
        "grpo",
        {"form": "gspo", "ratio": "trajectory", "aggregation": "trajectory", "clip_low": 3e-4, "clip_high": 4e-4},
    ),
    "cispo": _preset("grpo", {"form": "cispo"}),
    "gigpo": _preset("gigpo", credit={"turn_gamma": 0.95}),
    "rloo": _preset("rloo"),
    "reward-to-go": _preset("reward-to-go"),
    "reinforce++": _preset("reinforce++"),
    "reinforce++-baseline": _preset("reinforce++-baseline"),
    "starpo": _preset("gae", {"kl_coef": 0.001, "entropy_coef": 0.001}),
    "starpo-s": _preset("gae", {"entropy_coef": 0.001}, stability={"mode": "always"}),
}
"""Short names for what a recipe spells out."""
_SPELLINGS = (("-plus-plus", "++"), ("reinforce-pp", "reinforce++"), ("drgrpo", "dr-grpo"))


def find_algorithm(name: str) -> str:
    """The name as `ALGORITHMS` has it: `StarPO_S` is `starpo-s`, `reinforce-pp` is `reinforce++`."""
    plain = name.lower().replace("_", "-")
    for written, meant in _SPELLINGS:
        plain = plain.replace(written, meant)
    if plain in ALGORITHMS:
        return plain
    raise ConfigError(f"{ALGORITHM}: '{name}' is unknown{suggest(name, ALGORITHMS)}; there are {', '.join(ALGORITHMS)}")


def apply_algorithm(cls: type[Settings], recipe: Recipe) -> Recipe:
    """A recipe with the settings of the algorithm that its last layer names, beneath that layer's own."""
    layers = [replace(layer, data={k: v for k, v in layer.data.items() if k != ALGORITHM}) for layer in recipe.layers]
    chosen = [place for place, layer in enumerate(recipe.layers) if ALGORITHM in layer.data]
    name = recipe.layers[chosen[-1]].data[ALGORITHM] if chosen else None
    if name is None:
        return Recipe(layers)
    origin = recipe.layers[chosen[-1]].origin
    if isinstance(name, Mapping):
        for key in name:  # verl's section of that name
            ours = cls.familiar_names.get(str(key))
            if ours:
                raise ConfigError(
                    f"{ALGORITHM}.{key}: unknown key in {origin}; {ALGORITHM}.{key} is {tell_familiar(ours)}"
                )
    if not isinstance(name, str):
        raise ConfigError(f"{ALGORITHM}: expected the name of one, such as grpo, got {show_value(name)} in {origin}")
    found = find_algorithm(name)
    return Recipe([*layers[: chosen[-1]], Layer(f"{ALGORITHM} {found}", ALGORITHMS[found]), *layers[chosen[-1] :]])
