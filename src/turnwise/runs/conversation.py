"""A stored episode as a conversation: who wrote what, thoughts and calls apart, rewards where they were paid.

Invariant: no word is lost. Contexts are split by the role headers of known chat templates; text of any other template
is shown as it is. For people to read: training goes by the ids alone.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from turnwise.render.formats import parse_text
from turnwise.runs.episodes import StoredEpisode
from turnwise.types import Finish, Message, ToolCall

_HEADER: Final = re.compile(
    r"<\|im_start\|>(?P<chatml>\w+)\n?"
    r"|<\|start_header_id\|>(?P<llama>\w+)<\|end_header_id\|>\s*"
    r"|<start_of_turn>(?P<gemma>\w+)\n?"
    r"|<\|(?P<phi>system|user|assistant|tool|observation)\|>\n?"
    r"|<｜(?P<deepseek>System|User|Assistant)｜>"
    r"|\[(?P<mistral>INST|TOOL_RESULTS|SYSTEM_PROMPT|AVAILABLE_TOOLS)\]"
)
_MARK: Final = re.compile(
    r"<\|(?:im_end|eot_id|eom_id|end|endoftext|begin_of_text|end_of_text)\|>|<(?:end_of_turn|bos|eos|/?s)>"
    r"|<｜(?:begin▁of▁sentence|end▁of▁sentence)｜>|\[/(?:INST|TOOL_RESULTS|SYSTEM_PROMPT|AVAILABLE_TOOLS)\]"
)
"""Tokens that begin or end a message and say nothing."""
_TOOL_RESPONSE: Final = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_ROLES: Final = {
    "model": "assistant",
    "ipython": "tool",
    "observation": "tool",
    "inst": "user",
    "tool_results": "tool",
    "system_prompt": "system",
    "available_tools": "system",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One message: `Block(role="tool", text="Fern Hill is the capital of Fenmark.")`."""

    role: str
    """`system`, `user`, `assistant` or `tool`; `context` where the template is not known."""
    text: str
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    turn: int | None = None
    """The agent's turn, counted from 0; None for what it read."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Paid for this turn, by channel."""
    cut: bool = False
    """The turn's limit of tokens cut it off."""
    rewritten: bool = False
    """The first of a conversation that the environment rewrote."""


def read_conversation(episode: StoredEpisode) -> list[Block]:
    """The messages of an episode in order."""
    if episode.trajectory.messages:
        return list(_of_messages(episode))
    blocks: list[Block] = []
    for number, (turn, record) in enumerate(zip(episode.trajectory.turns, episode.turns, strict=True)):
        context = split_context(record.context_text)
        opening = ""
        if context and context[-1].role == "assistant":
            opening = context.pop().text  # what the header of the agent's own turn begins with: `<think>`
        if number and turn.opens_row and context:
            context[0] = Block(role=context[0].role, text=context[0].text, rewritten=True)
        blocks += context
        said = parse_text(opening + _MARK.sub("", record.action_text))
        blocks.append(_of_agent(said, number, turn.rewards, cut=turn.finish is Finish.LENGTH))
    return [*blocks, *(block for block in split_context(episode.tail_text) if block.text)]


def split_context(text: str) -> list[Block]:
    """The messages in what an agent read, as a chat template wrote them; the last may be its own header, empty."""
    headers = list(_HEADER.finditer(text))
    before = _clean(text[: headers[0].start()] if headers else text)
    blocks = [Block(role="context", text=before)] if before else []
    ends = [*(header.start() for header in headers[1:]), len(text)]
    for header, end in zip(headers, ends, strict=False):
        written = next(role for role in header.groupdict().values() if role).lower()
        role, body = _ROLES.get(written, written), _clean(text[header.end() : end])
        answers = _TOOL_RESPONSE.findall(body)
        if answers and not _TOOL_RESPONSE.sub("", body).strip():
            blocks += [Block(role="tool", text=answer) for answer in answers]
        else:
            blocks.append(Block(role=role, text=body))
    return blocks


def _of_messages(episode: StoredEpisode) -> Iterator[Block]:
    turns = iter(enumerate(episode.trajectory.turns))
    for message in episode.trajectory.messages:
        number, turn = next(turns, (None, None)) if message.role == "assistant" else (None, None)
        if number is None or turn is None:
            yield Block(
                role=message.role, text=message.content, thinking=message.thinking, calls=tuple(message.tool_calls)
            )
        else:
            yield _of_agent(message, number, turn.rewards, cut=turn.finish is Finish.LENGTH)


def _of_agent(message: Message, turn: int, rewards: Mapping[str, float], *, cut: bool) -> Block:
    return Block(
        role="assistant",
        text=message.content,
        thinking=message.thinking,
        calls=message.tool_calls,
        turn=turn,
        rewards=rewards,
        cut=cut,
    )


def _clean(text: str) -> str:
    return _MARK.sub("", text).strip("\n")


def first_question(blocks: Sequence[Block]) -> str:
    """The first line that a user wrote, which tells episodes apart at a glance."""
    asked = next((block.text for block in blocks if block.role in ("user", "context") and block.text.strip()), "")
    return asked.strip().partition("\n")[0]
