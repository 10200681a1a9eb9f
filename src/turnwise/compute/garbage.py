"""Less garbage collection while training.

Invariant: afterwards Python's collector works as before, on everything.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 50_000
"""New objects before a collection: a rollout makes thousands every turn, long lists of ids among them, and each
collection would scan them all."""


@contextmanager
def reduced_gc() -> Iterator[None]:
    """Excludes existing objects from garbage collection and collects new ones seldom.

    Otherwise libraries, the model and the data are scanned again and again, a fifth of a second each time.
    """
    usual = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()
