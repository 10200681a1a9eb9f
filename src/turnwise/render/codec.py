"""Text to ids and back, by the shortest way to a tokenizer's compiled half.

Invariant: ids and text are exactly those of the tokenizer's own `encode` and `decode`. transformers wraps each call in
checks that take longer than the work; a tokenizer that has methods of its own keeps them.
"""

from collections.abc import Sequence
from typing import Protocol

from turnwise.render.template import Tokenizer

_OWN_METHODS = ("encode", "_encode_plus", "decode", "_decode")


class _Encoding(Protocol):
    @property
    def ids(self) -> list[int]: ...


class _Backend(Protocol):
    """What is called of `tokenizers.Tokenizer`."""

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

    def encode(self, text: str) -> tuple[int, ...]:
        if self._backend is None:
            return tuple(self._tokenizer.encode(_make_sound(text), add_special_tokens=False))
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """As `encode` of each, spread over the cores."""
        if self._backend is None:
            return [self.encode(text) for text in texts]
        found = self._backend.encode_batch_fast(list(map(_make_sound, texts)), add_special_tokens=False)
        return [tuple(encoding.ids) for encoding in found]

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
