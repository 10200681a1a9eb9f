"""Failed episodes: counted and shown with the commonest failure, and the end of a run where there are too many."""

import logging
from collections import Counter
from collections.abc import Sequence

from turnwise.errors import EnvError
from turnwise.types import StopReason, Trajectory

_logger = logging.getLogger(__name__)


def report_failures(trajectories: Sequence[Trajectory], what: str = "episode", *, most: float | None = None) -> None:
    """Warns of failed episodes; an EnvError where all of them failed, or more than a share `most` of them, if given.

    `what` they are called: `demonstration`.
    """
    failed = [trajectory for trajectory in trajectories if trajectory.stop is StopReason.ENV_FAILED]
    if not failed:
        return
    words = f"{len(failed)} of {len(trajectories)} {what}s failed"
    if len(failed) == len(trajectories):
        raise EnvError(f"every {what} failed, {_commonest(failed)}; try `turnwise check`")
    if most is not None and len(failed) > most * len(trajectories):
        raise EnvError(f"{words}, {_commonest(failed)}; mend it, or raise rollout.max_failures above {most:g}")
    _logger.warning("%s, %s", words, _commonest(failed))


def explain_failure(trajectory: Trajectory) -> str:
    """Its failure, and the row of the file that its task was read from."""
    origin = trajectory.task.origin
    return f"{trajectory.failure} [{origin}]" if origin else trajectory.failure


def _commonest(failed: Sequence[Trajectory]) -> str:
    """`7 times alike: task 'train-3': step: KeyError: 'gold' (support.py:41 in solved)`."""
    kinds = [_kind(trajectory) for trajectory in failed]
    kind, times = Counter(kinds).most_common()[0]
    first = explain_failure(failed[kinds.index(kind)])
    return f"the first: {first}" if times == 1 else f"{times} times alike: {first}"


def _kind(trajectory: Trajectory) -> str:
    """What is alike in failures of one cause, whatever their task and values: the call, the error, the line."""
    words = trajectory.failure.removeprefix(f"task '{trajectory.task.id}': ")
    line = words[words.rfind("(") :] if words.endswith(")") else ""
    return ":".join(words.split(":")[:2]) + line
