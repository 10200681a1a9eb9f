"""Allocator and thread settings of the process, without torch.

Invariant: an environment variable that the user set stays as it is.
"""

import ctypes
import os
import sys


def configure_process() -> None:
    """Makes training of small models on a CPU steady; call it before torch is imported, or at least before it runs.

    OpenMP threads spin while they wait, by default, which can slow every step many times over when another process
    wants a core; the limit on spinning applies only if OpenMP is not loaded yet. And glibc returns large tensors to the
    system after each use, only to fault them in again page by page.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:  # absent from other C libraries
            trim_threshold, mmap_max = -1, -4
            mallopt(trim_threshold, 2**30)
            mallopt(mmap_max, 0)
