"""Where a request belongs in its session: which conversation it extends, or why it opens a new row.

Invariant: a request extends a turn only if it repeats, message by message, what that turn read and replied, with the
same tools; then the ids that were read and sampled stand, and only what is new is rendered. Everything else opens a row
and is counted by its cause. The comparison is in the client's terms: clients drop thinking and names, write `null` for
an empty text and serialise a call's arguments anew, and none of that rewrites history.

    request 1   S U            -> turn 0 reads S U          replies A
    request 2   S U A T        -> turn 1 extends turn 0     reads T            (A as it was sampled)
    request 3   S' U'          -> turn 2 opens a row        branched: a sub-agent
    request 4   S U A T B T'   -> turn 3 resumes turn 1     opens a row of the ids of turns 0 and 1, then T'
    request 5   S U'' T'       -> turn 4 opens a row        compacted
"""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, takewhile

from turnwise.types import Message, ToolCall, ToolSpec


class Break(StrEnum):
    """Why a turn does not extend the turn before it."""

    RESUMED = "resumed"
    """It goes on from an earlier turn of the session, whose ids it keeps: back from a sub-agent, or from a branch."""
    RESAMPLED = "resampled"
    """The same prompt again, whose ids it keeps: a further choice (`n`), or a client that tries once more."""
    TOOLS_CHANGED = "tools_changed"
    """The same conversation with other tools, which stand at its beginning."""
    REPLY_EDITED = "reply_edited"
    """A reply comes back other than it was sent."""
    COMPACTED = "compacted"
    """Fewer messages than there were: summarised, or the oldest dropped."""
    REWRITTEN = "rewritten"
    """An earlier message differs."""
    BRANCHED = "branched"
    """Another conversation from its first message on: a sub-agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a turn reads: the new messages after an earlier turn's reply, or a whole conversation."""

    conversation: tuple[Message, ...]
    """All of it, in our terms."""
    fresh: tuple[Message, ...]
    """The messages after the reply of turn `after`; the whole conversation where there is none."""
    after: int | None
    """The turn it goes on from; None opens a row that is rendered whole."""
    extends: bool
    """Whether `after` is the session's last turn, so that the row goes on."""
    cause: Break | None
    """Why a row is opened; None where it is extended or the session begins."""
    marks: tuple[bytes, ...]
    """The messages, as they are compared."""
    fingerprint: bytes
    """Of the tools and all messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A prompt or a conversation that the session has seen."""

    turn: int | None
    """The turn that replied last in it; None in a prompt that opened a row."""
    length: int


class History:
    """The conversations of one session. `place` says where a request belongs, `add` records the reply to it."""

    def __init__(self) -> None:
        self.breaks: Counter[Break] = Counter()
        self._replied: dict[bytes, _Known] = {}
        """By fingerprint of tools and messages, up to and including a reply."""
        self._asked: dict[bytes, _Known] = {}
        """By fingerprint of tools and messages, up to a request's last message."""
        self._marks: list[tuple[bytes, ...]] = []
        """For each turn: the canonical messages of its conversation, its reply the last."""
        self._own_calls: dict[str, ToolCall] = {}
        """What a call is named in our terms, by the id that the client knows."""

    def place(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Placement:
        """Where these messages belong; counts a break."""
        marks = tuple(map(_mark, messages))
        prints = _fingerprints(marks, tools)
        conversation = tuple(map(self._in_our_terms, messages))
        after, length, cause = self._find(marks, prints)
        extends = cause is None and after is not None
        if cause is not None:
            self.breaks[cause] += 1
        return Placement(
            conversation=conversation,
            fresh=conversation[length:],
            after=after,
            extends=extends,
            cause=cause,
            marks=marks,
            fingerprint=prints[-1],
        )

    def add(self, placed: Placement, sent: Message) -> int:
        """Records the turn that replied with `sent`, as the client receives it; returns its number."""
        turn, mark = len(self._marks), _mark(sent)
        length = len(placed.conversation) - len(placed.fresh)
        self._asked.setdefault(placed.fingerprint, _Known(turn=placed.after, length=length))
        replied = _chain(placed.fingerprint, mark)
        self._replied[replied] = _Known(turn=turn, length=len(placed.marks) + 1)
        self._marks.append((*placed.marks, mark))
        return turn

    def name_call(self, sent_id: str, own: ToolCall) -> None:
        """Remembers which call of ours a client knows as `sent_id`."""
        self._own_calls[sent_id] = own

    def _find(self, marks: Sequence[bytes], prints: Sequence[bytes]) -> tuple[int | None, int, Break | None]:
        """The turn that the messages go on from, how many of them it covers, and why a row is opened."""
        again = self._asked.get(prints[-1])
        if again is not None:
            return again.turn, again.length, Break.RESAMPLED
        for fingerprint in reversed(prints[1:-1]):
            known = self._replied.get(fingerprint)
            if known is not None:
                last = known.turn == len(self._marks) - 1
                return known.turn, known.length, None if last else Break.RESUMED
        return None, 0, self._find_cause(marks) if self._marks else None

    def _find_cause(self, marks: Sequence[bytes]) -> Break:
        """Compares with the conversation that begins most alike, the latest of several."""
        shared, nearest = max((_shared(marks, other), turn) for turn, other in enumerate(self._marks))
        other = self._marks[nearest]
        if not shared:
            return Break.BRANCHED
        if shared == len(other) or shared == len(marks) == len(other) - 1:
            return Break.TOOLS_CHANGED
        if len(marks) < len(other):
            return Break.COMPACTED
        return Break.REPLY_EDITED if other[shared].startswith(b"assistant") else Break.REWRITTEN

    def _in_our_terms(self, message: Message) -> Message:
        """Call ids and tool names as the policy's own conversation has them."""
        if message.role == "tool" and message.tool_call_id in self._own_calls:
            own = self._own_calls[message.tool_call_id]
            return dataclasses.replace(message, tool_call_id=own.id, name=own.name or None)
        if message.tool_calls:
            calls = tuple(
                dataclasses.replace(call, id=self._own_calls[call.id].id if call.id in self._own_calls else call.id)
                for call in message.tool_calls
            )
            return dataclasses.replace(message, tool_calls=calls)
        return message


def _mark(message: Message) -> bytes:
    """What a client cannot change about a message without rewriting history."""
    text = message.content.strip() if message.role == "assistant" else message.content
    calls = [(call.id, call.name, _canonical(call.arguments)) for call in message.tool_calls]
    spelled = json.dumps([text, calls, message.tool_call_id], ensure_ascii=False)
    digest = hashlib.blake2b(spelled.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return message.role.encode() + b":" + digest


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _fingerprints(marks: Sequence[bytes], tools: Sequence[ToolSpec]) -> list[bytes]:
    """One for each number of messages, from none to all."""
    told = json.dumps([tool.to_openai() for tool in tools], sort_keys=True)
    start = _chain(b"", told.encode("utf-8", "surrogatepass"))
    return list(accumulate(marks, _chain, initial=start))


def _chain(before: bytes, mark: bytes) -> bytes:
    return hashlib.blake2b(before + mark, digest_size=16).digest()


def _shared(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
