"""The processes that train one policy together, and the few words they exchange: sums, and a comparing of notes.

Invariant: every rank knows the whole batch and holds the same weights; each runs its share of the rows, with weights
that were normalised over all of them, and what shares give is *summed*. So nothing is an average of averages, no row is
added to make shares even, and after a sum every rank has the same bits. This is the only module that touches
torch.distributed.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from turnwise.errors import ConfigError

T = TypeVar("T")

_PATIENCE = timedelta(hours=2)
"""How long a rank waits for the others: one of them may be sampling or evaluating for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among those that train together: `Ranks(rank=1, world=4)` is the second of four."""

    rank: int
    world: int

    @classmethod
    def single(cls) -> "Ranks":
        """A process that trains alone; nothing is exchanged."""
        return cls(rank=0, world=1)

    @classmethod
    def join(cls) -> "Ranks":
        """Meets the processes that torchrun started this one with; a process started without it is single.

        Tensors on the CPU go by gloo and those on a GPU by nccl; each rank of a machine takes a GPU of its own.
        """
        if os.environ.get("WORLD_SIZE", "1") == "1":
            return cls.single()
        backend = "gloo"
        if torch.cuda.is_available():
            backend = "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(_own_gpu(int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()))
        dist.init_process_group(backend, timeout=_PATIENCE)
        return cls(rank=dist.get_rank(), world=dist.get_world_size())

    def leave(self) -> None:
        """Parts from the others, after which nothing can be exchanged."""
        if self.world > 1:
            dist.destroy_process_group()

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Adds up the ranks' tensors, in place, on every rank."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, module: nn.Module) -> None:
        """Adds up the gradients that lie on the ranks' copies of a module; one that no rank has stays absent."""
        if self.world == 1:
            return
        parameters = [p for p in module.parameters() if p.requires_grad]
        reached = torch.tensor([p.grad is not None for p in parameters], dtype=torch.long)
        sums = []
        for parameter, ranks in zip(parameters, self.sum_(reached).tolist(), strict=True):
            if ranks:
                if parameter.grad is None:  # its share was empty, or led nowhere near this parameter
                    parameter.grad = torch.zeros_like(parameter)
                sums.append(dist.all_reduce(parameter.grad, async_op=True))
        for one in sums:
            assert one is not None
            one.wait()

    def gather(self, note: T) -> list[T]:
        """What every rank has to say, by rank, on every rank; for small values that pickle."""
        if self.world == 1:
            return [note]
        notes: list[T | None] = [None] * self.world
        dist.all_gather_object(notes, note)
        return notes  # type: ignore[return-value]  # every place is filled now


ALONE = Ranks.single()


def _own_gpu(local_rank: int, gpus: int) -> int:
    if local_rank >= gpus:
        raise ConfigError(
            f"torchrun: process {local_rank} of this machine has no GPU of its own among {gpus}: "
            f"start it with --nproc-per-node={gpus}"
        )
    return local_rank
