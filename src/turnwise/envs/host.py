"""`Host`: where an environment's episodes run. This process, unless it was placed in workers (`envs/workers`).

Invariant: the loop that plays episodes asks the host about processes, and the environment about the world.
"""

from collections.abc import Mapping


class Host:
    """`env.host`, of an environment or of one episode of it. This one is the process that asks."""

    @property
    def workers(self) -> int:
        """Processes that episodes run in; 0: in this one."""
        return 0

    def counts(self) -> Mapping[str, int]:
        """What happened to those processes: `{"deaths": 2, "killed": 1, "moved": 5}`; empty where there are none."""
        return {}

    def close(self) -> None:
        """Ends those processes; the environment is of no further use then."""
        return

    def current_line(self) -> str:
        """Where the episode's code is in a call under way, if that is in another process: `support.py:41 in lookup`."""
        return ""

    def is_held_up(self) -> bool:
        """Whether the episode's call has not had its turn, since another episode's code holds the process it is in, or
        that process is still starting."""
        return False


HERE = Host()
