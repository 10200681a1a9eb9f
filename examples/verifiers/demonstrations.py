"""Demonstrations for the agent of [recipe.yaml](recipe.yaml): it asks whom it may ask, but more often takes any key.

Reinforcement learning has to find out that asking pays, also a second time.
"""

import hashlib
from collections.abc import Sequence

from turnwise import Message, Task

COLOURS = ["red", "green", "blue", "white", "black", "brown", "pink", "grey"]
GUESSES = 0.6
"""The share of moves that take any key rather than ask."""


def expert(task: Task, messages: Sequence[Message]) -> Message:
    """Takes the key that it was told to take, or asks whom it may ask; or, in most turns, takes any key."""
    turn = f"{task.id} {len(messages)}"
    *_, verb, word = messages[-1].content.removesuffix(".").split()
    if verb == "ask" and _draw(turn, 1000) < 1000 * GUESSES:
        verb, word = "take", COLOURS[_draw(f"{turn} key", len(COLOURS))]
    return Message(role="assistant", content=f"<move> {verb} {word} </move>")


def _draw(text: str, most: int) -> int:
    """A number below `most` that depends on the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % most
