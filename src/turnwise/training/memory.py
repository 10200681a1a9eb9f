"""Memory: what is free; and a device that runs out of it: one line, and settings that a resumed run may lower.

Invariant: these settings change the order of sums, and so their last digits, but not what is computed.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from turnwise.errors import ModelError

MEMORY_SETTINGS = (
    "sft.tokens_per_microbatch",
    "sft.compile",
    "learner.tokens_per_microbatch",
    "learner.compile",
    "learner.skip_zero_rows",
    "learner.checkpointing",
    "learner.activation_offload",
    "learner.shard",
    "engine",
)
_ADVICE = (
    "the device is out of memory: lower learner.tokens_per_microbatch (in the cold start, sft.tokens_per_microbatch) "
    "or engine.slots, set learner.checkpointing or learner.activation_offload, or end other programs there; then "
    "continue with --resume"
)


@contextmanager
def one_line_out_of_memory() -> Iterator[None]:
    """Turns a full device into a one-line error, even where every episode of a rollout reports it."""
    try:
        yield
    except (torch.OutOfMemoryError, ExceptionGroup) as error:
        if not _is_out_of_memory(error):
            raise
        raise ModelError(_ADVICE) from error


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_out_of_memory, error.exceptions))
    return isinstance(error, torch.OutOfMemoryError)


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
