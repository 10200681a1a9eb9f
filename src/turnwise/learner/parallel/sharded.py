"""Sharded processes by FSDP2: each rank keeps a share of every weight, gradient and moment, and gathers layer by layer.

Invariant: rows, loss weights and sums are those of data-parallel ranks, so that sharding changes no update. A pass over
a sharded model is an exchange: every rank makes as many of them (`most`). The module that `prepare` was given stays
whole on rank 0, for its engine to sample from, and gets the new weights by `publish`, one tensor at a time.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, empty

from turnwise.compute.layers import find_layers
from turnwise.compute.score import ENTRY
from turnwise.learner.parallel.base import Parallel

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)


def shard_among(ranks: Parallel, device: torch.device) -> Parallel:
    """The same ranks, sharing one copy of a model on their devices; one process alone has nobody to share with.

    They share it through a group of their own. Caches of torch keep the group of every sharded tensor, so its threads
    outlive `leave`; one that frees a tensor while the interpreter ends aborts the process. The threads of the group by
    which ranks part, which work to the very end, are thus gone before that.
    """
    if ranks.world == 1:
        return ranks
    return Sharded(ranks=ranks, mesh=DeviceMesh.from_group(dist.new_group(), device.type), device=device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """Ranks that share one copy of the model."""

    ranks: Parallel
    """The same processes, exchanging whole tensors."""
    mesh: DeviceMesh
    device: torch.device

    @property
    def rank(self) -> int:
        return self.ranks.rank

    @property
    def world(self) -> int:
        return self.ranks.world

    @property
    def is_main(self) -> bool:
        return self.ranks.is_main

    @property
    def is_sharded(self) -> bool:
        return True

    def prepare(self, module: M) -> M:
        """A sharded copy, with rank 0's weights; layers are gathered one by one, and all else with the whole."""
        sharded = _copy_to_cpu(module)
        # What is gathered together has one dtype: a critic's head of float32 stands on a backbone of bfloat16.
        for part in (*_of_other_dtype(sharded), *find_layers(sharded)):
            fully_shard(part, mesh=self.mesh)
        # By default the root keeps its weights gathered after a forward, and would miss a reference put in their place.
        fully_shard(sharded, mesh=self.mesh, reshard_after_forward=True)
        setattr(sharded, ENTRY, MethodType(_enter, sharded))
        register_fsdp_forward_method(sharded, ENTRY)
        for buffer in sharded.buffers():
            buffer.data = buffer.data.to(self.device)
        self._spread(sharded, module.state_dict() if self.is_main else {})
        if not self.is_main:
            module.to("cpu")  # kept only to be copied again, for a critic or another learner
        return sharded

    def share(self, sizes: Sequence[int]) -> list[int]:
        return self.ranks.share(sizes)

    def most(self, count: int) -> int:
        return max(self.gather(count))

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.ranks.sum_(tensor)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Backward passes have exchanged gradients already, as means over the ranks."""
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(self.world)

    def clip_gradients(self, parameters: Iterable[torch.Tensor], limit: float) -> torch.Tensor:
        return self.whole(nn.utils.clip_grad_norm_(parameters, limit))

    def gather(self, value: T) -> list[T]:
        return self.ranks.gather(value)

    def broadcast(self, value: T | None) -> T:
        return self.ranks.broadcast(value)

    def agree(self, fingerprint: Callable[[], str]) -> bool:
        return self.ranks.agree(fingerprint)

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def place(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, DTensor):
            return tensor if isinstance(like, DTensor) else self.whole(tensor)
        if not isinstance(like, DTensor) or tensor.shape != like.shape:
            return tensor
        return distribute_tensor(tensor.to(self.device), like.device_mesh, like.placements, src_data_rank=None)

    def make_empty(self, described: torch.Tensor) -> torch.Tensor:
        """Spread as `fully_shard` spreads weights: by rows."""
        if not described.ndim:
            return torch.empty((), dtype=described.dtype)
        return empty(described.shape, dtype=described.dtype, device_mesh=self.mesh, placements=[Shard(0)])

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def gather_state(self, state: Mapping[str, object]) -> dict[str, object]:
        return {name: self._gathered(value) for name, value in state.items()}

    def write_shards(self, folder: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
        return self.ranks.write_shards(folder, tensors)

    def read_shards(self, folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        self.ranks.read_shards(folder, tensors)

    def load(self, module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in module.state_dict().items():
                tensor.copy_(self.place(state[name], like=tensor))

    def publish(self, sharded: nn.Module, whole: nn.Module) -> None:
        places = whole.state_dict() if self.is_main else {}
        with torch.no_grad():
            for name, tensor in sharded.state_dict().items():
                gathered = self.whole(tensor.detach())
                if self.is_main:
                    places[name].copy_(gathered)

    def barrier(self) -> None:
        self.ranks.barrier()

    def leave(self) -> None:
        self.ranks.leave()

    def _spread(self, sharded: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
        """Sends rank 0's weights to where they are kept, one tensor at a time."""
        with torch.no_grad():
            for name, tensor in sharded.state_dict().items():
                full = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
                if self.is_main:
                    full.copy_(weights[name])
                dist.broadcast(full, src=0)
                tensor.copy_(self.place(full, like=tensor))

    def _gathered(self, value: object) -> object:
        if isinstance(value, torch.Tensor):
            return self.whole(value.detach()).cpu()
        if isinstance(value, Mapping):
            return {key: self._gathered(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._gathered(inner) for inner in value]
        return value


def _enter(module: nn.Module, function: Callable[..., T], *args: object) -> T:
    """Runs a function of a sharded module between the hooks of its forward, which gather the weights it needs."""
    return function(module, *args)


def _of_other_dtype(module: nn.Module) -> list[nn.Module]:
    """The innermost modules whose own weights are of another dtype than the module's first."""
    usual = next(module.parameters()).dtype
    return [part for part in module.modules() if any(p.dtype != usual for p in part.parameters(recurse=False))]


def _copy_to_cpu(module: M) -> M:
    """A copy in the host's memory, of which each layer moves to the device as it is sharded, never all at once."""
    own = [*module.parameters(), *module.buffers()]
    memo: dict[int, object] = {}
    for tensor in own:
        there = tensor.detach().to("cpu", copy=True)
        memo[id(tensor)] = nn.Parameter(there, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else there
    return copy.deepcopy(module, memo)
