"""How the host and a device that works by itself speak: transfers that nobody waits for, and recorded steps.

Invariant: on a CPU each of these is what it would be without it: done at once.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch

_FINE = 8
"""Sizes up to this get a graph of their own power of two; beyond it there are two graphs to every doubling."""


def send(tensor: torch.Tensor, device: torch.device, *, into: torch.Tensor | None = None) -> torch.Tensor:
    """A tensor as it is on the device; the host goes on at once, and so does what the device is at.

    `into` is a tensor there that shall hold it, in place of a new one.
    """
    if device.type == "cuda" and not tensor.is_cuda:
        with on_one_thread(device):
            tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True) if into is None else into.copy_(tensor, non_blocking=True)


@contextmanager
def on_one_thread(device: torch.device) -> Iterator[None]:
    """Within it, what a GPU leaves for the CPU is done by one thread; work on the CPU itself takes all it has.

    It is bookkeeping, small tensors one after the other, for which to wake other threads takes longer than to do it.
    """
    if device.type == "cpu":
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Answer:
    """Tokens and logprobs [B] on their way to the host."""

    def __init__(self, token: torch.Tensor, logprob: torch.Tensor) -> None:
        both = torch.stack((token.double(), logprob.double()))  # [2, B]: doubles hold ids exactly
        self._arrived: torch.cuda.Event | None = None
        if both.is_cuda:
            self._both = torch.empty(both.shape, dtype=both.dtype, pin_memory=True)
            self._both.copy_(both, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._arrived.record()
        else:
            self._both = both

    def wait(self) -> tuple[list[int], list[float]]:
        """The tokens and the logprobs, once they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        tokens, logprobs = self._both.tolist()
        return [int(number) for number in tokens], logprobs


class Graphs:
    """Steps over static tensors, recorded as CUDA graphs and replayed by key."""

    def __init__(self, device: torch.device) -> None:
        self.enabled = device.type == "cuda"
        self._seen: set[Hashable] = set()
        self._recorded: dict[Hashable, tuple[torch.cuda.CUDAGraph, tuple[torch.Tensor, ...]]] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.enabled else None

    def run(self, key: Hashable, step: Callable[[], tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
        """Does a step: by itself the first time, which compiles its kernels, then recorded, then replayed.

        Its tensors are overwritten by the next step of the same key.
        """
        if key not in self._seen:
            self._seen.add(key)
            return step()
        if key not in self._recorded:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                tensors = step()
            self._recorded[key] = (graph, tensors)
        graph, tensors = self._recorded[key]
        graph.replay()
        return tensors

    def clear(self) -> None:
        """Forgets what was recorded; kernels stay compiled."""
        self._recorded.clear()
        # A pool ends with the last graph that used it.
        self._pool = torch.cuda.graph_pool_handle() if self.enabled else None


def bucket(size: int) -> int:
    """A size from a short list, not below this one: 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, ..."""
    power = 1 << (size - 1).bit_length()
    middle = power * 3 // 4
    return middle if power > _FINE and size <= middle else power
