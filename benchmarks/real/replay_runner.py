"""A model runner that gives what a stored run sampled after as long as a GPU takes: the local engine without one.

Invariant: a launch returns at once, and its tokens are there once the device has done all that was launched before.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast
from unittest.mock import patch

from transformers import PreTrainedModel

from turnwise.engines.base import Sampling
from turnwise.engines.local import engine as local
from turnwise.engines.local.runner import PrefillChunk, PrefillSize
from turnwise.engines.settings import LocalEngineSettings
from turnwise.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long a GPU takes: measured on SmolLM2-135M with 256 slots."""

    prefill_tokens_per_second: float = 600_000.0
    decode_step_seconds: float = 0.0012


class _Pending:
    """Tokens that the device has computed at a moment of the monotonic clock."""

    def __init__(self, tokens: list[int], ready: float) -> None:
        self._tokens, self._ready = tokens, ready

    def wait(self) -> tuple[list[int], list[float]]:
        time.sleep(max(0.0, self._ready - time.monotonic()))
        return self._tokens, [-0.1] * len(self._tokens)


class ReplayRunner:
    """Stands in for `ModelRunner`; a turn's tokens are found by the seed that it is sampled with."""

    pads = False
    slow_reason = None
    runs_ahead = True

    def __init__(self, *, slots: int, latency: Latency, turns: Mapping[int, Sequence[int]]) -> None:
        self._turns, self._latency = turns, latency
        self._left: list[Iterator[int]] = [iter(()) for _ in range(slots)]
        self._busy_until = 0.0
        self.counts: Counter[str] = Counter()
        """Launches by kind."""

    def prefill(
        self, chunks: Sequence[PrefillChunk], samplings: Sequence[Sampling], drawn: Sequence[int], **work: bool
    ) -> _Pending:
        for chunk, sampling in zip(chunks, samplings, strict=True):
            self._left[chunk.slot] = iter(self._turns[sampling.seed])
        self.counts["prefills"] += 1
        seconds = PrefillSize.of(chunks).tokens / self._latency.prefill_tokens_per_second
        return self._launch([chunk.slot for chunk in chunks], seconds)

    def decode(self, count: int, length: int, **work: bool) -> _Pending:
        self.counts["decode_steps"] += 1
        return self._launch(range(count), self._latency.decode_step_seconds)

    def _launch(self, slots: Sequence[int], seconds: float) -> _Pending:
        self._busy_until = max(self._busy_until, time.monotonic()) + seconds
        return _Pending([next(self._left[slot], 0) for slot in slots], self._busy_until)

    def swap(self, one: Sequence[int], other: Sequence[int], length: int) -> None:
        self.counts["compactions"] += 1
        for slot, place in zip(one, other, strict=True):
            self._left[slot], self._left[place] = self._left[place], self._left[slot]

    def deactivate(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._left[slot] = iter(())

    def copy(self, source: Sequence[int], target: Sequence[int], length: int) -> None:
        self.counts["prefix_copies"] += 1

    def prefill_without_sampling(self, chunks: Sequence[PrefillChunk]) -> None:
        """Nothing is computed."""

    def count_padding(self, chunks: Sequence[PrefillChunk]) -> int:
        return 0

    def refresh(self) -> None:
        """There are no weights."""


@contextmanager
def replaying_engine(
    settings: LocalEngineSettings, runner: ReplayRunner, *, context_limit: int, ledger: Ledger
) -> Iterator[local.LocalEngine]:
    """The local engine over such a runner, in place of a model."""
    with (
        patch.object(local, "ModelRunner", lambda *given, **options: runner),
        patch.object(local, "sampled_model", lambda model: model),
        patch.object(local, "resolve_context_limit", lambda model, limit: limit),
    ):
        no_model = cast(PreTrainedModel, None)
        yield local.LocalEngine(no_model, settings=settings, context_limit=context_limit, ledger=ledger)
