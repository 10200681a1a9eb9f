"""Python's garbage collector, told what it need not look at.

Invariant: afterwards it collects as it did before, and nothing is kept from it for good.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 50_000
"""How many new objects it waits for: a rollout makes thousands at every turn, lists of ids among them, which it would
look through from end to end each time."""


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Within it, what is there already is left alone, and what is new is seldom looked at.

    Else libraries, the model and the data are gone through again and again, a fifth of a second each time.
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
