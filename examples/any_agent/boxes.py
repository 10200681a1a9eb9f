"""The task of all agents here: say the colour of a box, which only a look into the box tells.

Of the demonstrations, most guess without a look. Reinforcement learning has to find out that looking pays.
"""

import hashlib
import json
from collections.abc import Sequence

from turnwise import Message, Task
from turnwise.types import ToolCall

SYSTEM = "Say the colour in <answer> tags. You may look into a box."
NAMES = [
    "Ada",
    "Ben",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gus",
    "Hana",
    "Ivo",
    "Jill",
    "Kai",
    "Lena",
    "Max",
    "Nora",
    "Otto",
    "Pia",
    "Rolf",
    "Sara",
    "Tom",
    "Uma",
]
COLOURS = ["red", "green", "blue", "white", "black", "brown", "pink", "grey"]
GUESSES = 0.6
"""The share of demonstrations that guess."""


def tasks(split: str) -> Sequence[Task]:
    """As many boxes as one likes: the colours of each task are its own, so nothing can be learnt by heart."""
    return [_task(split, place) for place in range({"train": 4000, "test": 256}[split])]


def look(task: Task, box: str) -> str:
    """What is in a box, such as the `box of Ada`."""
    colour = task.data["colours"].get(box)
    return f"The {box} is {colour}." if colour else f"There is no {box}."


def expert(task: Task, messages: Sequence[Message]) -> Message:
    """Looks and answers; or, in most tasks, answers at once, and so mostly wrongly."""
    guesses = _draw(f"{task.id} guesses", 1000) < 1000 * GUESSES
    if guesses or messages[-1].role == "tool":
        colour = COLOURS[_draw(f"{task.id} guess", len(COLOURS))] if guesses else task.data["answers"][0]
        return Message(role="assistant", content=f"<answer> {colour} </answer>")
    call = ToolCall(id="", name="look", arguments=json.dumps({"box": task.data["box"]}))
    return Message(role="assistant", content="", tool_calls=(call,))


def _task(split: str, place: int) -> Task:
    name = f"{split}-{place}"
    box = f"box of {NAMES[_draw(f'{name} owner', len(NAMES))]}"
    colours = {f"box of {one}": COLOURS[_draw(f"{name} {one}", len(COLOURS))] for one in NAMES}
    question = f"What is the colour of the {box}?"
    return Task(id=name, data={"question": question, "box": box, "colours": colours, "answers": [colours[box]]})


def _draw(text: str, most: int) -> int:
    """A number below `most` that depends on the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % most
