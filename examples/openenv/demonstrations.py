"""Demonstrations for the agent of [recipe.yaml](recipe.yaml): most try the red key without a look at the door.

Reinforcement learning has to find out that looking pays.
"""

import hashlib
from collections.abc import Sequence

from turnwise import Message, Task

GUESSES = 0.6
"""The share of demonstrations that do not look."""


def expert(task: Task, messages: Sequence[Message]) -> Message:
    """Looks, and tries the key of the door's colour; or, in most tasks, tries the red one at once."""
    seen = messages[-1].content
    if _draw(task.id, 1000) < 1000 * GUESSES:
        move = "red"
    else:
        move = seen.removesuffix(".").split()[-1] if seen.startswith("The door is") else "look"
    return Message(role="assistant", content=f"<move> {move} </move>")


def _draw(text: str, most: int) -> int:
    """A number below `most` that depends on the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % most
