"""What an environment hands to the rollout, checked where it arrives: messages are messages, numbers are numbers."""

import math
from collections.abc import Iterable, Sequence

from turnwise.errors import EnvError
from turnwise.types import Message, Step


def check_opening(returned: object) -> tuple[Message, ...]:
    """What `reset` returned, as messages; an EnvError where it is anything else."""
    if isinstance(returned, str | Message) or not isinstance(returned, Iterable):
        raise EnvError(f"reset returned {_name(returned)}, not messages; return [Message(role='user', content=...)]")
    messages = tuple(returned)
    if not messages:
        raise EnvError("reset returned no messages; return [Message(role='user', content=...)]")
    _check_messages(messages, "reset")
    return messages


def check_step(returned: object) -> Step:
    """What `step` returned, as a `Step`; an EnvError where it is none, or holds what cannot be read or counted."""
    if not isinstance(returned, Step):
        raise EnvError(f"step returned {_name(returned)}, not a Step; return Step(messages=..., done=...)")
    _check_messages(returned.messages, "step")
    if returned.rewrites is not None:
        _check_messages(returned.rewrites, "step (rewrites)")
    for name, value in returned.metrics.items():
        # What is a finite float at first sight, as nearly all are, costs no call.
        if (value.__class__ is not float or value - value != 0.0) and not _is_number(value):
            raise EnvError(f"metric '{name}' is {value!r}; give a finite number")
    return returned


def check_expert(returned: object) -> Message:
    """What `expert` returned, as the agent's message; an EnvError where it is anything else."""
    if not isinstance(returned, Message) or returned.role != "assistant":
        raise EnvError(f"expert returned {_name(returned)}, not a message; return Message(role='assistant', ...)")
    _check_messages((returned,), "expert")
    return returned


def _check_messages(messages: Sequence[object], source: str) -> None:
    for message in messages:
        if not isinstance(message, Message):
            raise EnvError(f"{source} gave {_name(message)} among its messages; write Message(role=..., content=...)")
        content: object = message.content
        if not isinstance(content, str):
            raise EnvError(f"{source} gave a message whose content is {_name(content)}; write text")
        if not content.isascii():
            _check_encodable(content, source)


def _check_encodable(content: str, source: str) -> None:
    try:
        content.encode()
    except UnicodeEncodeError as error:
        broken = content[error.start : error.end]
        raise EnvError(f"{source} gave a message with {broken!r} in it, which no tokenizer can read") from None


def _is_number(value: object) -> bool:
    try:
        return not isinstance(value, str) and math.isfinite(value)  # type: ignore[arg-type]  # what it is not raises
    except (TypeError, ValueError, OverflowError):
        return False


def _name(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
