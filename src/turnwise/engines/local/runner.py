"""Runs the model's forwards: prefill and decode over static tensors, one column per slot.

Invariant: a forward is a function of these tensors and of a few host numbers (slots, keys read, which sampling work
is needed), with nothing data-dependent inside, so that a CUDA graph can replay it; a prefill that is replayed is
padded to one of few shapes, by tokens written to the spare row and chunks of the spare slot. On a GPU a forward
is launched, and its tokens are awaited separately. Shapes: S slots, B slots of a forward, M chunks, N tokens of all
chunks, U uniforms per slot, V vocabulary. A slot's keys and values are in the row `_rows[slot]` of the KV cache.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from turnwise.compute.device import Graphs, bucket, send
from turnwise.engines.base import Sampling
from turnwise.engines.local.cache import DecodeInputs, KVCache, PrefillInputs
from turnwise.engines.local.forward import find_forward, load_sampler
from turnwise.engines.local.sampling import PendingTokens, draw_uniforms

_LENGTH_STEP = 32
"""Lengths are rounded up to a multiple of this: few shapes, aligned masks, little waste."""
_REPLAYED_TOKENS = 16384
"""A prefill of at most this many tokens is replayed from a graph: its launch would take the host as long as the device
takes to run it."""
_MIN_TOKENS, _MIN_CHUNKS, _MIN_WIDTH = 256, 16, 256
"""Smaller prefills take no less time: programs of the kernels that have nothing to do end at once."""
_MIN_SLOTS, _MIN_KEYS = 8, 128
"""Nor do smaller decode steps. Every size costs a run without a graph and a capture, some 20 ms, when it first comes
up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChunk:
    """Tokens of one slot in a prefill: `ids` go to positions `start`, `start + 1`, ..."""

    slot: int
    start: int
    ids: Sequence[int]


class ModelRunner:
    """The model with its KV cache and, for each slot, its next input token, that token's position and how to sample."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        slots: int,
        context_limit: int,
        autocast: torch.dtype | None,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        self._model = model
        self._context_limit = context_limit
        self._autocast = autocast
        device = model.get_input_embeddings().weight.device
        self._device: torch.device = device
        # A GPU has all rows at once, since graphs read them where they are; a CPU those of the slots used so far.
        self._cache = KVCache(rows=slots if device.type == "cuda" else 0, dtype=autocast)
        self._cache.reserve(min(_round_up(context_limit), _LENGTH_STEP), self._cache.spare)
        with self._inference():
            self._forward = find_forward(
                model, self._cache, context_limit=_round_up(context_limit), dtype=autocast, prompt_ids=prompt_ids
            )
        self._sample_rows = load_sampler(device)
        self._graphs = Graphs(device) if not self._forward.pads else None
        self._slots = slots
        columns = slots + 1  # a spare one, as the cache has a spare row
        self._rows = np.arange(columns)  # [S + 1], as `_row` on the device
        # Few tensors, so that few launches change a slot.
        self._state = torch.zeros(5, columns, dtype=torch.long, device=device)  # [5, S + 1]
        self._ids, self._positions, self._drawn, self._top_k, self._row = self._state  # [S + 1] each, as those below
        self._row.copy_(torch.from_numpy(self._rows))
        self._settings = torch.ones(2, columns, device=device)  # [2, S + 1]
        self._temperature, self._top_p = self._settings
        self._active = torch.zeros(columns, dtype=torch.bool, device=device)
        self._uniforms = torch.zeros(columns, _LENGTH_STEP, dtype=torch.float64, device=device)  # [S + 1, U]
        self._static_inputs: dict[PrefillSize, torch.Tensor] = {}

    @property
    def pads(self) -> bool:
        """Whether every chunk of a prefill costs as much as its longest one."""
        return self._forward.pads

    @property
    def slow_reason(self) -> str | None:
        """Why the model's own, slower forward samples; None if the fused one does."""
        return self._forward.slow_reason

    @property
    def runs_ahead(self) -> bool:
        """Whether a launched forward runs asynchronously, so that the next can be launched behind it."""
        return self._device.type == "cuda"

    def copy(self, source: Sequence[int], target: Sequence[int], length: int) -> None:
        """Copies the first `length` cached tokens of some slots to others."""
        rows = self._rows[[source, target]]  # [2, …]
        self._reserve(length, int(rows.max()) + 1)
        there = self._tensor(rows)
        with self._inference():
            self._cache.copy(there[0], there[1], length)

    def prefill_without_sampling(self, chunks: Sequence[PrefillChunk]) -> None:
        """Adds tokens to the cache: a part of a prompt, with more to come."""
        with self._inference():
            inputs, _ = self._make_inputs(chunks, PrefillSize.of(chunks), static=False)
            self._forward.prefill(inputs)

    def prefill(
        self,
        chunks: Sequence[PrefillChunk],
        samplings: Sequence[Sampling],
        drawn: Sequence[int],
        *,
        greedy: bool,
        truncate: bool,
    ) -> PendingTokens:
        """Adds the rest of each prompt to the cache, samples one token per chunk and activates the slots.

        Later decode steps sample by these settings; `drawn` counts the tokens that each turn already has.
        """
        size = self._replayed_size(chunks)
        self._reserve_uniforms(max(sampling.max_tokens for sampling in samplings))
        with self._inference():
            inputs, slots = self._make_inputs(chunks, size or PrefillSize.of(chunks), static=size is not None)
            logits = self._replay(size, lambda: (self._forward.prefill(inputs),))[0]  # [M, V]
            # Many draws on the host, while a GPU runs the prefill.
            self._set_sampling(slots[: len(chunks)], samplings, drawn)
            key = None if size is None else (size, greedy, truncate)
            (both,) = self._replay(
                key, lambda: self._sample_first(inputs, slots, logits, greedy=greedy, truncate=truncate)
            )
            return PendingTokens(both[:, : len(chunks)])

    def _replay(self, key: Hashable | None, step: Callable[[], tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
        """Runs a step, from the graph of that key if there is one.

        A step may read the output of another of the same size, as long as no graph is dropped between the two.
        """
        return step() if key is None or self._graphs is None else self._graphs.run(key, step)

    def count_padding(self, chunks: Sequence[PrefillChunk]) -> int:
        """The padding that a prefill of these chunks computes."""
        given, replayed = PrefillSize.of(chunks), self._replayed_size(chunks)
        if self._forward.pads:
            return given.chunks * given.width - given.tokens
        return 0 if replayed is None else replayed.tokens - given.tokens

    def decode(self, count: int, length: int, *, greedy: bool, truncate: bool) -> PendingTokens:
        """One token for each of the first `count` slots, after at most `length` keys; those of idle slots are noise."""
        self._reserve(length, 0)
        with self._inference():
            if self._graphs is None or not self._graphs.enabled:
                return PendingTokens(*self._decode_step(count, _round_up(length), greedy=greedy, truncate=truncate))
            # Few shapes, so that few graphs serve them all: some more idle slots, some more masked keys.
            slots = min(_round_up_slots(count), self._slots)
            keys = min(_power_of_two(max(length, _MIN_KEYS)), self._cache.capacity)
            return PendingTokens(
                *self._graphs.run(
                    (slots, keys, greedy, truncate),
                    lambda: self._decode_step(slots, keys, greedy=greedy, truncate=truncate),
                )
            )

    def deactivate(self, slots: Sequence[int]) -> None:
        """Takes slots out of the batch; their KV cache stays."""
        columns = self._tensor(slots)
        self._active.index_fill_(0, columns, False)
        self._state[:3].index_fill_(1, columns, 0)  # ids, positions, drawn

    def swap(self, one: Sequence[int], other: Sequence[int], length: int) -> None:
        """Swaps slots pair by pair, with at most `length` tokens in their caches."""
        source, target = [*one, *other], [*other, *one]
        self._reserve(length, int(self._rows[source].max()) + 1)
        there, here = self._tensor([source, target])  # [2 pairs] each
        moves_row = self._forward.reads_any_row
        if moves_row:
            self._rows[target] = self._rows[source]
        with self._inference():
            if not moves_row:
                self._cache.copy(there, here, length)
            state = self._state if moves_row else self._state[:4]  # [5 or 4, S + 1]: `_row` goes along, or stays
            for tensor in (state, self._settings):
                tensor[:, here] = tensor[:, there]
            for tensor in (self._active, self._uniforms):
                tensor[here] = tensor[there]

    def refresh(self) -> None:
        """Picks up new weights, clears the KV cache and deactivates all slots."""
        with self._inference():
            if self._forward.refresh():
                self._drop_graphs()
            self._cache.clear()
        self.deactivate(range(self._slots))

    def _replayed_size(self, chunks: Sequence[PrefillChunk]) -> "PrefillSize | None":
        """The size of the graph that replays a prefill of these chunks; None if it is launched without one."""
        enabled = self._graphs is not None and self._graphs.enabled and self._forward.replays_prefills
        size = PrefillSize.of(chunks)
        return size.rounded_up() if enabled and size.tokens <= _REPLAYED_TOKENS else None

    def _set_sampling(self, slots: torch.Tensor, samplings: Sequence[Sampling], drawn: Sequence[int]) -> None:
        """Sets the sampling state of slots [M]."""
        rows = [draw_uniforms(sampling.seed, sampling.max_tokens) for sampling in samplings]
        width = max(map(len, rows))
        settings = [(sampling.top_k, sampling.temperature, sampling.top_p) for sampling in samplings]
        numbers = np.zeros((len(rows), 4 + width))  # one transfer for them all; doubles hold each exactly
        numbers[:, :4] = [(count, *setting) for count, setting in zip(drawn, settings, strict=True)]
        for place, row in zip(numbers[:, 4:], rows, strict=True):
            place[: len(row)] = row
        there = send(torch.from_numpy(numbers), self._device)  # [M, 4 + …]
        self._state[2:4, slots] = there[:, :2].T.long()  # drawn, top_k
        self._settings[:, slots] = there[:, 2:4].T.float()  # temperature, top_p
        self._uniforms[slots, :width] = there[:, 4:]

    def _sample_first(
        self, inputs: PrefillInputs, slots: torch.Tensor, logits: torch.Tensor, *, greedy: bool, truncate: bool
    ) -> tuple[torch.Tensor]:
        """Samples after each chunk, from logits [M, V], and activates its slot; tokens and logprobs, [2, M]."""
        token, logprob = self._sample(logits, slots, greedy=greedy, truncate=truncate)  # [M] each
        self._ids[slots] = token
        self._positions[slots] = inputs.positions[inputs.starts[1:] - 1] + 1
        self._drawn.index_add_(0, slots, torch.ones_like(slots))
        self._active.index_fill_(0, slots, True)
        return (PendingTokens.join(token, logprob),)

    def _decode_step(self, count: int, length: int, *, greedy: bool, truncate: bool) -> tuple[torch.Tensor]:
        """The next tokens and their logprobs, [2, B]."""
        active = self._active[:count]  # [B]
        rows = torch.where(active, self._row[:count], self._cache.spare)  # [B]
        # A step launched past a turn's end stays within the cache, and within the uniforms when it samples.
        positions = self._positions[:count].clamp(max=self._cache.capacity - 1)  # [B]
        inputs = DecodeInputs(ids=self._ids[:count], positions=positions, rows=rows, length=length)
        logits = self._forward.decode(inputs)  # [B, V]
        token, logprob = self._sample(logits, slice(0, count), greedy=greedy, truncate=truncate)  # [B] each
        self._ids[:count] = token
        self._positions[:count] += active
        self._drawn[:count] += active
        return (PendingTokens.join(token, logprob),)

    def _make_inputs(
        self, chunks: Sequence[PrefillChunk], size: "PrefillSize", *, static: bool
    ) -> tuple[PrefillInputs, torch.Tensor]:
        """The tokens of all chunks, packed, and padding up to a size; `static`: in the tensors of that size's graph.

        The second is the slot of each chunk, [M].
        """
        widths = np.array([len(chunk.ids) for chunk in chunks])  # [M]
        start, slot = np.array([(chunk.start, chunk.slot) for chunk in chunks]).T  # [M] each
        row = self._rows[slot]  # [M]
        length = int((start + widths).max())
        self._reserve(length, int(row.max()) + 1)
        # Thousands of tokens, so arrays throughout, and one transfer for them all.
        chunk_of = np.repeat(np.arange(len(chunks)), widths)  # [N of chunks], as `column` is
        column = np.arange(len(chunk_of)) - np.repeat(np.cumsum(widths) - widths, widths)
        numbers = np.zeros(5 * size.tokens + 3 * (size.chunks + 1), np.int64)
        tokens = numbers[: 5 * size.tokens].reshape(5, -1)  # [5, N]
        tokens[2] = self._cache.spare
        read = tokens[:, : len(chunk_of)]
        read[0] = np.fromiter(chain.from_iterable(chunk.ids for chunk in chunks), np.int64, len(chunk_of))
        read[1], read[2], read[3], read[4] = start[chunk_of] + column, row[chunk_of], chunk_of, column
        ends = numbers[5 * size.tokens :].reshape(3, -1)  # [3, M + 1]
        ends[0], ends[1:] = len(chunk_of), self._cache.spare
        ends[:, : len(chunks)] = np.cumsum(widths) - widths, row, slot
        there = self._send_static(numbers, size) if static else send(torch.from_numpy(numbers), self._device)
        ids, positions, rows, number, place = there[: 5 * size.tokens].view(5, -1)  # [N] each
        starts, own_rows, slots = there[5 * size.tokens :].view(3, -1)  # [M + 1] each
        inputs = PrefillInputs(
            ids=ids,
            positions=positions,
            rows=rows,
            chunk=number,
            column=place,
            starts=starts,
            slots=own_rows[:-1],
            width=size.width,
            length=min(_round_up(length), self._cache.capacity),
        )
        return inputs, slots[:-1]

    def _send_static(self, numbers: npt.NDArray[np.int64], size: "PrefillSize") -> torch.Tensor:
        """Copies numbers into the device tensor that the graph of this size reads."""
        if size not in self._static_inputs:
            self._static_inputs[size] = torch.zeros(len(numbers), dtype=torch.long, device=self._device)
        return send(torch.from_numpy(numbers), self._device, into=self._static_inputs[size])

    def _sample(
        self, logits: torch.Tensor, slots: slice | torch.Tensor, *, greedy: bool, truncate: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        last = self._uniforms.shape[1] - 1
        uniform = self._uniforms[slots].gather(1, self._drawn[slots, None].clamp(max=last))[:, 0]  # [B]
        settings = (self._temperature[slots], self._top_k[slots], self._top_p[slots])  # [B] each
        return self._sample_rows(logits, uniform, *settings, greedy=greedy, truncate=truncate)

    def _reserve(self, length: int, rows: int) -> None:
        """Makes room in the KV cache for so many keys in each of the first `rows` rows, and for more to come."""
        length, capacity, spare = min(length, self._context_limit), self._cache.capacity, self._cache.spare
        if length <= capacity and rows <= spare:
            return
        if length > capacity:
            capacity = min(_round_up(self._context_limit), max(_round_up(length), 2 * capacity))
        if rows > spare:
            spare = min(self._slots, max(rows, 2 * spare))
        with torch.inference_mode():
            self._cache.reserve(capacity, spare)
        self._drop_graphs()

    def _reserve_uniforms(self, count: int) -> None:
        if count > self._uniforms.shape[1]:
            longer = torch.zeros(len(self._ids), 2 * _round_up(count), dtype=torch.float64, device=self._device)
            longer[:, : self._uniforms.shape[1]] = self._uniforms
            self._uniforms = longer
            self._drop_graphs()

    def _drop_graphs(self) -> None:
        """Needed when a tensor that they read is replaced."""
        if self._graphs is not None:
            self._graphs.clear()

    def _tensor(self, numbers: Sequence[int] | Sequence[Sequence[int]] | npt.NDArray[np.int64]) -> torch.Tensor:
        return send(torch.tensor(numbers, dtype=torch.long), self._device)

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """Runs a forward in eval mode, without gradients and under autocast, and restores the training flags after.

        Gradient checkpointing, if on in training mode, would silently drop the cache: another reason for eval mode.
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
    return -(-length // _LENGTH_STEP) * _LENGTH_STEP


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _power_of_four(size: int) -> int:
    return 1 << ((size - 1).bit_length() + 1) // 2 * 2


def _round_up_slots(count: int) -> int:
    """One size to every doubling, and from 64 slots two, where idle ones cost time."""
    return _power_of_two(max(count, _MIN_SLOTS)) if count <= 64 else bucket(count)


def _round_up_tokens(count: int) -> int:
    """Two sizes to every doubling, and from 4,096 tokens eight, where padding costs time."""
    if count <= 4096:
        return bucket(count)
    grain = 1 << (count - 1).bit_length() - 4
    return -(-count // grain) * grain


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSize:
    """The shape of a prefill: its tokens, its chunks, and the tokens of its longest chunk."""

    tokens: int
    chunks: int
    width: int

    @classmethod
    def of(cls, chunks: Sequence[PrefillChunk]) -> "PrefillSize":
        widths = [len(chunk.ids) for chunk in chunks]
        return cls(tokens=sum(widths), chunks=len(chunks), width=max(widths))

    def rounded_up(self) -> "PrefillSize":
        """The smallest of few sizes that this one fits."""
        return PrefillSize(
            tokens=_round_up_tokens(max(self.tokens, _MIN_TOKENS)),
            chunks=_power_of_four(max(self.chunks, _MIN_CHUNKS)),
            width=_power_of_four(max(self.width, _MIN_WIDTH)),
        )
