"""What the trainer and a worker say to each other. Nothing here knows how it is carried.

Invariant: every `Call` is answered by one `Answer` or one `Failed`, unless the worker dies. Calls of one episode are
made one at a time; those of different episodes run side by side.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from turnwise.envs.registry import EnvSettings
from turnwise.types import Message, Step, Task, ToolSpec

Method: TypeAlias = Literal["reset", "step", "overflow", "expert", "expert_summary", "close"]


@dataclass(frozen=True, slots=True)
class Reset:
    """The arguments of `reset`, and on which environment it is called."""

    task: Task
    episode_seed: int
    faults: bool
    """Whether on that with faults (`env.chaos`)."""
    attempt: int
    """How many workers this episode was on before."""


@dataclass(frozen=True, slots=True)
class Call:
    """`Call(7, 3, "step", Message(...))`: the seventh call, of the third episode."""

    id: int
    episode: int
    method: Method
    argument: Reset | Message | None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nothing waits for this call any more."""

    id: int


@dataclass(frozen=True, slots=True)
class Opening:
    """What `reset` led to."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call returned, and the state key after it."""

    id: int
    value: Opening | Step | Message | None
    state_key: str | None
    state_key_failure: str
    """Why there is none, if computing it failed; it is raised where the key is asked for."""


@dataclass(frozen=True, slots=True)
class Failed:
    """What a call raised, in words, with the line of the user's code."""

    id: int
    words: str


@dataclass(frozen=True, slots=True)
class Lines:
    """Where calls are that take long: `Lines({7: "support.py:41 in lookup"}, 7)`."""

    by_call: dict[int, str]
    running: int
    """The call whose code holds the event loop at this moment, so that no other gets its turn; 0: none."""


@dataclass(frozen=True, slots=True)
class Log:
    """A warning of the worker's, to be logged by the trainer."""

    logger: str
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Spent:
    """What judges cost in this worker since it last said so, by metric."""

    costs: dict[str, float]


@dataclass(frozen=True, slots=True)
class Stuck:
    """Threads of calls that were given up are still busy, or are many; only the end of the process ends them."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The worker is stuck and has no episode left: it ends itself."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has its environment, or says why it has none."""

    failure: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """How a worker ended: `End("killed by SIGSEGV")`, `End("lost with its node cpu-7", node="cpu-7 #2")`."""

    words: str
    node: str = ""
    """What it was lost with; then no call of its own is to blame. Workers that were lost together have the same."""


ToWorker: TypeAlias = Call | Cancel
FromWorker: TypeAlias = Answer | Failed | Lines | Log | Spent | Stuck | Leaving | Ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """What a worker makes its environment from: the settings of it, or a pickle where it was made in Python."""

    settings: EnvSettings | None
    pickled: bytes
    folders: tuple[str, ...]
    """Where its modules are found (`sys.path`)."""


class Nursery(Protocol):
    """Makes workers and ends them, on this machine or on others."""

    def start(self) -> "Connection":
        """A new worker, which will say `Ready`."""
        ...

    def close(self) -> None:
        """Ends all workers."""
        ...


class Connection(Protocol):
    """The trainer's end of a transport; no call of it blocks but `wait`."""

    @property
    def is_near(self) -> bool:
        """Whether a message takes so little time that the event loop may stand still for the answer."""
        ...

    def send(self, *messages: ToWorker) -> None:
        """Sends them together."""
        ...

    def receive(self) -> list[FromWorker]:
        """What has arrived; an EOFError where the worker is gone and everything it said was received."""
        ...

    def wait(self, seconds: float) -> None:
        """Waits until something may have arrived, or the worker is gone."""
        ...

    def kill(self) -> None:
        """Ends the worker and all processes that it started."""
        ...

    def how_it_ended(self) -> End:
        """To be asked after an EOFError."""
        ...

    def watch(self, loop: AbstractEventLoop, arrived: Callable[[], None]) -> None:
        """Has an event loop call `arrived` whenever something may have arrived, until `close`."""
        ...

    def close(self) -> None:
        """Frees the transport; a worker that is still there ends by itself."""
        ...
