"""Text to ids and back, by the shortest way to a tokenizer's compiled half.

Invariant: ids and text are exactly those of the tokenizer's own `encode` and `decode`. transformers wraps each call in
checks that take longer than the work; a tokenizer that has methods of its own keeps them.
"""

import re
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain
from typing import Protocol

from turnwise.render.template import Tokenizer

_OWN_METHODS = ("encode", "_encode_plus", "decode", "_decode")
_LINE_END = re.compile(r"(?<=[!-~]\n)(?=[!-~])")
"""After one newline between two visible characters, which is a token of its own in GPT-2's split of text."""
_LINES_KEPT, _LONGEST_KEPT = 2048, 2000
"""How many lines, of at most how many characters: English of this size takes 28 MB."""


class _Encoding(Protocol):
    @property
    def ids(self) -> list[int]: ...


class _Model(Protocol):
    @property
    def dropout(self) -> float | None: ...


class _Backend(Protocol):
    """What is called of `tokenizers.Tokenizer`."""

    @property
    def normalizer(self) -> object: ...

    @property
    def pre_tokenizer(self) -> object: ...

    @property
    def model(self) -> _Model: ...

    def encode_batch_fast(self, input: list[str], *, add_special_tokens: bool) -> list[_Encoding]: ...

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str: ...

    def decode_batch(self, sequences: list[list[int]], *, skip_special_tokens: bool) -> list[str]: ...


class TextCodec:
    """`encode` and `decode` of one tokenizer, without special tokens added and with all of them shown."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._backend = _find_backend(tokenizer)
        # Its own call switches off truncation and padding, which a tokenizer's file may ask for.
        tokenizer.encode("", add_special_tokens=False)
        self._by_lines = self._backend is not None and _splits_at_lines(tokenizer, self._backend)
        self._lines: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        """Of late: searches show the same passages again, each on a line of its own."""

    def encode(self, text: str) -> tuple[int, ...]:
        if self._backend is None:
            return tuple(self._tokenizer.encode(_make_sound(text), add_special_tokens=False))
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """As `encode` of each, spread over the cores."""
        if self._backend is None:
            return [self.encode(text) for text in texts]
        sound = list(map(_make_sound, texts))
        if not self._by_lines:
            return self._encode_whole(self._backend, sound)
        split = [_LINE_END.split(text) for text in sound]
        lines = dict.fromkeys(chain.from_iterable(split))
        # Another thread may let go of what is kept, so a call takes all it needs at once.
        known = {line: ids for line in lines if (ids := self._lines.get(line)) is not None}
        new = [line for line in lines if line not in known]
        encoded = dict(zip(new, self._encode_whole(self._backend, new), strict=True))
        self._lines.update((line, ids) for line, ids in encoded.items() if len(line) <= _LONGEST_KEPT)
        while len(self._lines) > _LINES_KEPT:
            self._lines.popitem(last=False)
        known |= encoded
        return [tuple(chain.from_iterable(known[line] for line in one)) for one in split]

    def _encode_whole(self, backend: _Backend, texts: list[str]) -> list[tuple[int, ...]]:
        return [tuple(encoding.ids) for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        if self._backend is None:
            return self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return self._backend.decode(list(ids), skip_special_tokens=False)

    def decode_many(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """As `decode` of each, spread over the cores."""
        if self._backend is None:
            return [self.decode(ids) for ids in batch]
        return self._backend.decode_batch([list(ids) for ids in batch], skip_special_tokens=False)


def _make_sound(text: str) -> str:
    """A tool may answer with a lone surrogate, which no tokenizer takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _find_backend(tokenizer: Tokenizer) -> _Backend | None:
    """The compiled tokenizer, where calling it is all that the tokenizer's own methods do."""
    from transformers import PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return None
    kind, base = type(tokenizer), PreTrainedTokenizerFast
    if any(getattr(kind, name) is not getattr(base, name) for name in _OWN_METHODS):
        return None
    backend: _Backend = tokenizer.backend_tokenizer
    return backend if hasattr(backend, "encode_batch_fast") else None


def _splits_at_lines(tokenizer: Tokenizer, backend: _Backend) -> bool:
    """Whether the ids of a text are those of its lines, end to end: of a BPE that splits text as GPT-2 does.

    There no token goes past such a line's end, and what is before it changes nothing behind it.
    """
    from tokenizers import pre_tokenizers as kinds

    stages = [backend.pre_tokenizer]
    if isinstance(backend.pre_tokenizer, kinds.Sequence):
        stages = [*backend.pre_tokenizer]  # type: ignore[misc]  # it has items, of which its stub says nothing
    last = stages.pop() if stages else None
    if not isinstance(last, kinds.ByteLevel) or last.add_prefix_space or not last.use_regex:
        return False
    plain = backend.normalizer is None and all(isinstance(one, kinds.Digits) for one in stages)
    added = tokenizer.added_tokens_decoder.values()
    alone = not any("\n" in one.content or one.lstrip or one.rstrip or one.single_word for one in added)
    return plain and alone and type(backend.model).__name__ == "BPE" and backend.model.dropout is None
