"""What the learner asks about the processes it is spread over, and the answers of a process that trains alone.

Invariant: every rank makes the same calls in the same order, and after `prepare` all train the same weights. A rank
runs its share of the rows, with loss weights normalised over all of them, and gradients are *summed*: so there is no
average of averages, no row is added to make shares even, and the number of ranks changes no update.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import nn

from turnwise.models.shards import read_shards, write_shards

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)


class Parallel(Protocol):
    """How weights, rows, gradients and checkpoints are spread; a sharded learner implements the same calls."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which samples, records and writes."""
        ...

    @property
    def is_sharded(self) -> bool:
        """Whether ranks share one copy of a model."""
        ...

    def prepare(self, module: M) -> M:
        """A module ready to be trained by all ranks, with rank 0's weights; call it before making an optimizer.

        It is the one given, or a sharded copy of it.
        """
        ...

    def most(self, count: int) -> int:
        """How many passes this rank has to make where its share needs `count`: a sharded model's are made together."""
        ...

    def share(self, sizes: Sequence[int]) -> list[int]:
        """Which of these pieces of work, by index, this rank does; `sizes` are tokens. A share may be empty."""
        ...

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Adds up the ranks' tensors, in place, on every rank."""
        ...

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Adds up the ranks' gradients, in place, on every rank; one that no rank has stays absent."""
        ...

    def clip_gradients(self, parameters: Iterable[torch.Tensor], limit: float) -> torch.Tensor:
        """Scales summed gradients down to this norm and returns the norm [] they had; nothing waits for the device."""
        ...

    def gather(self, value: T) -> list[T]:
        """Every rank's value, by rank, on every rank; for small values that pickle."""
        ...

    def broadcast(self, value: T | None) -> T:
        """Rank 0's value on every rank, its tensors on the CPU; what other ranks pass is ignored."""
        ...

    def agree(self, fingerprint: Callable[[], str]) -> bool:
        """Whether the fingerprint is the same on every rank."""
        ...

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in full, on every rank."""
        ...

    def place(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """This rank's part of a tensor that is known in full, spread as `like` is; one that is spread stays so."""
        ...

    def make_empty(self, described: torch.Tensor) -> torch.Tensor:
        """Room for a tensor of this shape and dtype, or for this rank's part of it, to be read from shards."""
        ...

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's part as a tensor that knows of no others; it shares its memory."""
        ...

    def gather_state(self, state: Mapping[str, object]) -> dict[str, object]:
        """A checkpoint's state with every tensor in full; rank 0's is the one to write."""
        ...

    def write_shards(self, folder: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
        """Has every rank write its part of these tensors; the SHA-256 of all files, by name."""
        ...

    def read_shards(self, folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        """Fills these tensors, each whole or this rank's part, however many ranks wrote them."""
        ...

    def load(self, module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
        """Loads a state, in full and the same on every rank, into a prepared module."""
        ...

    def publish(self, prepared: nn.Module, whole: nn.Module) -> None:
        """Copies a prepared module's weights into the module it was made of, on rank 0."""
        ...

    def barrier(self) -> None:
        """Waits until every rank is here."""
        ...

    def leave(self) -> None:
        """Ends the exchange with the other ranks."""
        ...


class SingleProcess:
    """One process: all rows are its own, and nothing is exchanged."""

    rank = 0
    world = 1
    is_main = True
    is_sharded = False

    def prepare(self, module: M) -> M:
        return module

    def most(self, count: int) -> int:
        return count

    def share(self, sizes: Sequence[int]) -> list[int]:
        return list(range(len(sizes)))

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        pass

    def clip_gradients(self, parameters: Iterable[torch.Tensor], limit: float) -> torch.Tensor:
        return nn.utils.clip_grad_norm_(parameters, limit)

    def gather(self, value: T) -> list[T]:
        return [value]

    def broadcast(self, value: T | None) -> T:
        assert value is not None, "rank 0 has a value"
        return value

    def agree(self, fingerprint: Callable[[], str]) -> bool:
        return True

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def place(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return tensor

    def make_empty(self, described: torch.Tensor) -> torch.Tensor:
        return torch.empty(described.shape, dtype=described.dtype)

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def gather_state(self, state: Mapping[str, object]) -> dict[str, object]:
        return dict(state)

    def write_shards(self, folder: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
        return write_shards(folder, tensors, rank=0, world=1)

    def read_shards(self, folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        read_shards(folder, tensors, alone=True)

    def load(self, module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
        module.load_state_dict(state)

    def publish(self, prepared: nn.Module, whole: nn.Module) -> None:
        assert prepared is whole, "a module that is not sharded is trained in place"

    def barrier(self) -> None:
        pass

    def leave(self) -> None:
        pass


SINGLE = SingleProcess()
