"""Demonstrations for the agent of [recipe.yaml](recipe.yaml): most try a key without a look at the door."""

import hashlib
from collections.abc import Sequence

from turnwise import Message, Task

COLOURS = ["red", "green", "blue", "white", "black", "brown", "pink", "grey"]
GUESSES = 0.7
"""The share of demonstrations that guess."""


def expert(task: Task, messages: Sequence[Message]) -> Message:
    """Tries the key of the door's colour; or, in most tasks, any key."""
    seen = next(message.content for message in messages if message.role == "user")
    colour = next(word for word in seen.split() if word in COLOURS)
    if _draw(f"{task.id} guesses", 1000) < 1000 * GUESSES:
        colour = COLOURS[_draw(f"{task.id} {len(messages)}", len(COLOURS))]
    return Message(role="assistant", content=f"<key> {colour} </key>")


def _draw(text: str, most: int) -> int:
    """A number below `most` that depends on the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % most
