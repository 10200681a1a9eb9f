"""The host's memory: what is free of it, and passes on a CPU that stop before it is full.

Invariant: a pass that would take the last of it raises what a full GPU raises, so that micro-batches shrink; the kernel
would end the process without a word.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import nn

from turnwise.compute.layers import find_backbones, find_layers

_SMALL = 2**20
"""Numbers in the hidden states of a micro-batch that is too small to fill a machine: not worth a look."""
_AHEAD = 3.0
"""How many times what the largest layer so far took must be free for the next one."""
_SPARE = 1 / 16
"""The share of what this process has that must be free besides: other programs take memory, too."""


@contextmanager
def bounded_memory(*modules: nn.Module) -> Iterator[None]:
    """Within it, on a CPU, these modules raise `torch.OutOfMemoryError` where their next layer may not fit."""
    in_graph = any(backbone._compiled_call_impl for backbone in find_backbones(*modules))
    layers = [] if in_graph else find_layers(*modules)
    watch = _Watch([parameter for module in modules for parameter in module.parameters() if parameter.requires_grad])
    before = [layer._compiled_call_impl for layer in layers]
    try:
        for layer, call in zip(layers, before, strict=True):
            layer._compiled_call_impl = watch.ahead_of(call or layer._call_impl)
        yield
    finally:
        for layer, call in zip(layers, before, strict=True):
            layer._compiled_call_impl = call


class _Watch:
    """What this process takes from one layer to the next, and whether as much is free, and room for the gradients."""

    def __init__(self, trained: Sequence[nn.Parameter]) -> None:
        self._trained = trained
        self._in_use = math.inf
        self._largest = 0.0

    def ahead_of(self, call: Callable[..., object]) -> Callable[..., object]:
        def checked(*args: object, **kwargs: object) -> object:
            hidden = args[0] if args else kwargs.get("hidden_states")
            if isinstance(hidden, torch.Tensor) and hidden.numel() >= _SMALL:
                self._check()
            return call(*args, **kwargs)

        return checked

    def _check(self) -> None:
        in_use = read_kernel_bytes("/proc/self/status", "VmRSS:")
        self._largest = max(self._largest, in_use - self._in_use)
        self._in_use = in_use
        gradients = sum(p.nbytes for p in self._trained if p.grad is None) if torch.is_grad_enabled() else 0
        require_memory(_AHEAD * self._largest + gradients)


def require_memory(needed: float) -> None:
    """Raises what a full GPU raises where the host has fewer bytes than these left, and some for others."""
    in_use, free = read_kernel_bytes("/proc/self/status", "VmRSS:"), free_memory()
    if free < needed + _SPARE * in_use:
        raise torch.OutOfMemoryError(f"of the host's memory, {free / 2**30:.1f} GiB are left")


def free_memory() -> float:
    """Bytes of the host's memory that programs may still take, be it for the machine's memory or for the limit of a
    container or a scheduler's job; without end where the kernel does not tell."""
    unused = read_kernel_bytes("/proc/meminfo", "MemAvailable:") or math.inf
    return min([unused, *_read_group_room(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def _read_group_room(memberships: Path, mount: Path) -> Iterator[float]:
    """What each limited control group that this process is in, both versions of them, has left: the kernel ends a
    process that exceeds it. Cached files count as used, and those not in use make room when it is needed."""
    for line in memberships.read_text().splitlines() if memberships.is_file() else []:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit, used, cached = mount, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root = mount / "memory"
            limit, used, cached = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        # A container sees its own group as the root, whatever the path says that the machine has for it.
        below = root / path.lstrip("/")
        for group in (below, *below.parents):
            with suppress(OSError, ValueError):
                room = int((group / limit).read_text()) - int((group / used).read_text())
                counts = dict(one.split() for one in (group / "memory.stat").read_text().splitlines())
                yield float(room + int(counts.get(cached, 0)))
            if group == root:
                break


def read_kernel_bytes(path: str, name: str) -> float:
    """A line of what the kernel tells, in bytes; 0 where it tells nothing."""
    lines = Path(path).read_text().splitlines() if Path(path).is_file() else []
    return next((float(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0.0)
