"""Compiling and checkpointing a model's layers for the time of a pass.

Invariant: both are undone after the pass, and neither changes a module's weights or names, so that the model can be
saved, adapted and sampled from as before.
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

from turnwise.compute.attention import same_arguments
from turnwise.compute.head import compiled_tiles
from turnwise.errors import ConfigError, ModelError

_VARIANTS = 32
"""Recompilation limit of a layer: with and without gradients, windows and shared prompts, of any length."""


def find_layers(*modules: nn.Module) -> list[GradientCheckpointingLayer]:
    """The decoder layers inside these modules."""
    return [layer for module in modules for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]


def find_backbones(*modules: nn.Module) -> list[nn.Module]:
    """The modules inside these that stack decoder layers."""
    inside = [inner for module in modules for inner in module.modules()]
    return [inner for inner in inside if any(_stacks_layers(child) for child in inner.children())]


def _stacks_layers(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList) and any(isinstance(one, GradientCheckpointingLayer) for one in module)


def require_layers(model: nn.Module, *, setting: str) -> None:
    """Raises if a model has no known layers for a setting to act on."""
    if not find_layers(model):
        raise ConfigError(f"{setting}: {type(model).__name__} has no layers of a known kind: set it to false")


@contextmanager
def activation_checkpointing(*modules: nn.Module) -> Iterator[None]:
    """Makes layers save only their input, and recompute the rest in the backward pass, which must run inside it too.

    transformers checkpoints layers in training mode alone, and dropout reads the same flag: so a layer that is in
    evaluation mode is shown in training mode, and runs in its own.
    """
    layers = find_layers(*modules)
    before = [
        (layer.gradient_checkpointing, layer.__dict__.get("_gradient_checkpointing_func"), layer.training)
        for layer in layers
    ]
    try:
        for layer in layers:
            layer.gradient_checkpointing = True
            layer._gradient_checkpointing_func = functools.partial(_recompute, layer, layer.training)
            layer.training = True
        yield
    finally:
        for layer, (was_on, by, training) in zip(layers, before, strict=True):
            layer.gradient_checkpointing = was_on
            layer._gradient_checkpointing_func = by
            layer.training = training


def _recompute(layer: nn.Module, training: bool, forward: Callable[..., object], *args: object) -> object:
    def run(*inputs: object) -> object:
        layer.training = training
        try:
            return forward(*inputs)
        finally:
            layer.training = True

    result: object = checkpoint(run, *args, use_reentrant=False)
    return result


class Compiled:
    """Compiled layers or backbones of some modules; layers of one kind share their code.

    Single layers can always be compiled, once for all that are alike, and torch keeps their code on disk for the next
    run. A backbone as one graph takes minutes to compile and costs the CPU less per pass, which counts where
    micro-batches are small; its layers must be traceable from end to end.
    """

    def __init__(self, *modules: nn.Module, whole_backbones: bool, setting: str = "compile") -> None:
        """`setting` turns compilation off: an error names it."""
        self._setting = setting
        layers = find_layers(*modules)
        parts = find_backbones(*modules) if whole_backbones else layers
        self._calls: list[tuple[nn.Module, Callable[..., object]]] = [
            (part, torch.compile(part._call_impl) if whole_backbones else _compile_layer(part)) for part in parts
        ]
        # Within a backbone, a region is compiled once and called for every layer.
        kinds = {type(layer) for layer in layers} if whole_backbones else set()
        regions = {kind: torch.compiler.nested_compile_region(kind.forward) for kind in kinds}
        self._forwards = [(layer, MethodType(regions[type(layer)], layer)) for layer in layers if regions]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Runs the modules compiled, and the work after the LM head too."""
        # Regions with dynamic lengths cannot be loaded from torch's cache: it would try, warn, and compile.
        use_cache = torch._inductor.config.fx_graph_cache and not self._forwards
        with (
            torch._dynamo.config.patch(recompile_limit=_VARIANTS),
            torch._inductor.config.patch(fx_graph_cache=use_cache),
            compiled_tiles(),
            same_arguments(),
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
                raise ModelError(f"torch.compile failed ({reason}): set {self._setting}: false") from error
            finally:
                for layer, _ in self._forwards:
                    layer.__dict__.pop("forward", None)
                for part, _ in self._calls:
                    part._compiled_call_impl = None


def _compile_layer(layer: nn.Module) -> Callable[..., object]:
    """A layer's call, compiled for any number of tokens: torch would compile for the first number it meets."""
    compiled = torch.compile(layer._call_impl)

    def call(*args: object, **kwargs: object) -> object:
        for tensor in torch.utils._pytree.tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and tensor.dim() > 1:
                torch._dynamo.maybe_mark_dynamic(tensor, tensor.dim() - 2)
        return compiled(*args, **kwargs)

    return call
