"""The machine and the package versions behind a result, in words; never the name of the machine."""

import os
import platform
from pathlib import Path

from turnwise.runs import collect_versions

_NAMED = ("python", "turnwise", "torch", "transformers", "numpy")


def describe_machine() -> dict[str, str]:
    """`{"machine": "16 cores of AMD EPYC 9654, NVIDIA H200", "versions": "python 3.12.4, torch 2.11.0, ..."}`."""
    versions = collect_versions()
    return {
        "machine": ", ".join([f"{os.cpu_count()} cores of {_processor()}", *_gpus()]),
        "versions": ", ".join(f"{name} {versions[name]}" for name in _NAMED if versions[name]),
    }


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]


def _processor() -> str:
    """The processor's own name for itself, where the system tells it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.processor() or platform.machine())
