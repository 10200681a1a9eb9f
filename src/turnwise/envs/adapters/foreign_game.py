"""`ForeignGame`: a text adventure of another package as a game of ours, played in a child process.

Invariant: an episode is its task, its episode seed and its commands so far. So a fork, or an episode whose process was
lost to a call of another episode, is played again from these in a process that runs; only a call that hangs itself is a
failure of its episode.
"""

import contextlib
import hashlib
import itertools
import os
import random
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self, TypeVar, Unpack, cast

from turnwise.envs.adapters.child import Child, ChildLostError, Children, ChildTimeoutError, ForeignError
from turnwise.envs.games.game import GameOptions, Move, TextGame
from turnwise.errors import EnvError
from turnwise.tools.episode_thread import EpisodeThread, Paces
from turnwise.types import Json, Task

T = TypeVar("T")

_MOST_COMMAND_CHARS = 200
_numbers = itertools.count()


class WorldOptions(GameOptions, total=False):
    """The arguments that all text adventures share; documented in `ForeignGame`."""

    show_commands: bool
    listed_only: bool
    seconds: float
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a world shows after a command: `View(text="You open the box.", score=0.5, plan=("take key",))`."""

    text: str
    commands: tuple[str, ...] = ()
    """What can be done here, where the package lists it."""
    plan: tuple[str, ...] = ()
    """The commands that win from here, where the package knows them."""
    score: float = 0.0
    """The share of the greatest score that has been reached."""
    won: bool = False
    done: bool = False
    objective: str = ""
    """What is to be done; empty after the first view."""
    key: str = ""
    """A name for the state; empty where the package does not show its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seat:
    """Where an episode is played: gone once the child is of another generation."""

    child: Child
    generation: int
    name: str


class ForeignGame(TextGame):
    """Worlds that a package makes and plays; a subclass gives the server of its child and what `open` is passed."""

    noun = "command"
    server: ClassVar[str]
    """`module:Class` of the object that the child serves: `open(name, setup, seed)`, `act(name, command)`, `close`."""

    def __init__(
        self,
        *,
        show_commands: bool = True,
        listed_only: bool = True,
        seconds: float = 120.0,
        processes: int = 1,
        **shared: Unpack[GameOptions],
    ) -> None:
        """What the adapters of text adventures share.

        Args:
            show_commands: Each observation ends with the commands that are possible.
            listed_only: Only a command of that list is played, and any other is answered as unknown; off, the world's
                own parser answers whatever the agent writes.
            seconds: What one call of the package may take, the making of a world included, before it is killed.
            processes: How many processes play; the episodes are shared out among them.
            shared: What all games share; a turn has one command unless `max_actions_per_turn` says more.
        """
        shared.setdefault("max_actions_per_turn", 1)
        shared.setdefault("max_actions", 50)
        super().__init__(**shared)
        self._show_commands, self._listed_only = show_commands, listed_only
        self._seconds, self._processes = seconds, processes
        self._paces = Paces()
        self._thread: EpisodeThread | None = None
        self._seat: _Seat | None = None

    def connect(self, settings: Mapping[str, Json]) -> None:
        """Starts the first process, with the arguments of the server's class: what is wrong with them is seen now."""
        self._children = Children(self.server, settings, count=self._processes, seconds=self._seconds)
        try:
            self._children.assign().call("ready")
        except ForeignError as error:
            raise EnvError(f"{type(self).__name__} cannot be played so: {error}") from None

    @abstractmethod
    def setup(self, task: Task) -> dict[str, Json]:
        """What the child needs to make this task's world."""

    def begin(self, task: Task, episode_seed: int) -> None:
        self._leave()
        self._start = (task, episode_seed)
        self._past: tuple[str, ...] = ()
        self._view = self._enter()
        self._objective = self._view.objective

    def rules(self) -> str:
        return self._objective

    def show(self) -> str:
        view = self._view
        if not (self._show_commands and view.commands) or view.done:
            return view.text
        return f"{view.text}\nCommands: {', '.join(view.commands)}"

    def legal(self, text: str) -> str | None:
        wanted = " ".join(text.split())
        if self._listed_only:
            return next((one for one in self._view.commands if one.casefold() == wanted.casefold()), None)
        return wanted if 0 < len(wanted) <= _MOST_COMMAND_CHARS and wanted.isprintable() else None

    def play(self, action: str) -> Move:
        before = self._view
        self._view = self._act(action)
        self._past = (*self._past, action)
        return Move(
            reward=self._view.score - before.score,
            done=self._view.done,
            success=self._view.won,
            moved=self._view.key != before.key if before.key else self._view.text != before.text,
        )

    def plan(self) -> list[str]:
        return list(self._view.plan)

    def explain(self) -> str:
        return f"I should {self._view.plan[0]}." if self._view.plan else "I do not know what to do."

    def wander(self, rng: random.Random) -> str:
        return rng.choice(self._view.commands or ("look",))

    def state_key(self) -> str:
        """Names the world's own state; where the package does not show it, the task and all commands so far."""
        if self._view.key:
            return self._view.key
        past = "\n".join((self._start[0].id, *self._past))
        return hashlib.blake2b(past.encode(), digest_size=16).hexdigest()

    def metrics(self) -> dict[str, float]:
        return {"score": self._view.score}

    def spawn(self) -> Self:
        twin = super().spawn()
        twin._thread = twin._seat = None
        return twin

    def fork(self) -> Self:
        """Plays the same past in a world of its own, once it is asked to go on."""
        twin = super().fork()
        twin._thread = twin._seat = None
        return twin

    @property
    def has_deadline(self) -> bool:
        """Each call has one in its process; the wait for a turn there, behind other episodes, is no hang."""
        return True

    async def close(self) -> None:
        if self._seat is not None:
            await self.run_game(self._leave)
        self._thread = None

    async def run_game(self, work: Callable[[], T]) -> T:
        """In the episode's own thread, which waits for the child; the child's deadline bounds every call."""
        if self._thread is None:
            self._thread = EpisodeThread(self._paces)
        return await self._thread.run(work, what=f"{type(self).__name__}'s world", seconds=None)

    def _act(self, command: str) -> View:
        if self._seat is not None:
            with contextlib.suppress(ChildLostError):
                return self._send(self._seat, command)
        # A fork has no world yet, and that of an episode may have been lost to another's call: play its past again.
        self._enter()
        assert self._seat is not None, "entered a moment ago"
        return self._send(self._seat, command)

    def _send(self, seat: _Seat, command: str) -> View:
        try:
            return _read_view(seat.child.call("act", seat.name, command, generation=seat.generation))
        except ChildTimeoutError as error:
            raise TimeoutError(f"'{command}': {error}") from None

    def _enter(self) -> View:
        """Opens the task's world in the next child, and plays what was played before."""
        child, name = self._children.assign(), f"{os.getpid()}-{next(_numbers)}"
        task, episode_seed = self._start
        opened, generation = child.open("open", name, self.setup(task), episode_seed)
        self._seat = _Seat(child=child, generation=generation, name=name)
        view = _read_view(opened)
        for command in self._past:
            view = self._send(self._seat, command)
        return view

    def _leave(self) -> None:
        seat, self._seat = self._seat, None
        if seat is not None:
            with contextlib.suppress(ChildLostError, ForeignError):
                seat.child.call("close", seat.name, generation=seat.generation)


def _read_view(reply: Json) -> View:
    fields = cast(dict[str, Json], reply)
    listed = {name: tuple(cast(list[str], fields.pop(name, ()))) for name in ("commands", "plan")}
    return View(**fields, **listed)  # type: ignore[arg-type]  # as the child's side of the same package wrote it
