"""A gateway session as an environment: a program's requests are what the agent reads, its replies are answered by HTTP.

Invariant: every reply that a client receives is one turn of the episode, in the order of the turns; what a client sends
beside requests (rewards, an end, a failure) belongs to the turn that was answered last.
"""

import asyncio
import dataclasses
import hashlib
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from turnwise.envs.base import Env
from turnwise.errors import EnvError
from turnwise.gateway.chat import Answer, ChatRequest, ErrorKind, GatewayError, Reply
from turnwise.gateway.history import Break, History, Placement
from turnwise.gateway.session import Ended, Event, Exchange, Paid, Session, refuse
from turnwise.render.formats import format_message
from turnwise.types import Message, Step, Task, ToolSpec, Turn, TurnRequest

_OVER = GatewayError(ErrorKind.NO_SESSION, "this session is over: its episode has ended")


class ProgramFailed(Exception):
    """The program, or something it relies on, broke: the episode is counted as failed and not scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What an episode earned at its end: rewards by name, weights applied, and metrics such as `success`."""

    rewards: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class _Live:
    """The state of one episode."""

    task: Task
    session: Session
    deadline: float | None
    history: History = field(default_factory=History)
    exchange: Exchange | None = None
    """The request that is being answered."""
    placed: Placement | None = None
    replies: list[Reply] = field(default_factory=list)
    """The choices sampled for it so far."""
    refused: bool = False
    """Whether the request before was refused after the policy had read it."""
    row_tokens: int = 0
    """The length of the row after the last turn."""
    prompt_tokens: int = 0
    conversation: tuple[Message, ...] = ()
    """The last one, with its reply."""
    paid: dict[str, float] = field(default_factory=dict)
    """Rewards by name since the last step."""
    total: float = 0.0
    done: bool = False
    counts: Counter[str] = field(default_factory=Counter)


class SessionEnv(Env):
    """Plays the requests of a session; a subclass begins it, scores it and stops what runs behind it."""

    def __init__(self, *, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._shown: set[str] = set()
        """Counts that were ever more than 0, of all episodes: from then on each episode reports them."""

    @property
    def has_deadline(self) -> bool:
        return True

    @property
    def keeps_conversation(self) -> bool:
        return True

    @abstractmethod
    async def begin(self, task: Task, episode_seed: int) -> Session:
        """Opens the session of an episode and starts what will send requests to it."""

    async def wait(self) -> Event:
        """The next event of the session, before the episode's deadline."""
        live = self.live
        try:
            async with asyncio.timeout_at(live.deadline):
                return await live.session.next()
        except TimeoutError:
            raise ProgramFailed(f"it was still running after {self._seconds:g} seconds") from None

    def find_fault(self, request: ChatRequest) -> str | None:
        """Why a request cannot be answered, for the client; None where it can."""
        return None

    def scores(self, ended: Ended) -> bool:
        """Whether an episode that ended so is scored; a failure is not."""
        return not ended.failure

    @abstractmethod
    async def score(self, ended: Ended, conversation: tuple[Message, ...]) -> Score:
        """What an episode earned that the program ended; raises `ProgramFailed` where it is not to be scored."""

    @abstractmethod
    async def stop(self) -> None:
        """Ends whatever `begin` started."""

    @property
    def live(self) -> _Live:
        live: _Live | None = getattr(self, "_live", None)
        assert live is not None, "reset comes first"
        return live

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        live: _Live | None = getattr(self, "_live", None)
        return live.exchange.request.tools if live is not None and live.exchange is not None else ()

    @property
    def task(self) -> Task:
        """The task of this episode."""
        return self.live.task

    @property
    def conversation(self) -> tuple[Message, ...]:
        """What the agent reads next, in full."""
        placed = self.live.placed
        return placed.conversation if placed is not None else ()

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        session = await self.begin(task, episode_seed)
        deadline = None if self._seconds is None else asyncio.get_running_loop().time() + self._seconds
        self._live = _Live(task=task, session=session, deadline=deadline)
        await self._next_step()
        return self.conversation

    def state_key(self) -> str | None:
        """Names what the agent has read in this conversation, and after how many replies; its own words are no part."""
        replies = sum(message.role == "assistant" for message in self.conversation)
        digest = hashlib.blake2b(f"{self.task.id}\n{replies}".encode(), digest_size=8)
        for message in self.conversation:
            if message.role != "assistant":
                digest.update(f"\n{message.role}\n{message.content}".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def turn_request(self) -> TurnRequest:
        exchange = self.live.exchange
        assert exchange is not None, "a turn answers a request"
        return TurnRequest(max_tokens=exchange.request.max_tokens, stop=exchange.request.stop)

    async def step(self, message: Message) -> Step:
        return await self.receive(Turn(message=message))

    async def receive(self, turn: Turn) -> Step:
        started: _Live | None = getattr(self, "_live", None)
        if started is None or started.exchange is None or started.done:
            moment = "after the episode was done" if started is not None and started.done else "before reset"
            raise EnvError(f"{type(self).__name__} was stepped {moment}; call reset first")
        live = started
        assert live.exchange is not None, "checked above"
        assert live.placed is not None, "a request has its place"
        live.prompt_tokens = (0 if turn.opens_row else live.row_tokens) + len(turn.context_ids)
        live.row_tokens = live.prompt_tokens + len(turn.action_ids)
        reply = self._write_reply(turn, live.exchange.request)
        number = live.history.add(live.placed, reply.message)
        live.conversation = (*live.placed.conversation, turn.message or reply.message)
        live.replies.append(reply)
        request = live.exchange.request
        if len(live.replies) < request.n:
            return self._ask(live.exchange)
        answer = Answer(
            id=f"{live.session.name}-{number}",
            created=int(time.time()),
            request=request,
            replies=tuple(live.replies),
            prompt_tokens=live.prompt_tokens,
        )
        live.session.answer(live.exchange, answer)
        return await self._next_step()

    async def overflow(self) -> Step | None:
        """Refuses the request as an API does whose context is full; a program may then send a shorter one."""
        live = self.live
        assert live.exchange is not None, "a conversation that is full was asked for"
        live.counts["context_full"] += 1
        live.refused = True
        refuse(
            live.exchange, GatewayError(ErrorKind.CONTEXT_FULL, "the conversation exceeds the context of this model")
        )
        try:
            return await self._next_step()
        except ProgramFailed:
            return None  # it cannot go on without its model: cut off, not broken

    async def close(self) -> None:
        live: _Live | None = getattr(self, "_live", None)
        lost = live.session.close(_OVER) if live is not None else []
        await self.stop()
        if unpaid := [event for event in lost if isinstance(event, Paid)]:
            raise ProgramFailed(f"{len(unpaid)} rewards came after the episode had ended")

    async def _next_step(self) -> Step:
        """What the program does next: a request, or the end; rewards on the way are paid to the last turn."""
        live = self.live
        while True:
            match event := await self.wait():
                case Paid(name=name, value=value):
                    _add(live.paid, {name: value})
                case Exchange() if (why := self.find_fault(event.request)) is not None:
                    refuse(event, GatewayError(ErrorKind.INVALID, why, param="messages"))
                case Exchange():
                    live.replies = []
                    live.counts.update(f"overridden_{name}" for name in event.request.overridden)
                    return self._ask(event)
                case Ended():
                    return await self._finish(event)

    def _ask(self, exchange: Exchange) -> Step:
        """The step that makes the agent answer a request, or sample a further choice."""
        live = self.live
        live.exchange = exchange
        placed = live.placed = live.history.place(exchange.request.messages, exchange.request.tools)
        resumes = not placed.extends
        if placed.extends and live.refused:  # the policy has read the refused messages: back to the turn before them
            live.history.breaks[Break.RESUMED] += 1
            resumes = True
        live.refused = False
        return Step(
            messages=placed.fresh if placed.after is not None else (),
            rewrites=placed.conversation if resumes else None,
            resumes=placed.after if resumes else None,
            rewards=self._take_paid(),
            metrics=self._metrics(),
        )

    async def _finish(self, ended: Ended) -> Step:
        live = self.live
        live.done = True
        if not self.scores(ended):
            raise ProgramFailed(ended.failure)
        if not live.conversation:
            raise ProgramFailed(f"it ended before its first request to the model{ended.last_words}")
        score = await self.score(ended, live.conversation)
        _add(live.paid, score.rewards)
        rewards = self._take_paid()
        metrics = {"success": float(live.total >= 1.0), **self._metrics(), **score.metrics, **ended.metrics}
        return Step(done=True, rewards=rewards, metrics=metrics)

    def _take_paid(self) -> dict[str, float]:
        live = self.live
        if not live.conversation:
            return {}  # there is no turn to pay yet
        paid, live.paid = live.paid, {}
        live.total += sum(paid.values())
        return paid

    def _metrics(self) -> dict[str, float]:
        live = self.live
        counts = Counter({f"breaks_{cause}": count for cause, count in live.history.breaks.items()})
        counts.update(live.counts)
        counts.update(retries=live.session.counts["retries"], withdrawn=live.session.counts["withdrawn"])
        self._shown.update(name for name, count in counts.items() if count)
        shown = {name: float(counts[name]) for name in sorted(self._shown)}
        return {"breaks": float(live.history.breaks.total()), **shown}

    def _write_reply(self, turn: Turn, request: ChatRequest) -> Reply:
        """A turn as the client receives it: call ids of its own, unreadable calls as text, cut at a stop string."""
        message = turn.message
        assert message is not None, "a turn that was just taken has its message"
        live = self.live
        calls = []
        for call in message.tool_calls:
            if not call.problem:
                sent = dataclasses.replace(call, id=f"call_{live.session.name[-8:]}_{live.counts['tool_calls']}")
                live.counts["tool_calls"] += 1
                live.history.name_call(sent.id, call)
                calls.append(sent)
        unreadable = tuple(call for call in message.tool_calls if call.problem)
        live.counts["unreadable_calls"] += len(unreadable)
        content = format_message(dataclasses.replace(message, thinking="", tool_calls=unreadable))
        found = [(content.find(string), string) for string in request.stop if string in content]
        cut, stop_string = min(found, default=(None, None))
        return Reply(
            message=dataclasses.replace(message, content=content[:cut], tool_calls=tuple(calls)),
            finish=turn.finish,
            stop_string=stop_string,
            token_ids=turn.action_ids,
            logprobs=turn.logprobs,
            version=turn.version,
        )


def _add(paid: dict[str, float], further: Mapping[str, float]) -> None:
    for name, value in further.items():
        paid[name] = paid.get(name, 0.0) + value
