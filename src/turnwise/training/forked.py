"""Work divided among forked processes, for code that is bound by Python's lock.

Invariant: results are those of one process, in order. A fork sees everything made so far without copying it, and must
not use the GPU: so this is for environments and rendering alone, and only where it was asked for.
"""

import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar, cast

import torch

from turnwise.errors import ConfigError

T = TypeVar("T")
_SHARES = 4
"""Shares per process: small enough that none works alone at the end."""
_PARALLELISM = "TOKENIZERS_PARALLELISM"

_work: Callable[[range], Sequence[object]] | None = None
"""In a forked process: what it does."""


def map_forked(
    work: Callable[[range], Sequence[T]],
    count: int,
    *,
    workers: int,
    setting: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[T]:
    """The results of `work` on all places below `count`, whose ranges are shared out; `setting` names the workers."""
    if "fork" not in multiprocessing.get_all_start_methods():
        raise ConfigError(f"{setting}: this system cannot fork processes: set it to 0")
    size = max(1, -(-count // (workers * _SHARES)))
    shares = [range(first, min(first + size, count)) for first in range(0, count, size)]
    context = multiprocessing.get_context("fork")
    run = cast(Callable[[range], Sequence[T]], _run)  # it runs `work`
    with _quiet(), ProcessPoolExecutor(workers, context, initializer=_adopt, initargs=(work,)) as pool:
        running: dict[Future[Sequence[T]], range] = {pool.submit(run, share): share for share in shares}
        try:
            finished = 0
            for done in as_completed(running):
                done.result()
                finished += len(running[done])
                progress(finished, count)
        except BrokenProcessPool:
            raise ConfigError(f"{setting}: a forked process died; set it to 0 to see why in this one") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return [one for done in running for one in done.result()]


def _adopt(work: Callable[[range], Sequence[object]]) -> None:
    """Begins a forked process; Ctrl-C is the business of its parent."""
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _run(share: range) -> Sequence[object]:
    assert _work is not None, "set when the process began"
    return _work(share)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps tokenizers and Python from warning of the fork in every process."""
    before = os.environ.get(_PARALLELISM)
    os.environ.setdefault(_PARALLELISM, "false")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            yield
    finally:
        if before is None:
            del os.environ[_PARALLELISM]
