"""A learner's state as a checkpoint of shards keeps it: its tensors apart from all else.

Invariant: the description is the state with each tensor on torch's meta device, which has a shape and no content; a
tensor's name in the shards is its path in the state, `learner/optimizer/adam/state/0/exp_avg`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from turnwise.learner.parallel import Parallel


def describe(state: Mapping[str, object]) -> dict[str, object]:
    """The state without the content of its tensors; those of a sharded learner have the shape of the whole."""
    return _mapped(state, lambda name, tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"))


def named_tensors(state: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """The tensors of a state by their paths in it."""
    found: dict[str, torch.Tensor] = {}

    def keep(name: str, tensor: torch.Tensor) -> torch.Tensor:
        found[name] = tensor
        return tensor

    _mapped(state, keep)
    return found


def read_state(described: Mapping[str, object], shards: Path, parallel: Parallel) -> dict[str, object]:
    """The state of a description, or this rank's part of it."""
    state = _mapped(described, lambda name, tensor: parallel.make_empty(tensor))
    parallel.read_shards(shards, named_tensors(state))
    return state


def _mapped(
    state: Mapping[str, object], change: Callable[[str, torch.Tensor], torch.Tensor], prefix: str = ""
) -> dict[str, object]:
    return {name: _map_value(value, change, f"{prefix}{name}") for name, value in state.items()}


def _map_value(value: object, change: Callable[[str, torch.Tensor], torch.Tensor], path: str) -> object:
    if isinstance(value, torch.Tensor):
        return change(path, value)
    if isinstance(value, Mapping):
        return _mapped(value, change, f"{path}/")
    if isinstance(value, list):
        return [_map_value(inner, change, f"{path}/{place}") for place, inner in enumerate(value)]
    return value
