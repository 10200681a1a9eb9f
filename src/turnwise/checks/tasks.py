"""Whether tasks are held out: none of those evaluated on is trained on, and none is there twice."""

import json
from collections import Counter
from collections.abc import Sequence

from turnwise.checks.diagnosis import Diagnosis
from turnwise.types import Task

MOST = 5000
"""Tasks of each kind that are compared: the first ones."""
_MANY_TWICE = 0.5


def check_tasks(train: Sequence[Task], held_out: Sequence[Task], *, split: str) -> list[Diagnosis]:
    """Diagnoses of tasks that are in both lists, or several times in the first, by their content (seed and data)."""
    trained, held = _contents(train), _contents(held_out)
    both = [content for content in held if content in trained]
    found = []
    if both:
        share = sum(held[content] for content in both)
        found.append(
            Diagnosis(
                kind="tasks_overlap",
                cause=f"tasks of the split '{split}', which is evaluated on, are trained on as well",
                advice="hold them out: evaluate another split (evaluate.split), or remove them from one of the two",
                evidence={"tasks in both": float(share), "evaluated": float(sum(held.values()))},
            )
        )
    twice = sum(count for count in trained.values() if count > 1)
    if twice > _MANY_TWICE * max(1, sum(trained.values())):
        found.append(
            Diagnosis(
                kind="duplicate_tasks",
                cause="most training tasks are there more than once",
                advice="give each task its own seed or data, or list it once",
                evidence={"tasks that have a twin": float(twice), "of": float(sum(trained.values()))},
                severity="sign",
            )
        )
    return found


def _contents(tasks: Sequence[Task]) -> Counter[str]:
    """How often each content occurs; a task with no seed and no data of its own is known by its id."""
    some = [tasks[place] for place in range(min(len(tasks), MOST))]
    return Counter(
        json.dumps([t.env, t.seed, t.data] if t.seed or t.data else [t.env, t.id], sort_keys=True, default=str)
        for t in some
    )
