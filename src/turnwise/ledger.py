"""Where the seconds and the tokens of a run go: accounts that divide its wall-clock, with no gap and no overlap.

Invariant: at every instant exactly one account is charged, that of the innermost open section or else the base's, so
the accounts of an entry sum to its wall-clock. A ledger belongs to one thread, that of the event loop.
"""

import asyncio
import selectors
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

ACCOUNTS: Mapping[str, str] = {
    "prefill": "reading prompts and observations into the engine's caches",
    "decode": "sampling token by token, in slots with a turn to sample",
    "tail_idle": "the share of decoding spent on slots without a turn",
    "tool_wait": "all episodes waiting for a tool or an environment, with nothing left to decode",
    "environment": "environment and tool code in the event loop, and the loop itself",
    "render": "messages to tokens and back",
    "load": "loading new weights into the engine",
    "logprobs": "log-probabilities and values before the update: old, reference, critic",
    "update": "forward, backward and optimizer steps",
    "padding": "the share of prefill, log-probabilities and update spent on padding",
    "diagnose": "health metrics and the controller's decision",
    "evaluate": "scoring held-out episodes; playing them is in the accounts above",
    "sft": "demonstrations and the supervised steps on them",
    "store": "trajectories, metrics, callbacks and this report, as far as the run waits for them",
    "checkpoint": "writing and reading checkpoints; for those written behind the run, copying and waiting",
    "prepare": "libraries, environment, data, model, optimizer",
    "other": "everything outside the accounts above",
}
"""Every account by name, in display order, with what is charged to it."""

TOKENS: Mapping[str, str] = {
    "prompt_computed": "prompt tokens computed by the engine",
    "prompt_reused": "prompt tokens reused from a cache",
    "prompt_padding": "padding computed with them",
    "sampled": "tokens sampled from the policy",
    "observation": "environment tokens after the first turn",
    "trained": "sampled tokens that were trained on",
    "zero_advantage": "sampled tokens of groups whose advantages are all zero: no gradient",
    "filtered": "sampled tokens of groups dropped by the filter",
    "failed": "sampled tokens of episodes whose environment or tools failed",
    "truncated": "sampled tokens of episodes truncated by a limit; each is in one of the counts above, too",
    "batch_padding": "padding in one pass over the training rows",
    "batch_shared": "training tokens computed once for several rows that open with the same prompt",
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

    def move_share(self, share: float, *, of: str, into: str) -> "Entry":
        """Moves a share of one account into another; the sum does not change."""
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
    """A run's accounts; time outside every section is charged to `other`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.idle = IDLE
        """What an idle event loop waits for; an engine of servers says when it waits for them."""
        self._open = [BASE]
        self._idle: str | None = None
        self._seconds: dict[str, float] = {}
        self._tokens: dict[str, int] = {}
        self._opened = self._charged = clock()

    def spend(self, account: str) -> AbstractContextManager[None]:
        """Charges the time inside the `with` block to an account, except what nested sections charge to theirs.

        A section that awaits is also charged for other tasks that run meanwhile outside of sections of their own;
        sections of different tasks must nest.
        """
        return _Section(self, account)

    @contextmanager
    def wait_for(self, account: str) -> Iterator[None]:
        """Charges an account while the event loop awaits another thread's work: what the loop itself does meanwhile in
        sections of its own is charged to those, and its idle time to this account."""
        before, self._idle = self._idle, account
        try:
            with self.spend(account):
                yield
        finally:
            self._idle = before

    def _enter(self, account: str) -> int:
        """Opens a section and returns its depth."""
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
        """The time and tokens since the last call; open sections stay open."""
        now = self._charge()
        entry = Entry(seconds=self._seconds, tokens=self._tokens, wall=now - self._opened)
        self._seconds, self._tokens, self._opened = {}, {}, now
        return entry

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop whose idle time is charged to `idle`: `asyncio.Runner(loop_factory=ledger.new_event_loop)`.

        The Windows loop has no selector: there, idle time is charged to the section that is open.
        """
        if sys.platform == "win32":
            return asyncio.new_event_loop()
        return asyncio.SelectorEventLoop(_IdleSelector(self))

    def _charge(self) -> float:
        """Charges the time since the last charge to the innermost open account and returns the current time."""
        now = self._clock()
        account = self._open[-1]
        self._seconds[account] = self._seconds.get(account, 0.0) + now - self._charged
        self._charged = now
        return now


class _Section:
    """One timed section. There are several per turn, and entering a generator would be slow."""

    __slots__ = ("_account", "_depth", "_ledger")

    def __init__(self, ledger: Ledger, account: str) -> None:
        self._ledger, self._account = ledger, account

    def __enter__(self) -> None:
        self._depth = self._ledger._enter(self._account)

    def __exit__(self, *raised: object) -> None:
        self._ledger._leave(self._depth)


class _IdleSelector(selectors.DefaultSelector):
    """Charges the time an event loop spends waiting."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Waits for events; a loop that has work ready passes a timeout of 0, which is not idle time."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        with self._ledger.spend(self._ledger._idle or self._ledger.idle):
            return super().select(timeout)
