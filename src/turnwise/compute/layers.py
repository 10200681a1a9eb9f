"""What is done to a model's layers while a pass runs: compiled, or computed again in the backward pass.

Invariant: both are undone when the pass is over, and neither touches a module's weights or name: whoever saves the
model, adapts it or samples from it finds it as it was.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType

import torch
import torch._dynamo
import torch._inductor.config
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from turnwise.compute.head import fusing
from turnwise.errors import ConfigError, ModelError

_VARIANTS = 32
"""How often a layer's code may be compiled: with and without gradients, windows and shared prompts, of any length."""

_recompute = functools.partial(checkpoint, use_reentrant=False)


def find_layers(*modules: nn.Module) -> list[GradientCheckpointingLayer]:
    """The blocks that the trunks inside these modules are stacks of."""
    return [layer for module in modules for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]


def find_trunks(*modules: nn.Module) -> list[nn.Module]:
    """The modules inside these that are stacks of such blocks."""
    everyone = [inner for module in modules for inner in module.modules()]
    return [inner for inner in everyone if any(_stacks_layers(child) for child in inner.children())]


def _stacks_layers(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList) and any(isinstance(one, GradientCheckpointingLayer) for one in module)


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


class Compiled:
    """Parts of some modules as torch.compile makes them: one piece of code for all layers that are alike.

    Layers by themselves can always be compiled. Trunks, each as one graph, leave the CPU far less to do for a pass,
    but for that their layers must be traceable from end to end.
    """

    def __init__(self, *modules: nn.Module, whole_trunks: bool) -> None:
        layers = find_layers(*modules)
        parts = find_trunks(*modules) if whole_trunks else layers
        self._calls: list[tuple[nn.Module, Callable[..., object]]] = [
            (part, torch.compile(part._call_impl)) for part in parts
        ]
        # Within a trunk, what is marked as a region is compiled once and called for every layer.
        kinds = {type(layer) for layer in layers} if whole_trunks else set()
        regions = {kind: torch.compiler.nested_compile_region(kind.forward) for kind in kinds}
        self._forwards = [(layer, MethodType(regions[type(layer)], layer)) for layer in layers if regions]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within it, they run as compiled, and so does what follows the LM head."""
        # Regions that take rows of any length cannot be read back from torch's cache: it would try, warn, and compile.
        keeping = torch._inductor.config.fx_graph_cache and not self._forwards
        with (
            torch._dynamo.config.patch(recompile_limit=_VARIANTS),
            torch._inductor.config.patch(fx_graph_cache=keeping),
            fusing(),
        ):
            try:
                for layer, forward in self._forwards:
                    layer.__dict__["forward"] = forward
                for part, call in self._calls:
                    part._compiled_call_impl = call
                yield
            except TorchDynamoException as error:
                cause = getattr(error, "inner_exception", error)
                reason = f"{type(cause).__name__}: {cause}".splitlines()[0]
                raise ModelError(f"torch.compile failed ({reason}): set learner.compile: false") from error
            finally:
                for layer, _ in self._forwards:
                    layer.__dict__.pop("forward", None)
                for part, _ in self._calls:
                    part._compiled_call_impl = None
