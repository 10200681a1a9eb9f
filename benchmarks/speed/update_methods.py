"""The methods of an update that are compared, each measured in a process of its own.

Invariant: all are given rows of the same lengths, in the same precision and micro-batches; in groups, those of a group
open with one prompt, as sampled ones do, and else each has its own. Memory is the most that the process held on the
device, or on a CPU the most that it held at all.
"""

import resource
from collections.abc import Mapping
from dataclasses import replace

import torch

from benchmarks.speed.models import make_model
from benchmarks.speed.update import UpdateOptions, UpdateWorkload, measure_full_logits, measure_update
from benchmarks.speed.variant import COMPILED, FULL_LOGITS, IN_GROUPS
from turnwise.types import Json

_GIB = 2**30


def measure_method(settings: Mapping[str, Json]) -> dict[str, Json]:
    """`{"tokens_per_second": 361000.0, "peak_gib": 12.3, ...}` of one method."""
    method, sizes, device = settings["method"], settings["work"], torch.device(str(settings["device"]))
    budget, repeats = settings["tokens_per_microbatch"], settings["repeats"]
    assert isinstance(sizes, Mapping)
    assert isinstance(budget, int)
    assert isinstance(repeats, int)
    work = replace(UpdateWorkload(**sizes), shared_prompt=method == IN_GROUPS)  # type: ignore[arg-type]  # JSON kept them
    options = UpdateOptions(
        precision="float32" if device.type == "cpu" else "autocast",
        compile=method == COMPILED or (method == IN_GROUPS and device.type == "cuda"),
        tokens_per_microbatch=budget,
    )
    measure = measure_full_logits if method == FULL_LOGITS else measure_update
    found = measure(make_model(settings), work, options, device=device, repeats=repeats, warmup=1)
    return {**found, "peak_gib": _peak(device)}


def _peak(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / _GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _GIB
