"""The renderer's contract: messages to ids and back, without ever re-tokenising what was sampled.

Invariant: what was fed (`start`, `extend`) and what was sampled, concatenated, is the row, id by id. Prompt
text, role headers, tool output and forced ends are context; only sampled ids are actions.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from turnwise.types import Message, ToolSpec


@runtime_checkable
class Render(Protocol):
    """One way of writing a conversation in tokens."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids with which the model ends its turn."""
        ...

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """A whole conversation, up to and including the header of the assistant's next turn."""
        ...

    def extend(self, action_ids: Sequence[int], messages: Sequence[Message]) -> tuple[int, ...]:
        """What follows `action_ids` in the same conversation: new messages and the assistant's next header.

        Where the action was cut off before an end token, the missing end is part of what follows: context.
        """
        ...

    def parse(self, action_ids: Sequence[int]) -> Message:
        """Reads the agent's move; never raises, never drops text: what is malformed is noted in the message."""
        ...

    def write(self, message: Message) -> str:
        """A message of the assistant as the raw text a model would sample, in its own format of tool calls."""
        ...

    def encode_action(self, text: str) -> tuple[int, ...]:
        """The ids an assistant's raw text would be sampled as, its end token last (demonstrations)."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Ids as text, special tokens shown."""
        ...


@runtime_checkable
class DecodesMany(Protocol):
    """A renderer that decodes many sequences faster than one after the other."""

    def decode_many(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """As `decode` of each."""
        ...


def decode_many(render: Render, batch: Sequence[Sequence[int]]) -> list[str]:
    """Each sequence as text, by the renderer's quickest way."""
    return render.decode_many(batch) if isinstance(render, DecodesMany) else [render.decode(ids) for ids in batch]
