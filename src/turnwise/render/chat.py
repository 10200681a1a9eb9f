"""Token-in-token-out over any Hugging Face chat template: sampled ids stay as they were sampled.

Invariant: `extend` tokenises only what the template writes after an action, so what was fed and what was
sampled, concatenated, is the row. The end of a turn is an action when it was sampled and context when not.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeVar

from turnwise.errors import ConfigError, RenderError
from turnwise.plugins import PluginKind, check_arguments, find_plugin
from turnwise.render.base import Render
from turnwise.render.codec import TextCodec
from turnwise.render.formats import format_message, parse_text
from turnwise.render.template import CHAT, ChatTemplate, RenderSettings, Tokenizer
from turnwise.types import Message, ToolSpec

K = TypeVar("K")
V = TypeVar("V")

# Llama 3's end of a message that expects a tool's answer: its template writes it for built-in tools alone, but
# the models sample it after other calls too.
_OTHER_ENDS: Final = ("<|eom_id|>",)
_KEPT: Final = 1024
"""Results kept of each kind: a group's members open with one prompt, and often act and read alike."""
RENDERER: Final = PluginKind(
    key="render.name",
    noun="renderer",
    group="turnwise.renderers",
    args="render.args",
    contract="write a class with the methods of turnwise.render.Render",
)


class _Kept(OrderedDict[K, V]):
    """What was tokenised of late."""

    def find(self, key: K) -> V | None:
        if key not in self:
            return None
        self.move_to_end(key)  # the newest are last
        return self[key]

    def keep(self, key: K, ids: V) -> V:
        self[key] = ids
        if len(self) > _KEPT:
            self.popitem(last=False)
        return ids


class ChatRender:
    """A `Render` over a tokenizer with a chat template; it holds no conversation, so episodes may share it."""

    def __init__(self, tokenizer: Tokenizer, settings: RenderSettings) -> None:
        self._tokenizer, self._codec = tokenizer, TextCodec(tokenizer)
        self._template = ChatTemplate(tokenizer, settings)
        written_end = self._find_written_end()
        eos = tokenizer.eos_token_id
        if written_end is None and eos is None:
            raise RenderError(
                f"the chat template of '{tokenizer.name_or_path}' ends a turn with no token of its own and the "
                "tokenizer has no eos token: set one, or give render.template a Jinja file that writes one"
            )
        self._template_ends = written_end is not None
        self._end = written_end if written_end is not None else eos
        others = [i for i, token in tokenizer.added_tokens_decoder.items() if token.content in _OTHER_ENDS]
        self._stop_ids = tuple(dict.fromkeys(i for i in (self._end, eos, *others) if i is not None))
        header = self._template.write_after_action((Message(role="user", content="Hello"),))
        self._opens_thinking = header.rfind("<think>") > header.rfind("</think>")
        # Safe to keep: each depends on nothing but its arguments, and these are values.
        self._move = lru_cache(maxsize=_KEPT)(self._read_move)
        self._prompts: _Kept[tuple[str, tuple[Message, ...]], tuple[int, ...]] = _Kept()
        self._extensions: _Kept[tuple[Message, ...], tuple[tuple[int, ...], tuple[int, ...]]] = _Kept()

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The template's end of turn, the tokenizer's eos where that is another, and Llama 3's end of message."""
        return self._stop_ids

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """A whole conversation, up to and including the header of the assistant's next turn."""
        key = repr(tools), tuple(messages)  # a schema is a mapping, which has no hash
        return self._prompts.find(key) or self._prompts.keep(
            key, self._codec.encode(self._template.write(messages, tools))
        )

    def extend(self, action_ids: Sequence[int], messages: Sequence[Message]) -> tuple[int, ...]:
        """What follows `action_ids`: its end where none was sampled, new messages, the assistant's next header."""
        key = tuple(messages)
        forced_end, rest = self._extensions.find(key) or self._keep_extension(
            key, self._codec.encode(self._template.write_after_action(key))
        )
        ended = bool(action_ids) and action_ids[-1] in self._stop_ids
        return rest if ended else (*forced_end, *rest)

    def read_ahead(self, batch: Sequence[tuple[Message, ...]]) -> None:
        """Tokenises what `extend` is going to be asked for, all in one call."""
        new = [messages for messages in dict.fromkeys(batch) if messages not in self._extensions]
        texts = [self._template.write_after_action(messages) for messages in new]
        for messages, ids in zip(new, self._codec.encode_many(texts), strict=True):
            self._keep_extension(messages, ids)

    def parse(self, action_ids: Sequence[int]) -> Message:
        """Reads the agent's move, its end token aside; a thought that the header opened is a thought."""
        return self._move(tuple(action_ids))

    def write(self, message: Message) -> str:
        """A message of the assistant as raw text, its calls in the format of this template."""
        return format_message(message, self._template.call_format)

    def encode_action(self, text: str) -> tuple[int, ...]:
        """The ids of an assistant's raw text and its end token, as they would follow the header."""
        if self._opens_thinking:
            thinks = text.startswith("<think>")
            text = text.removeprefix("<think>").removeprefix("\n") if thinks else f"\n</think>\n\n{text}"
        assert self._end is not None, "checked when the renderer was made"
        return (*self._codec.encode(text), self._end)

    def decode(self, ids: Sequence[int]) -> str:
        """Ids as text, special tokens shown."""
        return self._codec.decode(ids)

    def decode_many(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """As `decode` of each, in one call."""
        if type(self).decode is not ChatRender.decode:  # a subclass's own
            return [self.decode(ids) for ids in batch]
        return self._codec.decode_many(batch)

    def _find_written_end(self) -> int | None:
        """The token with which the template ends every turn of the assistant, if it is one token."""
        known = {*self._tokenizer.added_tokens_decoder, self._tokenizer.eos_token_id}
        return next((i for i in self._codec.encode(self._template.write_end_of_turn()) if i in known), None)

    def _keep_extension(
        self, messages: tuple[Message, ...], ids: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What ends an action that did not end itself, and what follows in either case."""
        assert self._end is not None, "checked when the renderer was made"
        cut = ids.index(self._end) + 1 if self._template_ends else 0
        return self._extensions.keep(messages, (ids[:cut] if cut else (self._end,), ids[cut:]))

    def _read_move(self, action_ids: tuple[int, ...]) -> Message:
        ended = bool(action_ids) and action_ids[-1] in self._stop_ids
        text = self.decode(action_ids[:-1] if ended else action_ids)
        return parse_text(f"<think>{text}" if self._opens_thinking else text)


def make_render(tokenizer: Tokenizer, settings: RenderSettings | None = None) -> Render:
    """The renderer of a tokenizer: `make_render(AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct"))`."""
    settings = settings or RenderSettings()
    if settings.name == CHAT:
        return ChatRender(tokenizer, settings)
    found = find_plugin(RENDERER, settings.name, {CHAT: f"{__name__}:ChatRender"})
    assert callable(found), "nothing else is found"
    made = found(tokenizer, **check_arguments(RENDERER, settings.name, found, settings.args, supplied=1))
    if not isinstance(made, Render):
        raise ConfigError(f"render.name: '{settings.name}' made {type(made).__name__}; {RENDERER.contract}")
    return made
