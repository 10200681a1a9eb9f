"""Arguments of an environment that are functions, which a recipe gives by name: its tasks, its expert.

Invariant: what Python passes as an object and a recipe as a name comes to the same.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast

from turnwise.envs.base import Env
from turnwise.envs.tool_env import TaskList, read_tasks
from turnwise.errors import EnvError
from turnwise.plugins import PluginKind, find_function
from turnwise.types import Json, Message, Task

Expert: TypeAlias = Callable[[Task, Sequence[Message]], Message]
"""The message that an expert would write next in a conversation."""
TasksOf: TypeAlias = Callable[[str], Sequence[Task]]
"""The tasks of a split."""


class WithFunctions(Env):
    """An environment whose tasks and expert the user may give as functions; it comes before other base classes."""

    _tasks_of: TasksOf | None = None
    _expert_of: Expert | None = None

    @abstractmethod
    def episode_so_far(self) -> tuple[Task, Sequence[Message]]:
        """What the expert is asked about: the task, and the conversation."""

    def tasks(self, split: str) -> Sequence[Task]:
        return super().tasks(split) if self._tasks_of is None else self._tasks_of(split)

    @property
    def has_expert(self) -> bool:
        return self._expert_of is not None

    def expert(self) -> Message:
        if self._expert_of is None:
            name = type(self).__name__
            raise EnvError(f"{name} has no expert: pass expert=..., or give sft a file of chats")
        return self._expert_of(*self.episode_so_far())


def find_expert(given: Expert | str | None) -> Expert | None:
    """The expert of an environment; None where it has none."""
    return cast(Expert | None, find_argument("expert", given, "write a function of a task and its messages"))


def find_argument(argument: str, given: object, contract: str) -> Callable[..., object] | None:
    """A function, or the one that a recipe names as `module:name` or `file.py:name`; None stays None."""
    if given is None or callable(given):
        return given
    kind = PluginKind(
        key=f"env.args.{argument}", noun="function", group="turnwise.programs", args="env.args", contract=contract
    )
    return find_function(kind, str(given), {})


def find_tasks(tasks: TaskList | Mapping[str, TaskList] | str) -> TasksOf | None:
    """Where the tasks of a split come from: lists, a `.jsonl` file, a function by name; None where none were given."""
    if isinstance(tasks, str) and not tasks.endswith(".jsonl"):
        return cast(TasksOf, find_argument("tasks", tasks, "write a function of the split that returns a list of Task"))
    listed = read_tasks(_read_lines(Path(tasks)) if isinstance(tasks, str) else tasks)
    if not listed:
        return None

    def choose(split: str) -> Sequence[Task]:
        if split not in listed and "" not in listed:
            raise EnvError(f"there is no split '{split}'; the splits are: {', '.join(listed)}")
        return listed.get(split, listed.get("", ()))

    return choose


def _read_lines(path: Path) -> list[dict[str, Json]]:
    """The data of tasks, a JSON object on each line of a file."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        data = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise EnvError(f"tasks: cannot read {path} ({error}): give a file with a JSON object on each line") from None
    return data
