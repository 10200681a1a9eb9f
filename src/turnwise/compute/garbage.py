"""Less garbage collection while training, and at the cheapest moments.

Invariant: afterwards Python's collector works as before, on everything.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_YOUNG = 50_000
"""New objects before a collection: a rollout makes thousands every turn, long lists of ids among them, and each
collection would scan them all."""
_YOUNG_IN_STEPS = 1_000_000
"""The same while steps are collected after: only one that makes very many objects is interrupted."""
_STEPS_UNTIL_FULL = 50
"""Steps between two collections of everything that is new since `reduced_gc`."""


@contextmanager
def without_gc() -> Iterator[None]:
    """Collects nothing within the block, and what it made only once a `reduced_gc` has ended: for imports.

    A million objects that stay: as they grow, they would be scanned over and over.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()


@contextmanager
def reduced_gc() -> Iterator[Callable[[], None]]:
    """Excludes existing objects from garbage collection, and others whenever the function it gives is called; collects
    new ones seldom.

    Otherwise libraries, the model and the data are scanned again and again, a fifth of a second each time.
    """
    usual = gc.get_threshold()

    def exclude() -> None:
        gc.collect()
        gc.freeze()

    exclude()
    gc.set_threshold(_YOUNG, *usual[1:])
    try:
        yield exclude
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


@contextmanager
def gc_between_steps() -> Iterator[Callable[[], None]]:
    """Collects when the function it gives is called, once after each step, and hardly ever within one.

    A collection looks at every token id of every list that is new. Amid a rollout these are a million, a tenth of a
    second; after a step, whose conversations and trajectories are gone, few are left.
    """
    usual, steps = gc.get_threshold(), 0

    def collect() -> None:
        nonlocal steps
        steps += 1
        gc.collect(2 if steps % _STEPS_UNTIL_FULL == 0 else 1)

    gc.set_threshold(max(usual[0], _YOUNG_IN_STEPS), *usual[1:])
    try:
        yield collect
    finally:
        gc.set_threshold(*usual)
