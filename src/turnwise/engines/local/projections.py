"""Linear layers of one input, run as one matrix product by joining their weights.

Invariant: the weights stay the model's own parameters. Joining moves their storage into one matrix, once, and an
optimizer that updates them in place updates that matrix; nothing is copied that training would make stale.
Shapes: N tokens, H width of the input, O widths of the outputs together.
"""

from collections.abc import Sequence
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import nn


class Projections:
    """Several projections in one product: `query, key, value = projections(x)`."""

    def __init__(self, modules: Sequence[nn.Module], dtype: torch.dtype | None) -> None:
        """`dtype` is the type of matrix products; None is that of the weights."""
        self._modules = tuple(modules)
        self._dtype = dtype
        linears = [module for module in modules if _is_unmodified(module)]
        self._joinable = len(linears) == len(self._modules) and len({one.bias is None for one in linears}) == 1
        self._linears = linears if self._joinable else []
        self._weight: torch.Tensor | None = None  # [O, H], of all modules
        self._bias: torch.Tensor | None = None  # [O]
        self._sizes: list[int] = []
        self.refresh()

    def refresh(self) -> bool:
        """Picks up the modules' current weights; True if they moved in memory."""
        if not self._linears:
            return False
        weights, biases = self._parameters()
        if self._dtype is not None and self._dtype != weights[0].dtype:
            return self._cast(weights, biases)
        before = None if self._weight is None else self._weight.data_ptr()
        if not (_are_rows_of(self._weight, weights) and _are_rows_of(self._bias, biases)):
            self._weight = _join(weights)
            self._bias = _join(biases) if biases else None
            self._sizes = [len(weight) for weight in weights]
        assert self._weight is not None
        return before != self._weight.data_ptr()

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """One output per module, [N, O of it], from x [N, H]."""
        if not self._joinable:
            return tuple(module(x) for module in self._modules)
        assert self._weight is not None
        joined = F.linear(x, self._weight, self._bias)  # [N, O]
        return torch.split(joined, self._sizes, dim=-1) if len(self._sizes) > 1 else (joined,)

    def _parameters(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        weights: list[torch.Tensor] = [linear.weight for linear in self._linears]
        return weights, [linear.bias for linear in self._linears if linear.bias is not None]

    def _cast(self, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]) -> bool:
        """Copies the weights in half precision; True the first time."""
        first = self._weight is None
        if first:
            self._sizes = [len(weight) for weight in weights]
        self._weight = _convert(weights, self._dtype, self._weight)
        self._bias = _convert(biases, self._dtype, self._bias) if biases else None
        return first


def _is_unmodified(module: nn.Module) -> TypeGuard[nn.Linear]:
    """A linear layer without wrapper or hooks, so that its weights are all of it."""
    return type(module) is nn.Linear and not module._forward_hooks and not module._forward_pre_hooks


def _convert(parameters: Sequence[torch.Tensor], dtype: torch.dtype | None, into: torch.Tensor | None) -> torch.Tensor:
    """Casts and joins rows, into the tensor of the last time if there is one."""
    with torch.no_grad():
        joined = torch.cat([parameter.detach().to(dtype) for parameter in parameters])
        return joined if into is None else into.copy_(joined)


def _join(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Joins the rows in one tensor and makes the parameters views of it; a single parameter is left in place."""
    if len(parameters) == 1:
        return parameters[0].detach()
    # Parameters must stay trainable, which tensors made in inference mode are not.
    with torch.inference_mode(False), torch.no_grad():
        joined = torch.cat([parameter.detach() for parameter in parameters])
        for parameter, rows in zip(parameters, torch.split(joined, [len(one) for one in parameters]), strict=True):
            parameter.data = rows
    return joined


def _are_rows_of(joined: torch.Tensor | None, parameters: Sequence[torch.Tensor]) -> bool:
    """Whether the parameters still are the rows of `joined`, neither moved nor replaced."""
    if joined is None:
        return not parameters
    place = joined.data_ptr()
    for parameter in parameters:
        if parameter.data_ptr() != place or parameter.dtype != joined.dtype or parameter.device != joined.device:
            return False
        place += parameter.numel() * parameter.element_size()
    return True
