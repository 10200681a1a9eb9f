"""The forwards of the local engine: prefill and decode over static tensors, one lane per slot.

Invariant: a forward is a function of these tensors and of a few host numbers (lanes, keys read, which sampling work
is needed), with nothing data-dependent inside, so that a CUDA graph may replay it; a prefill that may be replayed is
padded to one of few shapes, by tokens that go to the spare row and feeds that go to the spare lane. On a GPU a forward
is launched and its tokens are waited for apart. Shapes: S lanes, B lanes of a forward, F feeds, N tokens of all
feeds, U uniforms per lane, V vocabulary.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from turnwise.compute.device import Answer, Graphs, bucket, send
from turnwise.engines.base import Sampling
from turnwise.engines.local.cache import Decode, KeyValues, Prefill
from turnwise.engines.local.forward import find_forward, load_sampler
from turnwise.engines.local.sampling import draw_uniforms

_LENGTHS = 32
"""Lengths are rounded up to a multiple of this: few shapes, aligned masks, little waste."""
_REPLAYED_TOKENS = 16384
"""A prefill of so many tokens or fewer is replayed from a graph: to launch it takes the host long, if not longer than
the device takes to run it."""
_LEAST_TOKENS, _LEAST_WIDTH = 256, 64
"""Smaller prefills take no less time."""


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
        self._count = count
        lanes = count + 1  # a spare one, as the cache has a spare row
        self._lane = torch.arange(lanes, device=device)  # [S + 1]
        self._ids = torch.zeros(lanes, dtype=torch.long, device=device)  # [S + 1] and so on below
        self._positions = torch.zeros(lanes, dtype=torch.long, device=device)
        self._live = torch.zeros(lanes, dtype=torch.bool, device=device)
        self._drawn = torch.zeros(lanes, dtype=torch.long, device=device)
        self._temperature = torch.ones(lanes, device=device)
        self._top_k = torch.zeros(lanes, dtype=torch.long, device=device)
        self._top_p = torch.ones(lanes, device=device)
        self._uniforms = torch.zeros(lanes, _LENGTHS, dtype=torch.float64, device=device)  # [S + 1, U]
        self._desks: dict[_Size, torch.Tensor] = {}

    @property
    def pads(self) -> bool:
        """Whether a prefill costs its longest feed for every one, and not just its tokens."""
        return self._forward.pads

    @property
    def runs_ahead(self) -> bool:
        """Whether a forward goes on by itself once it is launched, so that another can be launched behind it."""
        return self._device.type == "cuda"

    def copy(self, source: Sequence[int], target: Sequence[int], length: int) -> None:
        """Gives lanes what others hold of a shared prompt, up to `length` tokens."""
        with self._serving():
            self._cache.copy(self._tensor(source), self._tensor(target), length)

    def read(self, feeds: Sequence[Feed]) -> None:
        """Takes tokens into the cache and samples nothing: a piece of a prompt, with more to come."""
        with self._serving():
            self._forward.prefill(self._lay_out(feeds, _Size.of(feeds), fixed=False))

    def prefill(
        self,
        feeds: Sequence[Feed],
        samplings: Sequence[Sampling],
        drawn: Sequence[int],
        *,
        greedy: bool,
        truncate: bool,
    ) -> Answer:
        """Takes the rest of each prompt into the cache and samples one token per feed; the lanes are live then.

        Each lane samples as is said here from now on; `drawn` counts the tokens that each turn already has.
        """
        size = self._replayed_size(feeds)
        self._reserve_uniforms(max(sampling.max_tokens for sampling in samplings))
        with self._serving():
            aim = self._lay_out(feeds, size or _Size.of(feeds), fixed=size is not None)
            logits = self._replay(size, lambda: (self._forward.prefill(aim),))[0]  # [F, V]
            self._prepare(aim.lanes[: len(feeds)], samplings, drawn)  # much to draw, while a GPU still reads
            key = None if size is None else (size, greedy, truncate)
            token, logprob = self._replay(key, lambda: self._begin(aim, logits, greedy=greedy, truncate=truncate))
            return Answer(token[: len(feeds)], logprob[: len(feeds)])

    def _replay(self, key: Hashable | None, step: Callable[[], tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
        """Does a step, from the graph of that key where there is one.

        A step may read what another of the same size gave, so long as nothing is forgotten between the two.
        """
        return step() if key is None or self._graphs is None else self._graphs.run(key, step)

    def count_padding(self, feeds: Sequence[Feed]) -> int:
        """What a prefill of these feeds computes beside their tokens."""
        given, replayed = _Size.of(feeds), self._replayed_size(feeds)
        if self._forward.pads:
            return given.feeds * given.width - given.tokens
        return 0 if replayed is None else replayed.tokens - given.tokens

    def decode(self, count: int, length: int, *, greedy: bool, truncate: bool) -> Answer:
        """One token for each of the first `count` lanes, after at most `length` keys; lanes at rest give noise."""
        self._reserve(length)
        with self._serving():
            if self._graphs is None or not self._graphs.enabled:
                return Answer(*self._step(count, _round_up(length), greedy=greedy, truncate=truncate))
            # Few shapes, so that few graphs serve them all: some more lanes at rest, some more keys masked.
            lanes = min(bucket(count), self._count)
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
        self.rest(range(self._count))

    def _replayed_size(self, feeds: Sequence[Feed]) -> "_Size | None":
        """The size of the graph that a prefill of these feeds is replayed from; None where it is launched as it is."""
        enabled = self._graphs is not None and self._graphs.enabled and self._forward.replays_prefills
        size = _Size.of(feeds)
        return size.rounded_up() if enabled and size.tokens <= _REPLAYED_TOKENS else None

    def _prepare(self, lanes: torch.Tensor, samplings: Sequence[Sampling], drawn: Sequence[int]) -> None:
        """Sets how lanes [F] sample from now on."""
        rows = [draw_uniforms(sampling.seed, sampling.max_tokens) for sampling in samplings]
        width = max(map(len, rows))
        settings = [(sampling.temperature, sampling.top_p, sampling.top_k) for sampling in samplings]
        numbers = np.zeros((len(rows), 4 + width))  # one transfer for them all; doubles hold each exactly
        numbers[:, :4] = [(count, *setting) for count, setting in zip(drawn, settings, strict=True)]
        for place, row in zip(numbers[:, 4:], rows, strict=True):
            place[: len(row)] = row
        there = send(torch.from_numpy(numbers), self._device)  # [F, 4 + …]
        self._drawn[lanes] = there[:, 0].long()
        self._temperature[lanes] = there[:, 1].float()
        self._top_p[lanes] = there[:, 2].float()
        self._top_k[lanes] = there[:, 3].long()
        self._uniforms[lanes, :width] = there[:, 4:]

    def _begin(
        self, aim: Prefill, logits: torch.Tensor, *, greedy: bool, truncate: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The first token of each feed's turn, from logits [F, V]."""
        token, logprob = self._sample(logits, aim.lanes, greedy=greedy, truncate=truncate)  # [F] each
        self._ids[aim.lanes] = token
        self._positions[aim.lanes] = aim.positions[aim.starts[1:] - 1] + 1
        self._drawn.index_add_(0, aim.lanes, torch.ones_like(aim.lanes))
        self._live.index_fill_(0, aim.lanes, True)
        return token, logprob

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

    def _lay_out(self, feeds: Sequence[Feed], size: "_Size", *, fixed: bool) -> Prefill:
        """The tokens of all feeds, end to end, and padding up to a size; `fixed`: where a graph of that size looks."""
        widths = np.array([len(feed.ids) for feed in feeds])  # [F]
        start, lane = np.array([(feed.start, feed.lane) for feed in feeds]).T  # [F] each
        length = int((start + widths).max())
        self._reserve(length)
        # Thousands of tokens, so arrays throughout, and one transfer for them all.
        feed_of = np.repeat(np.arange(len(feeds)), widths)  # [N of feeds], as `column` is
        column = np.arange(len(feed_of)) - np.repeat(np.cumsum(widths) - widths, widths)
        numbers = np.zeros(5 * size.tokens + 2 * (size.feeds + 1), np.int64)
        tokens = numbers[: 5 * size.tokens].reshape(5, -1)  # [5, N]
        tokens[2] = self._cache.spare
        read = tokens[:, : len(feed_of)]
        read[0] = np.fromiter(chain.from_iterable(feed.ids for feed in feeds), np.int64, len(feed_of))
        read[1], read[2], read[3], read[4] = start[feed_of] + column, lane[feed_of], feed_of, column
        ends = numbers[5 * size.tokens :].reshape(2, -1)  # [2, F + 1]
        ends[0], ends[1] = len(feed_of), self._cache.spare
        ends[0, : len(feeds)], ends[1, : len(feeds)] = np.cumsum(widths) - widths, lane
        there = self._send_to_desk(numbers, size) if fixed else send(torch.from_numpy(numbers), self._device)
        ids, positions, rows, number, place = there[: 5 * size.tokens].view(5, -1)  # [N] each
        starts, lanes = there[5 * size.tokens :].view(2, -1)  # [F + 1] each
        return Prefill(
            ids=ids,
            positions=positions,
            rows=rows,
            feed=number,
            column=place,
            starts=starts,
            lanes=lanes[:-1],
            width=size.width,
            length=min(_round_up(length), self._cache.capacity),
        )

    def _send_to_desk(self, numbers: npt.NDArray[np.int64], size: "_Size") -> torch.Tensor:
        """Puts numbers on the device where a graph of this size was recorded to read them."""
        if size not in self._desks:
            self._desks[size] = torch.zeros(len(numbers), dtype=torch.long, device=self._device)
        return send(torch.from_numpy(numbers), self._device, into=self._desks[size])

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

    def _reserve_uniforms(self, count: int) -> None:
        if count > self._uniforms.shape[1]:
            longer = torch.zeros(len(self._ids), 2 * _round_up(count), dtype=torch.float64, device=self._device)
            longer[:, : self._uniforms.shape[1]] = self._uniforms
            self._uniforms = longer
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


def _round_up_tokens(count: int) -> int:
    """Two sizes to every doubling, and from 4,096 eight, where tokens that nobody asked for take their time."""
    if count <= 4096:
        return bucket(count)
    grain = 1 << (count - 1).bit_length() - 4
    return -(-count // grain) * grain


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """The shape of a prefill: its tokens, its feeds, and the tokens of its longest feed."""

    tokens: int
    feeds: int
    width: int

    @classmethod
    def of(cls, feeds: Sequence[Feed]) -> "_Size":
        widths = [len(feed.ids) for feed in feeds]
        return cls(tokens=sum(widths), feeds=len(feeds), width=max(widths))

    def rounded_up(self) -> "_Size":
        """One of few sizes that has room for this one."""
        return _Size(
            tokens=_round_up_tokens(max(self.tokens, _LEAST_TOKENS)),
            feeds=4 ** (((self.feeds - 1).bit_length() + 1) // 2),
            width=1 << (max(self.width, _LEAST_WIDTH) - 1).bit_length(),
        )
