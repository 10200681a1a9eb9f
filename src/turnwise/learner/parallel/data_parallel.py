"""Data-parallel processes over torch.distributed: a whole copy of the model on each, rows shared out by tokens.

Invariant: every rank knows the whole batch; after a sum every rank has the same bits, so copies never drift apart.
This is the only module that touches torch.distributed. A rank that waits for one that died ends with one line.
"""

import functools
import io
import itertools
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # torch does not list them
from torch.distributed.rendezvous import rendezvous

from turnwise.errors import ConfigError, TurnwiseError
from turnwise.learner.parallel.base import SINGLE, Parallel
from turnwise.models.shards import read_shards, write_shards

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)

_TIMEOUT = timedelta(hours=2)
"""How long a rank waits for the others: rank 0 may be sampling or evaluating for all."""
_joined = itertools.count()
"""How often this process has joined others."""


def join() -> Parallel:
    """Joins the processes that torchrun started this one with; a process started without it trains alone.

    Tensors on the CPU go by gloo and those on a GPU by nccl; each rank of a machine takes a GPU of its own.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return SINGLE
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    try:
        store, rank, world = _meet()
    except RuntimeError as error:
        raise _unreachable("torchrun", error) from error
    # A prefix of its own each time: in one store, a second group would find the addresses of the first.
    store = PrefixStore(f"turnwise-{next(_joined)}", store)
    return join_by(store, rank=rank, world=world, local_rank=local_rank, started_by="torchrun")


def join_by(store: Store, *, rank: int, world: int, local_rank: int = 0, started_by: str) -> Parallel:
    """Joins the processes that find each other by this store, which must be new; `local_rank` numbers those of this
    machine, each with a GPU of its own."""
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(_own_gpu(local_rank, torch.cuda.device_count()))
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=_TIMEOUT)
    except RuntimeError as error:
        raise _unreachable(started_by, error) from error
    return DataParallel(rank=dist.get_rank(), world=dist.get_world_size())


def host_store(host: str) -> tuple[Store, int]:
    """A store in this process by which others find it, at a port of this machine's choice."""
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
    return store, store.port


def reach_store(host: str, port: int) -> Store:
    """The store that another process hosts."""
    return TCPStore(host, port, is_master=False, timeout=_TIMEOUT)


def _unreachable(started_by: str, error: RuntimeError) -> TurnwiseError:
    return TurnwiseError(f"{started_by}: its processes cannot reach each other ({_first_line(error)})")


@functools.cache
def _meet() -> tuple[Store, int, int]:
    """The store through which processes find each other, this one's rank, and how many there are.

    Kept for as long as the process lives: where rank 0 serves the store, others may still be reading it.
    """
    store, rank, world = next(rendezvous("env://", timeout=_TIMEOUT))
    return store, rank, world


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """This process among those that train together: `DataParallel(rank=1, world=4)` is the second of four."""

    rank: int
    world: int

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def is_sharded(self) -> bool:
        return False

    def prepare(self, module: M) -> M:
        with _peers_alive(), torch.no_grad():
            for tensor in module.state_dict().values():
                dist.broadcast(tensor, src=0)
        return module

    def most(self, count: int) -> int:
        return count  # ranks meet only to add up gradients

    def share(self, sizes: Sequence[int]) -> list[int]:
        return balance(sizes, self.world)[self.rank]

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        with _peers_alive():
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        parameters = list(parameters)
        reached = torch.tensor([p.grad is not None for p in parameters], dtype=torch.long)
        sums = []
        with _peers_alive():
            for parameter, ranks in zip(parameters, self.sum_(reached).tolist(), strict=True):
                if ranks:
                    if parameter.grad is None:  # this rank's share was empty, or led nowhere near this parameter
                        parameter.grad = torch.zeros_like(parameter)
                    sums.append(dist.all_reduce(parameter.grad, async_op=True))
            for one in sums:
                assert one is not None
                one.wait()

    def clip_gradients(self, parameters: Iterable[torch.Tensor], limit: float) -> torch.Tensor:
        return nn.utils.clip_grad_norm_(parameters, limit)  # whole gradients lie on every rank

    def gather(self, value: T) -> list[T]:
        values: list[T | None] = [None] * self.world
        with _peers_alive():
            dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]  # every place is filled now

    def broadcast(self, value: T | None) -> T:
        """Tensors travel beside the pickle, one by one: a state of gigabytes is never copied into one buffer."""
        packed, tensors = _pack(value) if self.is_main else (b"", [])
        parts: list[object] = [packed, [(tensor.shape, tensor.dtype) for tensor in tensors]]
        with _peers_alive():
            dist.broadcast_object_list(parts, src=0, device=torch.device("cpu"))
            packed, forms = parts  # type: ignore[assignment]  # as rank 0 sent them
            if not self.is_main:
                tensors = [torch.empty(shape, dtype=dtype) for shape, dtype in forms]  # type: ignore[attr-defined]
            for tensor in tensors:
                dist.broadcast(tensor, src=0)
        return value if self.is_main else _Unpickler(packed, tensors).load()  # type: ignore[return-value]

    def agree(self, fingerprint: Callable[[], str]) -> bool:
        return len(set(self.gather(fingerprint()))) == 1

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def place(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return tensor

    def make_empty(self, described: torch.Tensor) -> torch.Tensor:
        return torch.empty(described.shape, dtype=described.dtype)

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def gather_state(self, state: Mapping[str, object]) -> dict[str, object]:
        return dict(state)  # every rank holds all of it

    def write_shards(self, folder: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
        with _peers_alive():
            written = write_shards(folder, tensors, rank=self.rank, world=self.world)
        return {name: digest for one in self.gather(written) for name, digest in one.items()}

    def read_shards(self, folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        with _peers_alive():
            read_shards(folder, tensors, alone=False)

    def load(self, module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
        module.load_state_dict(state)

    def publish(self, prepared: nn.Module, whole: nn.Module) -> None:
        assert prepared is whole, "a module that is not sharded is trained in place"

    def barrier(self) -> None:
        with _peers_alive():
            dist.barrier()

    def leave(self) -> None:
        dist.destroy_process_group()


def balance(sizes: Sequence[int], world: int) -> list[list[int]]:
    """Indices by rank, the largest piece first to the rank that has least: `balance([9, 5, 5], 2)` is [[0], [1, 2]].

    No piece is in two shares, and none is added to make shares even.
    """
    loads = [0] * world
    shares: list[list[int]] = [[] for _ in range(world)]
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        rank = loads.index(min(loads))
        loads[rank] += sizes[index]
        shares[rank].append(index)
    return [sorted(share) for share in shares]


class _Pickler(pickle.Pickler):
    """Puts tensors aside, as contiguous copies on the CPU."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, value: object) -> int | None:
        if not isinstance(value, torch.Tensor) or value.is_meta:  # a described one has nothing to send
            return None
        self.tensors.append(value.detach().cpu().contiguous())
        return len(self.tensors) - 1


class _Unpickler(pickle.Unpickler):
    """Puts the tensors back where they were."""

    def __init__(self, packed: bytes, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(io.BytesIO(packed))
        self._tensors = tensors

    def persistent_load(self, number: int) -> torch.Tensor:
        return self._tensors[number]


def _pack(value: object) -> tuple[bytes, list[torch.Tensor]]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return file.getvalue(), pickler.tensors


@contextmanager
def _peers_alive() -> Iterator[None]:
    """Turns what torch.distributed raises when another rank is gone into one line."""
    try:
        yield
    except dist.DistError as error:
        raise _gone(error) from error
    except RuntimeError as error:
        if not any(sign in str(error) for sign in _SIGNS_OF_A_DEAD_PEER):
            raise
        raise _gone(error) from error


_SIGNS_OF_A_DEAD_PEER = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Broken pipe")
"""In what gloo raises, which has no type of its own."""


def _gone(error: BaseException) -> TurnwiseError:
    return TurnwiseError(
        f"another process of this run has ended ({_first_line(error)}): its own message says why; "
        "continue with --resume"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _own_gpu(local_rank: int, gpus: int) -> int:
    if local_rank >= gpus:
        raise ConfigError(
            f"torchrun: process {local_rank} of this machine has no GPU of its own among {gpus}: "
            f"start it with --nproc-per-node={gpus}"
        )
    return local_rank
