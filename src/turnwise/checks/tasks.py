"""Whether tasks are held out: none of those evaluated on is trained on, and none is there twice."""

import json
from collections import Counter
from collections.abc import Sequence, Set

from turnwise.checks.diagnosis import Diagnosis
from turnwise.envs.mixture import first_tasks
from turnwise.seeds import seed_of_id
from turnwise.types import Task

MOST = 5000
"""Tasks of each kind that are compared: the first ones, of a mixture those of each environment."""
_MANY_TWICE = 0.5
_OWN_DATA = 0.5
"""The share of training tasks that have data of their own where data may be what makes a task."""


def check_tasks(train: Sequence[Task], held_out: Sequence[Task], *, split: str) -> list[Diagnosis]:
    """Diagnoses of tasks that are in both lists, or several times in the first, by their content.

    That is a task's data, and its seed where one was chosen. A list of questions has numbers for seeds, so a question
    has another one in each split; but a level of a game, or a question about a world, is another task by its seed.
    """
    by_data = _known_by_data(train, held_out)
    trained, held = _contents(train, by_data), _contents(held_out, by_data)
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


def _known_by_data(train: Sequence[Task], held_out: Sequence[Task]) -> set[str]:
    """The environments most of whose training tasks have data of their own, and whose seeds were not chosen: they
    follow from ids, or both lists have the same ones."""
    trained, held = _by_env(train), _by_env(held_out)
    return {env for env, own in trained.items() if _has_own_data(own) and not _has_own_seeds(own, held.get(env, []))}


def envs_known_by_data(tasks: Sequence[Task]) -> set[str]:
    """The environments most of whose tasks have data of their own: their seeds make no other task of equal data."""
    return {env for env, own in _by_env(tasks).items() if _has_own_data(own)}


def _has_own_data(tasks: Sequence[Task]) -> bool:
    different = len({_text(task.data) for task in tasks})
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


def _contents(tasks: Sequence[Task], by_data: Set[str]) -> Counter[str]:
    """How often each content occurs; a task with no seed and no data of its own is known by its id."""
    return Counter(content_of(task, by_data) for task in first_tasks(tasks, MOST))


def content_of(task: Task, by_data: Set[str]) -> str:
    """What makes the task another one: its data in the environments of `by_data`, else its seed as well, or its id."""
    if task.data and task.env in by_data:
        return _text([task.env, task.data])
    return _text([task.env, task.seed, task.data] if task.seed or task.data else [task.env, task.id])


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)
