"""A Hugging Face chat template as text: whole conversations, and what follows an action alone.

Invariant: everything is found by rendering small conversations with the template itself; no model
family is known by name, so a template never seen before works like the known ones.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby, takewhile
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

from pydantic import Field, JsonValue

from turnwise.errors import RenderError
from turnwise.render.formats import CallFormat, format_message, parse_text
from turnwise.settings import Settings
from turnwise.types import Json, Message, ToolSpec

ChatMessage: TypeAlias = Mapping[str, Json]
CHAT: Final = "chat"
"""The name of the renderer by chat template."""

# Letters only: no template trims, escapes or reformats them, and no tokenizer knows the words.
_SENTINEL: Final = "qzSENTINELzq"
_ASK: Final[ChatMessage] = {"role": "user", "content": "Hello"}
_ACTION: Final[ChatMessage] = {"role": "assistant", "content": _SENTINEL}
_NOTE: Final = "qzNOTEzq"
_NOTE_FROM_SYSTEM: Final[ChatMessage] = {"role": "system", "content": _NOTE}
_PROBE: Final = ToolSpec(
    name="qzprobezq",
    description="Repeats a text.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)


class RenderSettings(Settings):
    """How conversations are written in tokens."""

    name: str = CHAT
    """`chat` writes by the tokenizer's chat template; a renderer of your own is named `module:Class` or
    `file.py:Class` and made as `Class(tokenizer, **args)`."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    """Further arguments of a renderer of your own."""
    template: Path | None = None
    """A Jinja file to use in place of the tokenizer's own chat template."""
    tool_style: Literal["auto", "native", "system"] = "auto"
    """`native`: the template writes schemas and tool results. `system`: schemas and how to call (Hermes) go
    into the system text, results into user messages. `auto`: native where the template can and the calls it
    writes are ones we read."""
    variables: dict[str, bool | int | str] = Field(default_factory=dict)
    """Passed to the template, which must know them: `{enable_thinking: false}`, `{date_string: 26 Jul 2024}`."""

    def unread(self) -> Mapping[str, str]:
        return dict.fromkeys(("args",) if self.name == CHAT else ("template", "tool_style", "variables"), "name")


class AddedToken(Protocol):
    """A token outside the ordinary vocabulary."""

    @property
    def content(self) -> str: ...

    @property
    def special(self) -> bool: ...

    @property
    def lstrip(self) -> bool: ...

    @property
    def rstrip(self) -> bool: ...

    @property
    def single_word(self) -> bool: ...


class Tokenizer(Protocol):
    """What rendering needs of a tokenizer; every fast tokenizer of transformers has it."""

    @property
    def name_or_path(self) -> str: ...

    @property
    def chat_template(self) -> str | Mapping[str, str] | None: ...

    @property
    def eos_token_id(self) -> int | None: ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, AddedToken]: ...

    def apply_chat_template(
        self,
        conversation: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Json]] | None,
        *,
        chat_template: str | None,
        add_generation_prompt: bool,
        tokenize: Literal[False],
        **variables: Json,
    ) -> str: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str: ...


class ChatTemplate:
    """One tokenizer's way of laying out a conversation as text."""

    def __init__(self, tokenizer: Tokenizer, settings: RenderSettings) -> None:
        self._tokenizer = tokenizer
        self._own = _read_template(settings.template)
        if self._own is None and not tokenizer.chat_template:
            raise RenderError(
                f"tokenizer '{tokenizer.name_or_path}' has no chat template: name a chat (instruct) model, "
                "or give render.template a path to a Jinja file"
            )
        self._variables = _check_variables(settings.variables, self._own or tokenizer.chat_template)
        self._specials = _match_specials(tokenizer)
        self._takes_system = self._can_write(_NOTE, [_NOTE_FROM_SYSTEM, _ASK])
        # Some templates lift every system message to the front, where an agent that has acted never reads it.
        self._takes_late_system = self._can_write_after_action(_NOTE, [_NOTE_FROM_SYSTEM, _ASK])
        self._takes_turns = not self._can_write(_NOTE, [{**_NOTE_FROM_SYSTEM, "role": "user"}, _ASK])
        native = None if settings.tool_style == "system" else self._find_native_calls()
        if native is None and settings.tool_style == "native":
            raise RenderError(
                "render.tool_style=native: the chat template does not write tools, tool results and calls in a "
                "format we read (Hermes or Llama 3); use auto or system"
            )
        self._native = native is not None
        self.call_format: Final = native or CallFormat.HERMES

    def write(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """A whole conversation, up to and including the header of the assistant's next turn."""
        native_tools = tools if self._native else ()
        told = messages if self._native or not tools else _tell_tools(messages, tools)
        return self._apply(self._lay_out(told, at_start=True), native_tools, header=True)

    def write_after_action(self, messages: Sequence[Message]) -> str:
        """What follows an action's text: the end of its turn, the new messages, the assistant's next header."""
        laid_out = self._lay_out(messages, at_start=False)
        # Tokenizers with several templates choose by whether tools are given, and only one may know the role.
        tools = (_PROBE,) if any(message["role"] == "tool" for message in laid_out) else ()
        return self._after_sentinel([_ASK, _ACTION, *laid_out], tools, header=True)

    def write_end_of_turn(self) -> str:
        """What stands after an action whether or not more follows: `<|im_end|>` and a newline in ChatML."""
        last = self._after_sentinel([_ASK, _ACTION], (), header=False)
        inner = self._after_sentinel([_ASK, _ACTION, _ASK], (), header=True)
        return _shared_start(last, inner)

    def _apply(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec], *, header: bool) -> str:
        from jinja2 import TemplateError  # a recipe is read without it

        try:
            return self._tokenizer.apply_chat_template(
                list(messages),
                [tool.to_openai() for tool in tools] or None,
                chat_template=self._own,
                add_generation_prompt=header,
                tokenize=False,
                **self._variables,
            )
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(str(message["role"]) for message in messages) or "no messages"
            reason = " ".join(str(error).split())
            raise RenderError(
                f"the chat template of '{self._tokenizer.name_or_path}' cannot write a conversation of {roles}: "
                f"{reason}; give render.template a Jinja file that can"
            ) from error

    def _after_sentinel(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec], *, header: bool) -> str:
        _, sentinel, after = self._apply(messages, tools, header=header).partition(_SENTINEL)
        if not sentinel:
            raise RenderError(
                f"the chat template of '{self._tokenizer.name_or_path}' does not write the assistant's messages; "
                "give render.template a Jinja file that does"
            )
        return after

    def _can_write(self, word: str, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec] = ()) -> bool:
        try:
            return word in self._apply(messages, tools, header=True)
        except RenderError:
            return False

    def _can_write_after_action(self, word: str, messages: Sequence[ChatMessage]) -> bool:
        try:
            return word in self._after_sentinel([_ASK, _ACTION, *messages], (_PROBE,), header=True)
        except RenderError:
            return False

    def _find_native_calls(self) -> CallFormat | None:
        """The format of the template's own tool calls; None where it has none, or none that we read."""
        result: ChatMessage = {"role": "tool", "content": _NOTE, "name": _PROBE.name, "tool_call_id": "call00000"}
        tells = self._can_write(_PROBE.name, [_ASK], (_PROBE,))
        if not tells or not self._can_write_after_action(_NOTE, [result]):
            return None
        function: Json = {"name": _PROBE.name, "arguments": {"text": "Oslo"}}
        call: Json = {"id": "call00000", "type": "function", "function": function}
        try:
            called = self._apply([_ASK, {**_ACTION, "content": "", "tool_calls": [call]}], (_PROBE,), header=False)
            spoken = self._apply([_ASK, _ACTION], (_PROBE,), header=False)
        except RenderError:
            return None
        before, _, after = spoken.partition(_SENTINEL)
        # The call stands where the words would: after the same header, before the same end of turn.
        written = called.removeprefix(before).removesuffix(after)
        calls = parse_text(written).tool_calls
        if len(calls) != 1 or calls[0].problem or calls[0].name != _PROBE.name:
            return None
        if json.loads(calls[0].arguments) != {"text": "Oslo"}:
            return None
        return CallFormat.HERMES if "<tool_call>" in written else CallFormat.LLAMA3

    def _lay_out(self, messages: Sequence[Message], *, at_start: bool) -> list[ChatMessage]:
        """Messages as the template takes them: what was said is plain text, roles are ones it knows."""
        laid_out = [self._make_speakable(message) for message in messages]
        if not self._native:
            laid_out = _turn_results_into_user_messages(laid_out)
        for i, message in enumerate(laid_out):
            taken = self._takes_system if at_start and i == 0 else self._takes_late_system
            if message.role == "system" and not taken:
                laid_out[i] = replace(message, role="user")
        if self._takes_turns:
            laid_out = _join_users(laid_out)
        return [_to_chat_message(message) for message in laid_out]

    def _make_speakable(self, message: Message) -> Message:
        """Calls and thinking written out as raw text; in others' words, no token that could forge a turn."""
        if message.role == "assistant":
            text = format_message(message, self.call_format)
            return replace(message, content=text, thinking="", tool_calls=())
        return replace(message, content=self._specials.sub(lambda m: f"{m[0][0]} {m[0][1:]}", message.content))


def _read_template(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RenderError(f"render.template: cannot read '{path}' ({error}): give a path to a Jinja file") from error


def _check_variables(
    variables: Mapping[str, bool | int | str], template: str | Mapping[str, str] | None
) -> Mapping[str, bool | int | str]:
    source = template if isinstance(template, str) else "\n".join((template or {}).values())
    for name in variables:
        if not re.search(rf"\b{re.escape(name)}\b", source):
            raise RenderError(f"render.variables.{name}: the chat template does not read it; remove it")
    return variables


def _match_specials(tokenizer: Tokenizer) -> re.Pattern[str]:
    words = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    # Longest first, so that no token hides inside another's match; (?!) matches nothing.
    return re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))) or "(?!)")


def _tell_tools(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    """Schemas and calling instructions in the system text, for templates that know no tools."""
    schemas = "\n".join(json.dumps(tool.to_openai(), ensure_ascii=False) for tool in tools)
    told = (
        f"You may call these tools:\n<tools>\n{schemas}\n</tools>\n\n"
        "To call a tool, write JSON with its name and arguments between tags, then stop:\n"
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>\n'
        "Write one such block per call. The results come back between <tool_response> tags."
    )
    if messages and messages[0].role == "system":
        return [replace(messages[0], content=f"{messages[0].content}\n\n{told}"), *messages[1:]]
    return [Message(role="system", content=told), *messages]


def _turn_results_into_user_messages(messages: Sequence[Message]) -> list[Message]:
    """Results that come together share one message: one turn of the world answers one turn of the agent."""
    turned: list[Message] = []
    for is_result, run in groupby(messages, key=lambda message: message.role == "tool"):
        if is_result:
            results = [f"<tool_response>\n{message.content}\n</tool_response>" for message in run]
            turned.append(Message(role="user", content="\n".join(results)))
        else:
            turned += run
    return turned


def _join_users(messages: Sequence[Message]) -> list[Message]:
    """For templates in which user and assistant must take turns."""
    joined: list[Message] = []
    for role, run in groupby(messages, key=lambda message: message.role):
        if role == "user":
            joined.append(Message(role="user", content="\n\n".join(message.content for message in run)))
        else:
            joined += run
    return joined


def _to_chat_message(message: Message) -> ChatMessage:
    named = {"name": message.name, "tool_call_id": message.tool_call_id}
    return {"role": message.role, "content": message.content, **{k: v for k, v in named.items() if v is not None}}


def _shared_start(a: str, b: str) -> str:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    return "".join(character for character, _ in same)
