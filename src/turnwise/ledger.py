"""Where the seconds and the tokens of a run go: accounts that divide its wall-clock, with no gap and no overlap.

Invariant: at every instant exactly one account is charged, that of the innermost open section or else the base's, so
the accounts of an entry sum to its wall-clock. A ledger belongs to one thread, that of the event loop.
"""

import asyncio
import selectors
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

ACCOUNTS: Mapping[str, str] = {
    "prefill": "reading prompts and observations into the engine's caches",
    "decode": "sampling, token by token, in lanes that had a turn to sample",
    "tail_idle": "the share of decoding that fell to lanes without a turn",
    "tool_wait": "every episode waited for a tool or an environment, and nothing was left to decode",
    "environment": "environment and tool code in the event loop, and the loop itself",
    "render": "messages to tokens and back",
    "load": "giving the engine new weights",
    "logprobs": "log-probabilities and values before the update: old, reference, critic",
    "update": "forward, backward and optimizer steps",
    "padding": "the share of prefill, log-probabilities and update that fell to padding",
    "diagnose": "vitals of the run, and what is done about them",
    "evaluate": "counting what held-out episodes came to; playing them is in the accounts above",
    "sft": "demonstrations, and learning from them",
    "store": "trajectories, metrics and this report",
    "checkpoint": "writing checkpoints and reading them",
    "prepare": "libraries, environment, data, model, optimizer",
    "other": "whatever no account above claims",
}
"""Every account by name, in the order they are shown, and what is charged to it."""

TOKENS: Mapping[str, str] = {
    "prompt_computed": "prompt tokens that the engine read",
    "prompt_reused": "prompt tokens found in a cache instead",
    "prompt_padding": "padding that was read beside them",
    "sampled": "tokens that the agent said",
    "observation": "tokens it was given to read after its first move",
    "trained": "sampled tokens that were learnt from",
    "zero_advantage": "sampled tokens of groups in which no advantage differs from zero: they teach nothing",
    "filtered": "sampled tokens of groups that the filter left out",
    "failed": "sampled tokens of episodes whose environment or tools broke",
    "truncated": "sampled tokens of episodes that a limit cut off, whatever became of them",
    "batch_padding": "padding in one pass over the rows that were learnt from",
    "batch_shared": "tokens of those rows that one pass was spared, since another row opens with the same prompt",
}
"""Every count of tokens by name; in training, `sampled` is the sum of trained, zero_advantage, filtered and failed."""

BASE = "other"
IDLE = "tool_wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One stretch of a run: `Entry(seconds={"decode": 1.5, "update": .5}, tokens={"sampled": 4096}, wall=2.0)`."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    wall: float = 0.0

    def set_apart(self, share: float, *, of: str, into: str) -> "Entry":
        """The same seconds, with a share of one account under a name of its own: the sum stays."""
        assert 0 <= share <= 1, "a share of the whole"
        moved = share * self.seconds.get(of, 0.0)
        if not moved:
            return self
        left = {of: self.seconds[of] - moved, into: self.seconds.get(into, 0.0) + moved}
        return Entry(seconds={**self.seconds, **left}, tokens=self.tokens, wall=self.wall)

    def metrics(self) -> dict[str, float]:
        """`{"ledger/decode_seconds": 1.5, ..., "ledger/wall_seconds": 2.0, "ledger/sampled_tokens": 4096}`."""
        return {
            **{f"ledger/{name}_seconds": value for name, value in self.seconds.items()},
            "ledger/wall_seconds": self.wall,
            **{f"ledger/{name}_tokens": value for name, value in self.tokens.items()},
        }


class Ledger:
    """A run's accounts; whatever no section claims is charged to `other`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._open = [BASE]
        self._seconds: dict[str, float] = {}
        self._tokens: dict[str, int] = {}
        self._opened = self._charged = clock()

    def spend(self, account: str) -> AbstractContextManager[None]:
        """Charges what happens within to an account, save for what sections inside it claim for theirs.

        A section that awaits is charged for whatever other tasks do meanwhile, outside of sections of their own; of
        such sections one must lie within the other.
        """
        return _Section(self, account)

    def _enter(self, account: str) -> int:
        """Opens a section, and says how deep it lies."""
        self._charge()
        self._open.append(account)
        return len(self._open)

    def _leave(self, depth: int) -> None:
        assert len(self._open) == depth, f"a section within '{self._open[depth - 1]}' outlived it"
        self._charge()
        self._open.pop()

    def count(self, **tokens: int) -> None:
        """Adds to the counts of these names: `ledger.count(sampled=512, truncated=40)`."""
        for name, number in tokens.items():
            self._tokens[name] = self._tokens.get(name, 0) + number

    def close_step(self) -> Entry:
        """What was spent and counted since the last time this was asked; sections that are open stay so."""
        now = self._charge()
        entry = Entry(seconds=self._seconds, tokens=self._tokens, wall=now - self._opened)
        self._seconds, self._tokens, self._opened = {}, {}, now
        return entry

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """A loop whose idle time is `tool_wait`: `asyncio.Runner(loop_factory=ledger.new_event_loop)`.

        Windows' own loop has no selector to watch: there, idle time is charged to the section it falls into.
        """
        if sys.platform == "win32":
            return asyncio.new_event_loop()
        return asyncio.SelectorEventLoop(_IdleSelector(self))

    def _charge(self) -> float:
        """Charges the time since the last charge to the account in force, and says what time it is."""
        now = self._clock()
        account = self._open[-1]
        self._seconds[account] = self._seconds.get(account, 0.0) + now - self._charged
        self._charged = now
        return now


class _Section:
    """A stretch of time for one account. There are several to every turn, and a generator would be slow to enter."""

    __slots__ = ("_account", "_depth", "_ledger")

    def __init__(self, ledger: Ledger, account: str) -> None:
        self._ledger, self._account = ledger, account

    def __enter__(self) -> None:
        self._depth = self._ledger._enter(self._account)

    def __exit__(self, *raised: object) -> None:
        self._ledger._leave(self._depth)


class _IdleSelector(selectors.DefaultSelector):
    """Charges the time that an event loop has nothing to do but wait."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Waits for an event; with work at hand the loop gives it no time, and only glances."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        with self._ledger.spend(IDLE):
            return super().select(timeout)
