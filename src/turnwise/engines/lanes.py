"""The forwards of the local engine: prefill and decode over static tensors, one lane per slot.

Invariant: a decode step is a function of these tensors and of a few host numbers (lanes, keys read, which sampling
work is needed), with nothing data-dependent inside, so that a CUDA graph may replay it. On a GPU a forward is
launched and its tokens are waited for apart. Shapes: S lanes, B lanes of a forward, F feeds, N tokens of all feeds,
U uniforms per lane, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from turnwise.engines.base import Sampling
from turnwise.engines.cache import Decode, KeyValues, Prefill
from turnwise.engines.device import Answer, Graphs, bucket, send
from turnwise.engines.forward import find_forward, load_sampler
from turnwise.engines.sampler import draw_uniforms

_LENGTHS = 32
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
        self._context_limit = context_limit
        self._autocast = autocast
        device = model.get_input_embeddings().weight.device
        self._device: torch.device = device
        self._cache = KeyValues(slots=count, dtype=autocast)
        self._cache.reserve(min(_round_up(context_limit), _LENGTHS))
        with self._serving():
            self._forward = find_forward(model, self._cache, context_limit=_round_up(context_limit), dtype=autocast)
        self._sample_rows = load_sampler(device)
        self._graphs = Graphs(device) if not self._forward.pads else None
        self._lane = torch.arange(count, device=device)  # [S]
        self._ids = torch.zeros(count, dtype=torch.long, device=device)  # [S] and so on below
        self._positions = torch.zeros(count, dtype=torch.long, device=device)
        self._live = torch.zeros(count, dtype=torch.bool, device=device)
        self._drawn = torch.zeros(count, dtype=torch.long, device=device)
        self._temperature = torch.ones(count, device=device)
        self._top_k = torch.zeros(count, dtype=torch.long, device=device)
        self._top_p = torch.ones(count, device=device)
        self._uniforms = torch.zeros(count, _LENGTHS, dtype=torch.float64, device=device)  # [S, U]

    @property
    def pads(self) -> bool:
        """Whether a prefill costs its longest feed for every one, and not just its tokens."""
        return self._forward.pads

    @property
    def runs_ahead(self) -> bool:
        """Whether a forward goes on by itself once it is launched, so that another can be launched behind it."""
        return self._device.type == "cuda"

    def prepare(self, lanes: Sequence[int], samplings: Sequence[Sampling], drawn: Sequence[int]) -> None:
        """Sets how lanes sample from now on; `drawn` counts the tokens each turn already has."""
        rows = [draw_uniforms(sampling.seed, sampling.max_tokens) for sampling in samplings]
        width = max(map(len, rows))
        if width > self._uniforms.shape[1]:
            longer = torch.zeros(len(self._ids), 2 * _round_up(width), dtype=torch.float64, device=self._device)
            longer[:, : self._uniforms.shape[1]] = self._uniforms
            self._uniforms = longer
            self._forget_graphs()
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
            self._forward.prefill(self._lay_out(feeds))

    def prefill(self, feeds: Sequence[Feed], *, greedy: bool, truncate: bool) -> Answer:
        """Takes the rest of each prompt into the cache and samples one token per feed; the lanes are live then."""
        lane = self._tensor([feed.lane for feed in feeds])  # [F]
        with self._serving():
            logits = self._forward.prefill(self._lay_out(feeds))  # [F, V]
            token, logprob = self._sample(logits, lane, greedy=greedy, truncate=truncate)
            self._ids[lane] = token
            self._positions[lane] = self._tensor([feed.start + len(feed.ids) for feed in feeds])
            self._drawn[lane] += 1
            self._live[lane] = True
            return Answer(token, logprob)

    def decode(self, count: int, length: int, *, greedy: bool, truncate: bool) -> Answer:
        """One token for each of the first `count` lanes, after at most `length` keys; lanes at rest give noise."""
        self._reserve(length)
        with self._serving():
            if self._graphs is None or not self._graphs.enabled:
                return Answer(*self._step(count, _round_up(length), greedy=greedy, truncate=truncate))
            # Few shapes, so that few graphs serve them all: some more lanes at rest, some more keys masked.
            lanes = min(bucket(count), len(self._ids))
            keys = min(max(bucket(length), _round_up(length)), self._cache.capacity)
            return Answer(
                *self._graphs.run(
                    (lanes, keys, greedy, truncate),
                    lambda: self._step(lanes, keys, greedy=greedy, truncate=truncate),
                )
            )

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

    def refresh(self) -> None:
        """Takes note of new weights, forgets every key and value and takes all lanes out of the batch."""
        with self._serving():
            if self._forward.refresh():
                self._forget_graphs()
            self._cache.clear()
        self.rest(range(len(self._ids)))

    def _step(self, count: int, length: int, *, greedy: bool, truncate: bool) -> tuple[torch.Tensor, torch.Tensor]:
        live = self._live[:count]  # [B]
        rows = torch.where(live, self._lane[:count], self._cache.spare)  # [B]
        # A lane that runs ahead of its turn's end stays within the cache, and within its uniforms when sampled.
        positions = self._positions[:count].clamp(max=self._cache.capacity - 1)  # [B]
        aim = Decode(ids=self._ids[:count], positions=positions, rows=rows, length=length)
        logits = self._forward.decode(aim)  # [B, V]
        token, logprob = self._sample(logits, slice(0, count), greedy=greedy, truncate=truncate)  # [B] each
        self._ids[:count] = token
        self._positions[:count] += live
        self._drawn[:count] += live
        return token, logprob

    def _lay_out(self, feeds: Sequence[Feed]) -> Prefill:
        """The tokens of all feeds, end to end."""
        widths = [len(feed.ids) for feed in feeds]
        length = max(feed.start + width for feed, width in zip(feeds, widths, strict=True))
        self._reserve(length)
        # One transfer for the tokens and one for the feeds.
        number = [[index] * width for index, width in enumerate(widths)]
        flat = [token for feed in feeds for token in feed.ids]
        ids, feed_of = self._tensor([flat, [index for indices in number for index in indices]])  # [N] each
        offset, start, lane = self._tensor(
            [
                [0, *_accumulate(widths)],
                [*(feed.start for feed in feeds), 0],
                [*(feed.lane for feed in feeds), 0],
            ]
        )  # [F + 1] each
        column = torch.arange(len(flat), device=self._device) - offset[feed_of]  # [N]
        return Prefill(
            ids=ids,
            positions=start[feed_of] + column,
            rows=lane[feed_of],
            feed=feed_of,
            column=column,
            starts=offset,
            lanes=lane[:-1],
            width=max(widths),
            length=min(_round_up(length), self._cache.capacity),
        )

    def _sample(
        self, logits: torch.Tensor, lanes: slice | torch.Tensor, *, greedy: bool, truncate: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        last = self._uniforms.shape[1] - 1
        uniform = self._uniforms[lanes].gather(1, self._drawn[lanes, None].clamp(max=last))[:, 0]  # [B]
        settings = (self._temperature[lanes], self._top_k[lanes], self._top_p[lanes])  # [B] each
        return self._sample_rows(logits, uniform, *settings, greedy=greedy, truncate=truncate)

    def _reserve(self, length: int) -> None:
        length = min(length, self._context_limit)
        if length > self._cache.capacity:
            capacity = min(_round_up(self._context_limit), max(_round_up(length), 2 * self._cache.capacity))
            with torch.inference_mode():
                self._cache.reserve(capacity)
            self._forget_graphs()

    def _forget_graphs(self) -> None:
        """A graph replays over the tensors it was recorded with."""
        if self._graphs is not None:
            self._graphs.clear()

    def _tensor(
        self, numbers: Sequence[float] | Sequence[Sequence[float]], dtype: torch.dtype = torch.long
    ) -> torch.Tensor:
        return send(torch.tensor(numbers, dtype=dtype), self._device)

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """Lends the learner's model to a forward: no gradients, no dropout; all put back after.

        Gradient checkpointing, on while training, would silently drop the cache: another reason for eval mode.
        """
        training = [module for module in self._model.modules() if module.training] if self._model.training else []
        for module in training:
            module.training = False
        try:
            half = torch.autocast(self._device.type, self._autocast, self._autocast is not None, cache_enabled=False)
            with torch.inference_mode(), half:
                yield
        finally:
            for module in training:
                module.training = True


def _round_up(length: int) -> int:
    return -(-length // _LENGTHS) * _LENGTHS


def _accumulate(widths: Sequence[int]) -> Iterator[int]:
    total = 0
    for width in widths:
        total += width
        yield total
