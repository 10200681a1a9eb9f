"""Tasks split off the training tasks, to choose settings by without a look at the test.

Invariant: which tasks are held out follows from what they hold, not from the run's seed or their order, so every run
over the same tasks has the same ones; and none of them is demonstrated or trained on, in whatever split it stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from turnwise.checks.tasks import Known, content_of, known_by_data
from turnwise.envs.base import Env
from turnwise.envs.mixture import MixedTasks, members_of
from turnwise.errors import EnvError
from turnwise.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """`hold_out(env, tasks, 300)`."""

    tasks: Sequence[Task] = ()
    """In an order of chance; of a mixture, each environment's after the other's."""
    contents: frozenset[str] = frozenset()
    known: Known = field(default_factory=dict)
    """What makes a task another one, as a question does."""

    def leave_out(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Those that are not held out."""
        if not self.contents:
            return tasks
        parts = tasks.parts if isinstance(tasks, MixedTasks) else {"": tasks}
        for name, own in parts.items():
            if own and not any(map(self._may_train, own)):
                whose = f" of env.mixture.{name}" if name else ""
                raise EnvError(f"evaluate.hold_out: all {len(own)} tasks{whose} in a split are held out: lower it")
        return tasks.keep(self._may_train) if isinstance(tasks, MixedTasks) else [*filter(self._may_train, tasks)]

    def _may_train(self, task: Task) -> bool:
        return content_of(task, self.known) not in self.contents


def hold_out(env: Env, tasks: Sequence[Task], count: int) -> HeldOut:
    """`count` of the tasks, of a mixture so many of each environment; equal tasks are held out as one."""
    if not count:
        return HeldOut()
    known = known_by_data(tasks)
    held: list[Task] = []
    contents: set[str] = set()
    for _, own in members_of(env, tasks):
        different = {content_of(task, known): task for task in own}
        if count >= len(different):
            whose = f" of env.mixture.{own[0].env}" if isinstance(tasks, MixedTasks) else ""
            left = f"{count} of {len(different)} training tasks{whose} leaves none to train on"
            raise EnvError(f"evaluate.hold_out: {left}")
        chosen = sorted(different, key=_rank)[:count]
        held += (different[content] for content in chosen)
        contents.update(chosen)
    return HeldOut(tasks=held, contents=frozenset(contents), known=known)


def _rank(content: str) -> bytes:
    return blake2b(content.encode(), digest_size=8).digest()
