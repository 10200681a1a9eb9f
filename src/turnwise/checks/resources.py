"""Whether the run fits the machine: its disk, its memory, the walls of its sandbox, the fast path of its engine."""

from collections.abc import Sequence

from turnwise.checks.diagnosis import Diagnosis

_GIB = 2**30


def check_disk(*, needed: float, free: float, path: str) -> list[Diagnosis]:
    """A diagnosis where what the run will write, in bytes, is more than is free at its path."""
    if needed <= free:
        return []
    return [
        Diagnosis(
            kind="disk_short",
            cause=f"the disk of {path} has less room than the run will write",
            advice="free some, choose another --run, or lower checkpoint.keep and trajectories.max_gigabytes",
            evidence={"GiB needed": needed / _GIB, "GiB free": free / _GIB},
        )
    ]


def check_memory(*, predicted: float, available: float, device: str) -> list[Diagnosis]:
    """A diagnosis where the peak of a full step, in bytes, is predicted to be more than the device has."""
    if predicted <= available:
        return []
    return [
        Diagnosis(
            kind="memory_short",
            cause=f"a full step is predicted to take more memory than {device} has",
            advice="lower learner.tokens_per_microbatch or engine.slots, or set learner.checkpointing",
            evidence={"GiB predicted": predicted / _GIB, "GiB available": available / _GIB},
        )
    ]


def check_sandbox(gaps: Sequence[str], *, isolation: str) -> list[Diagnosis]:
    """A diagnosis where code that the model writes runs with fewer walls than the kernel's."""
    if not gaps:
        return []
    return [
        Diagnosis(
            kind="sandbox_gaps",
            cause=f"code that the model writes runs with isolation={isolation}, which leaves open: {', '.join(gaps)}",
            advice="install bubblewrap, gVisor or podman, or run where the kernel has Landlock and seccomp "
            "(docs/sandbox.md)",
            evidence={"gaps": float(len(gaps))},
        )
    ]


def check_fast_path(slow_reason: str | None) -> list[Diagnosis]:
    """A diagnosis where the engine refused its fused forward, and why."""
    if slow_reason is None:
        return []
    return [
        Diagnosis(
            kind="slow_sampling",
            cause=f"sampling is many times slower than it could be: {slow_reason}",
            advice="train a model of a family that docs/families.md lists, or report the reason as a bug",
            severity="sign",
        )
    ]
