"""Asynchronous transfers and CUDA graphs.

Invariant: on a CPU everything here runs at once, and nothing is recorded.
"""

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")

_FINE = 8
"""Sizes up to this are rounded to a power of two; beyond it there are two sizes to every doubling."""
_SPARE_BYTES = 2**31
"""A graph is captured without freeing cached memory where this much of the device is free."""


def send(tensor: torch.Tensor, device: torch.device, *, into: torch.Tensor | None = None) -> torch.Tensor:
    """Copies a tensor to the device without waiting for it, or for what the device is computing.

    `into` is a tensor on the device to copy into, in place of a new one.
    """
    if device.type == "cuda" and not tensor.is_cuda:
        with on_one_thread(device):
            tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True) if into is None else into.copy_(tensor, non_blocking=True)


class Arriving:
    """A tensor on its way to the host: `wait()` waits for it, and not for what was launched after it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._there.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._arrived.record()
        else:
            self._there = tensor.clone()  # whoever computed it may write there again

    def wait(self) -> torch.Tensor:
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._there


def copy_to_host(value: object) -> object:
    """A copy of nested mappings, lists and tuples whose tensors are in the host's memory; those that share theirs
    still do, so that tied weights stay tied."""
    return _copy_to_host(value, {})


def _copy_to_host(value: object, copies: dict[Hashable, torch.Tensor]) -> object:
    # Not within the function above: a closure that calls itself would keep all copies until a garbage collection.
    if isinstance(value, torch.Tensor):
        place = (value.device, value.untyped_storage().data_ptr(), value.storage_offset())
        key = (*place, value.shape, value.stride(), value.dtype)
        if key not in copies:
            copies[key] = value.detach().to("cpu", copy=True)
        return copies[key]
    if isinstance(value, Mapping):
        return {key: _copy_to_host(inner, copies) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copy_to_host(inner, copies) for inner in value)
    return value


@contextmanager
def on_one_thread(device: torch.device) -> Iterator[None]:
    """Limits torch to one CPU thread while the device is a GPU; on a CPU it changes nothing.

    Beside a GPU, the CPU handles many small tensors, and waking other threads for them takes longer than the work.
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


def run_beside(work: Callable[[], T], device: torch.device) -> T:
    """Runs work in this thread while another one uses the device: on a GPU, in a stream of its own.

    The stream starts behind all that was launched before, and is done when this returns.
    """
    if device.type == "cpu":
        return work()
    with torch.cuda.device(device):
        stream = _side_stream(device)
        stream.wait_stream(torch.cuda.default_stream(device))
        with torch.cuda.stream(stream):
            result = work()
        stream.synchronize()
    return result


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all work beside: memory that was used in a stream is used again only there."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped


class Graphs:
    """Functions over static tensors, captured as CUDA graphs and replayed by key."""

    def __init__(self, device: torch.device) -> None:
        self.enabled = device.type == "cuda"
        self._seen: set[Hashable] = set()
        self._captured: dict[Hashable, tuple[torch.cuda.CUDAGraph, tuple[torch.Tensor, ...]]] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.enabled else None
        self._stream: torch.cuda.Stream | None = None

    def run(self, key: Hashable, step: Callable[[], tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
        """Runs a step: eagerly the first time, which compiles its kernels, then captured, then replayed.

        The tensors it returns are overwritten by the next step of the same key.
        """
        if key not in self._seen:
            self._seen.add(key)
            return step()
        if key not in self._captured:
            self._captured[key] = self._capture(step)
        graph, tensors = self._captured[key]
        graph.replay()
        return tensors

    def _capture(
        self, step: Callable[[], tuple[torch.Tensor, ...]]
    ) -> tuple[torch.cuda.CUDAGraph, tuple[torch.Tensor, ...]]:
        """As `torch.cuda.graph` does, which also gives all cached memory back to the driver, the host's too.

        New sizes come up in most steps of a run, and the learner would allocate its memory anew in each of them.
        """
        graph = torch.cuda.CUDAGraph()
        if self._stream is None:  # one for all: graphs of one pool share memory by stream
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.cuda.synchronize()
        if torch.cuda.mem_get_info()[0] < _SPARE_BYTES:
            torch.cuda.empty_cache()
        with torch.cuda.stream(self._stream):
            # Only this thread's calls are captured: a learner may be at work in another.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                tensors = step()
            finally:
                graph.capture_end()
        return graph, tensors

    def clear(self) -> None:
        """Drops the captured graphs; kernels stay compiled."""
        self._captured.clear()
        # A pool ends with the last graph that used it.
        self._pool = torch.cuda.graph_pool_handle() if self.enabled else None


def bucket(size: int) -> int:
    """A size from a short list, not below this one: 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, ..."""
    power = 1 << (size - 1).bit_length()
    middle = power * 3 // 4
    return middle if power > _FINE and size <= middle else power
