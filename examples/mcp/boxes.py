"""Tasks for the agent: say the colour of a box, which only a look into the box tells.

Of the demonstrations, most guess without a look. Reinforcement learning has to find out that looking pays.
"""

import hashlib
import json
from collections.abc import Sequence

from turnwise import Message, Task, ToolCall

NAMES = ["Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jill", "Kai", "Lena", "Max", "Nora", "Otto"]
COLOURS = ["red", "green", "blue", "white", "black", "brown", "pink", "grey"]
GUESSES = 0.6
"""The share of demonstrations that guess."""


def tasks(split: str) -> Sequence[Task]:
    """Boxes by three names; those of the test are in no training task, so nothing can be learnt by heart."""
    boxes = [f"box of {one} {two} {three}" for one in NAMES for two in NAMES for three in NAMES]
    boxes.sort(key=lambda box: _draw(box, 2**32))
    return [_task(split, place, box) for place, box in enumerate(boxes[:256] if split == "test" else boxes[256:])]


def expert(task: Task, messages: Sequence[Message]) -> Message:
    """Looks and answers; or, in most tasks, answers at once, and so mostly wrongly."""
    guesses = _draw(f"{task.id} guesses", 1000) < 1000 * GUESSES
    if guesses or messages[-1].role == "tool":
        colour = COLOURS[_draw(f"{task.id} guess", len(COLOURS))] if guesses else task.data["answers"][0]
        return Message(role="assistant", content=f"<answer> {colour} </answer>")
    call = ToolCall(id="", name="look", arguments=json.dumps({"box": task.data["box"]}))
    return Message(role="assistant", content="", tool_calls=(call,))


def _task(split: str, place: int, box: str) -> Task:
    colour = COLOURS[hashlib.blake2b(box.encode()).digest()[0] % len(COLOURS)]
    question = f"What is the colour of the {box}?"
    return Task(id=f"{split}-{place}", seed=place, data={"question": question, "box": box, "answers": [colour]})


def _draw(text: str, most: int) -> int:
    """A number below `most` that depends on the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % most
