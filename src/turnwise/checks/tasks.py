"""Whether tasks are held out: none of those evaluated on is trained on, and none is there twice."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from turnwise.checks.diagnosis import Diagnosis
from turnwise.envs.mixture import first_tasks
from turnwise.seeds import seed_of_id
from turnwise.types import Task

MOST = 5000
"""Tasks of each kind that are compared: the first ones, of a mixture those of each environment."""
Known: TypeAlias = Mapping[str, "Callable[[Task], object]"]
"""What makes a task another one, by environment, where that is not its seed."""

_MANY_TWICE = 0.5
_OWN_DATA = 0.5
"""The share of training tasks that have a question or data of their own where that may be what makes a task."""


def check_tasks(train: Sequence[Task], held_out: Sequence[Task], *, split: str) -> list[Diagnosis]:
    """Diagnoses of tasks that are in both lists, or several times in the first, by their content.

    That is a task's data, and its seed where one was chosen. A list of questions has numbers for seeds, so a question
    has another one in each split; but a level of a game, or a question about a world, is another task by its seed.
    """
    known = _known_by_data(train, held_out)
    trained, held = _contents(train, known), _contents(held_out, known)
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


def _known_by_data(train: Sequence[Task], held_out: Sequence[Task]) -> Known:
    """As `known_by_data`, but for environments whose seeds were chosen: those of the rest follow from ids, or both
    lists have the same ones."""
    trained, held = _by_env(train), _by_env(held_out)
    known = known_by_data(train)
    return {env: what for env, what in known.items() if not _has_own_seeds(trained[env], held.get(env, []))}


def known_by_data(tasks: Sequence[Task]) -> Known:
    """Of the environments most of whose tasks have a question or data of their own: their seeds make no other task.

    A question is the same one whatever stands beside it, such as evidence or its source.
    """
    known: dict[str, Callable[[Task], object]] = {}
    for env, own in _by_env(tasks).items():
        what = next((what for what in (_question, _data) if _are_different(own, what)), None)
        if what is not None:
            known[env] = what
    return known


def _question(task: Task) -> object:
    question = task.data.get("question")
    return question.casefold().split() if isinstance(question, str) else None


def _data(task: Task) -> object:
    return task.data or None


def _are_different(tasks: Sequence[Task], what: Callable[[Task], object]) -> bool:
    different = len({_text(found) for task in tasks if (found := what(task)) is not None})
    return different > 1 and different >= _OWN_DATA * len(tasks)


def _has_own_seeds(train: Sequence[Task], held_out: Sequence[Task]) -> bool:
    if all(task.seed == seed_of_id(task.id) for task in train):
        return False
    return {task.seed for task in train}.isdisjoint(task.seed for task in held_out)


def _by_env(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    listed: dict[str, list[Task]] = {}
    for task in first_tasks(tasks, MOST):
        listed.setdefault(task.env, []).append(task)
    return listed


def _contents(tasks: Sequence[Task], known: Known) -> Counter[str]:
    """How often each content occurs; a task with no seed and no data of its own is known by its id."""
    return Counter(content_of(task, known) for task in first_tasks(tasks, MOST))


def content_of(task: Task, known: Known) -> str:
    """What makes the task another one: what its environment is known by, else its seed and data, or its id."""
    own = known[task.env](task) if task.env in known else None
    if own is not None:
        return _text([task.env, own])
    return _text([task.env, task.seed, task.data] if task.seed or task.data else [task.env, task.id])


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)
