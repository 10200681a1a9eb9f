"""Seeds derived from names, so that any part of a run can be replayed without the parts before it.

Invariant: equal parts give equal seeds on every machine and in every process (Python's own `hash` does not).
"""

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed for this path of parts: `derive_seed(run_seed, "evaluate", step)`."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def seed_of_id(task_id: str) -> int:
    """The seed of a task that was given none."""
    return derive_seed("task", task_id)
