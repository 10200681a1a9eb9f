"""The forwards of the local engine: prefill and decode over static tensors, one lane per slot.

Invariant: a decode step is a function of these tensors and of a few host numbers (lanes, keys read, which
sampling work is needed), with nothing data-dependent inside. Shapes: S lanes, B lanes of this forward,
W new tokens per lane, L keys read, U uniforms per lane, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from turnwise.engines.base import Sampling
from turnwise.engines.cache import ATTENTION, SlotCache
from turnwise.engines.sampler import draw_uniforms, sample
from turnwise.errors import ModelError

_BUCKET = 32
"""Lengths are rounded up to a multiple of this: few shapes, aligned masks, little waste."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Tokens a lane reads in one prefill: `ids` go to positions `start`, `start + 1`, ..."""

    lane: int
    start: int
    ids: Sequence[int]


class Lanes:
    """The model with its cache and, per lane, the token to feed next, where it goes and how to sample after it."""

    def __init__(self, model: PreTrainedModel, *, count: int, context_limit: int, autocast: torch.dtype | None) -> None:
        self._model = model
        self._config = model.config.get_text_config()
        self._windows = _windows(model)
        self._context_limit = context_limit
        self._autocast = autocast
        self._cache = SlotCache(slots=count, dtype=autocast)
        device = model.get_input_embeddings().weight.device
        self._device = device
        dtype = autocast or model.dtype
        self._shown = torch.zeros((), dtype=dtype, device=device)
        self._hidden = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=device)
        self._lane = torch.arange(count, device=device)  # [S]
        self._key = torch.arange(_round_up(context_limit), device=device)  # [C]
        self._ids = torch.zeros(count, dtype=torch.long, device=device)  # [S] and so on below
        self._positions = torch.zeros(count, dtype=torch.long, device=device)
        self._live = torch.zeros(count, dtype=torch.bool, device=device)
        self._drawn = torch.zeros(count, dtype=torch.long, device=device)
        self._temperature = torch.ones(count, device=device)
        self._top_k = torch.zeros(count, dtype=torch.long, device=device)
        self._top_p = torch.ones(count, device=device)
        self._uniforms = torch.zeros(count, _BUCKET, dtype=torch.float64, device=device)  # [S, U]

    def prepare(self, lanes: Sequence[int], samplings: Sequence[Sampling], drawn: Sequence[int]) -> None:
        """Sets how lanes sample from now on; `drawn` counts the tokens each turn already has."""
        rows = [draw_uniforms(sampling.seed, sampling.max_tokens) for sampling in samplings]
        width = max(map(len, rows))
        if width > self._uniforms.shape[1]:
            longer = torch.zeros(len(self._ids), _round_up(width), dtype=torch.float64, device=self._device)
            longer[:, : self._uniforms.shape[1]] = self._uniforms
            self._uniforms = longer
        lane = self._tensor(lanes)
        padded = [row + [0.0] * (width - len(row)) for row in rows]
        self._uniforms[lane, :width] = self._tensor(padded, torch.float64)
        self._drawn[lane] = self._tensor(drawn)
        self._temperature[lane] = self._tensor([sampling.temperature for sampling in samplings], torch.float32)
        self._top_p[lane] = self._tensor([sampling.top_p for sampling in samplings], torch.float32)
        self._top_k[lane] = self._tensor([sampling.top_k for sampling in samplings])

    def copy(self, source: Sequence[int], target: Sequence[int], length: int) -> None:
        """Gives lanes what others hold of a shared prompt, up to `length` tokens."""
        with self._serving():
            self._cache.copy(self._tensor(source), self._tensor(target), length)

    def read(self, feeds: Sequence[Feed]) -> None:
        """Takes tokens into the cache and samples nothing: a piece of a prompt, with more to come."""
        with self._serving():
            self._feed(feeds)

    def prefill(self, feeds: Sequence[Feed], *, greedy: bool, truncate: bool) -> tuple[list[int], list[float]]:
        """Takes the rest of each prompt into the cache and samples one token per feed; the lanes are live then."""
        lane = self._tensor([feed.lane for feed in feeds])  # [B]
        with self._serving():
            logits = self._feed(feeds)  # [B, V]
            token, logprob = self._sample(logits, lane, greedy=greedy, truncate=truncate)
            self._ids[lane] = token
            self._positions[lane] = self._tensor([feed.start + len(feed.ids) for feed in feeds])
            self._drawn[lane] += 1
            self._live[lane] = True
            return _to_host(token, logprob)

    def decode(self, count: int, length: int, *, greedy: bool, truncate: bool) -> tuple[list[int], list[float]]:
        """One token for each of the first `count` lanes, after at most `length` keys; lanes at rest give noise."""
        self._reserve(length)
        with self._serving():
            token, logprob = self._step(count, _round_up(length), greedy=greedy, truncate=truncate)
            return _to_host(token, logprob)

    def rest(self, lanes: Sequence[int]) -> None:
        """Takes lanes out of the batch; what their slots hold stays."""
        lane = self._tensor(lanes)
        self._live[lane] = False
        for tensor in (self._ids, self._positions, self._drawn):
            tensor[lane] = 0

    def exchange(self, one: Sequence[int], other: Sequence[int], length: int) -> None:
        """Swaps lanes pair by pair, with at most `length` tokens held."""
        first, second = self._tensor(one), self._tensor(other)
        source, target = torch.cat((first, second)), torch.cat((second, first))
        with self._serving():
            self._cache.copy(source, target, length)
            state = (self._ids, self._positions, self._live, self._drawn, self._uniforms)
            for tensor in (*state, self._temperature, self._top_k, self._top_p):
                tensor[target] = tensor[source]

    def clear(self) -> None:
        """Forgets every key and value and takes all lanes out of the batch."""
        with self._serving():
            self._cache.clear()
        self.rest(range(len(self._ids)))

    def _step(self, count: int, length: int, *, greedy: bool, truncate: bool) -> tuple[torch.Tensor, torch.Tensor]:
        live = self._live[:count]  # [B]
        rows = torch.where(live, self._lane[:count], self._cache.spare)[:, None]  # [B, 1]
        logits = self._forward(
            self._ids[:count, None], self._positions[:count, None], rows, read=slice(0, count), length=length
        )  # [B, V]
        token, logprob = self._sample(logits, slice(0, count), greedy=greedy, truncate=truncate)  # [B] each
        self._ids[:count] = token
        self._positions[:count] += live
        self._drawn[:count] += live
        return token, logprob

    def _feed(self, feeds: Sequence[Feed]) -> torch.Tensor:
        """Logits after the last token of each feed, [B, V]. Padded on the left, so that all end in one column."""
        width = max(len(feed.ids) for feed in feeds)
        length = max(feed.start + len(feed.ids) for feed in feeds)
        self._reserve(length)
        ids = self._tensor([[0] * (width - len(feed.ids)) + [*feed.ids] for feed in feeds])  # [B, W]
        padding = self._tensor([[width - len(feed.ids)] for feed in feeds])  # [B, 1]
        start = self._tensor([[feed.start] for feed in feeds])  # [B, 1]
        lane = self._tensor([[feed.lane] for feed in feeds])  # [B, 1]
        offset = torch.arange(width, device=self._device) - padding  # [B, W]
        positions = torch.where(offset >= 0, start + offset, 0)  # [B, W]
        rows = torch.where(offset >= 0, lane, self._cache.spare)  # [B, W]
        return self._forward(ids, positions, rows, read=lane[:, 0], length=_round_up(length))

    def _forward(
        self, ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, *, read: slice | torch.Tensor, length: int
    ) -> torch.Tensor:
        """Logits [B, V] after the last column of ids, positions and rows, each [B, W]."""
        self._cache.aim(read=read, length=length, rows=rows, positions=positions)
        output = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=self._mask(positions, length),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits

    def _mask(self, positions: torch.Tensor, length: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """Additive masks [B, 1, W, L]: one, or one for each kind of layer where a model mixes them."""
        key = self._key[:length]  # [L]
        query = positions[:, None, :, None]  # [B, 1, W, 1]
        causal = key <= query  # [B, 1, W, L]
        masks = {
            kind: torch.where(causal if window is None else causal & (key > query - window), self._shown, self._hidden)
            for kind, window in self._windows.items()
        }
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _sample(
        self, logits: torch.Tensor, lanes: slice | torch.Tensor, *, greedy: bool, truncate: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        uniform = self._uniforms[lanes].gather(1, self._drawn[lanes, None])[:, 0]  # [B]
        settings = (self._temperature[lanes], self._top_k[lanes], self._top_p[lanes])  # [B] each
        return sample(logits, uniform, *settings, greedy=greedy, truncate=truncate)

    def _reserve(self, length: int) -> None:
        if length > self._cache.capacity:
            capacity = min(_round_up(self._context_limit), max(_round_up(length), 2 * self._cache.capacity))
            with torch.inference_mode():
                self._cache.reserve(capacity)

    def _tensor(
        self, numbers: Sequence[float] | Sequence[Sequence[float]], dtype: torch.dtype = torch.long
    ) -> torch.Tensor:
        return torch.tensor(numbers, dtype=dtype, device=self._device)

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """Lends the learner's model to a forward: no gradients, no dropout, our attention; all put back after.

        Gradient checkpointing, on while training, would silently drop the cache: another reason for eval mode.
        """
        training = [module for module in self._model.modules() if module.training] if self._model.training else []
        attention = self._config._attn_implementation
        for module in training:
            module.training = False
        if attention != "eager":
            self._config._attn_implementation = ATTENTION
        try:
            with torch.inference_mode(), torch.autocast(self._device.type, self._autocast, self._autocast is not None):
                yield
        finally:
            self._config._attn_implementation = attention
            for module in training:
                module.training = True


def _windows(model: PreTrainedModel) -> dict[str, int | None]:
    """How far back each kind of layer sees: `{"full_attention": None, "sliding_attention": 512}`."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if not getattr(config, "use_sliding_window", True):
        window = None
    only = "full_attention" if window is None else "sliding_attention"
    kinds = getattr(config, "layer_types", None) or [only]
    known = {"full_attention": None, "sliding_attention": window}
    for kind in kinds:
        if kind not in known:
            raise ModelError(f"{config.model_type} has layers of kind '{kind}', which the local engine cannot cache")
    return {kind: known[kind] for kind in dict.fromkeys(kinds)}


def _round_up(length: int) -> int:
    return -(-length // _BUCKET) * _BUCKET


def _to_host(token: torch.Tensor, logprob: torch.Tensor) -> tuple[list[int], list[float]]:
    """Both [B] in a single transfer; doubles hold ids exactly."""
    tokens, logprobs = torch.stack((token.double(), logprob.double())).tolist()
    return [int(number) for number in tokens], logprobs
