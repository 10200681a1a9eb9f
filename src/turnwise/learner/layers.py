"""What is done to a model's layers while a pass runs: compiled, or computed again in the backward pass.

Invariant: both are undone when the pass is over, and neither touches a module's weights, forward or name: whoever saves
the model, adapts it or samples from it finds it as it was.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch._dynamo
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from turnwise.errors import ConfigError
from turnwise.learner.head import fusing

_VARIANTS = 32
"""How often a layer's code may be compiled: with and without gradients, windows and shared prompts, of any length."""

_recompute = functools.partial(checkpoint, use_reentrant=False)


def find_layers(*modules: nn.Module) -> list[GradientCheckpointingLayer]:
    """The blocks that the trunks inside these modules are stacks of."""
    return [layer for module in modules for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]


def require_layers(model: nn.Module, option: str) -> None:
    """Refuses an option that acts on layers where a model has none that are known."""
    if not find_layers(model):
        raise ConfigError(
            f"learner.{option}: {type(model).__name__} has no layers that are known here: set it to false"
        )


@contextmanager
def recomputing(*modules: nn.Module) -> Iterator[None]:
    """Within it, a layer that trains keeps its input alone, and is run again when its gradient is asked for.

    Gradients must be asked for within it too.
    """
    layers = find_layers(*modules)
    before = [(layer.gradient_checkpointing, layer.__dict__.get("_gradient_checkpointing_func")) for layer in layers]
    try:
        for layer in layers:
            layer.gradient_checkpointing = True
            layer._gradient_checkpointing_func = _recompute
        yield
    finally:
        for layer, (was_on, by) in zip(layers, before, strict=True):
            layer.gradient_checkpointing = was_on
            layer._gradient_checkpointing_func = by


class CompiledLayers:
    """The layers of some modules as torch.compile makes them: one piece of code for all that are alike."""

    def __init__(self, *modules: nn.Module) -> None:
        self._calls: list[tuple[GradientCheckpointingLayer, Callable[..., object]]] = [
            (layer, torch.compile(layer._call_impl)) for layer in find_layers(*modules)
        ]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within it, the layers run as compiled, and so does what follows the LM head."""
        with torch._dynamo.config.patch(recompile_limit=_VARIANTS), fusing():
            try:
                for layer, call in self._calls:
                    layer._compiled_call_impl = call
                yield
            finally:
                for layer, _ in self._calls:
                    layer._compiled_call_impl = None
