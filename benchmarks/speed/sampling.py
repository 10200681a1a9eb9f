"""How fast rows are sampled, by our engine and by transformers, on the same model, prompts and token counts.

Invariant: every sampler is timed alike, by the clock on the wall: to the first token of all rows, which is the prefill,
and to their last; the difference is decoding. No row ends early, and no two prompts share a beginning.
Shapes: B rows, P prompt tokens, N sampled tokens.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from benchmarks.speed.models import draw_ids, make_model, vocabulary_of
from turnwise.engines.base import Completion, Sampling
from turnwise.engines.local.engine import LocalEngine
from turnwise.engines.settings import LocalEngineSettings
from turnwise.seeds import derive_seed
from turnwise.types import Json

Sampler: TypeAlias = Callable[[list[list[int]], int], None]
"""Samples so many tokens after each of these prompts; returns when the last of them is on the host."""

_POOL_SHARE = 0.1
_COMPARED = 16
"""Rows whose logprobs are compared with the model's own: enough to see an error, few enough for full logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """So many rows, from contexts of `prompt` tokens to `tokens` more."""

    rows: int
    prompt: int
    tokens: int
    repeats: int
    seed: int
    vocabulary: int

    @classmethod
    def read(cls, settings: Mapping[str, Json], vocabulary: int) -> "Workload":
        names = ("rows", "prompt", "tokens", "repeats", "seed")
        rows, prompt, tokens, repeats, seed = (_whole(settings, name) for name in names)
        return cls(rows=rows, prompt=prompt, tokens=tokens, repeats=repeats, seed=seed, vocabulary=vocabulary)

    def prompts(self, repeat: int | str) -> list[list[int]]:
        """Other ones for every repeat, so that no cache of an earlier one helps."""
        return [
            draw_ids(derive_seed(self.seed, "prompt", repeat, row), self.prompt, self.vocabulary)
            for row in range(self.rows)
        ]


def measure_engine(settings: Mapping[str, Json]) -> dict[str, Json]:
    """Our engine: its times, its own count of decoded tokens a second, and how its logprobs agree with the model's."""
    model = make_model(settings)
    work = Workload.read(settings, vocabulary_of(model))
    context = work.prompt + work.tokens
    engine = LocalEngine(model, settings=LocalEngineSettings(slots=work.rows), context_limit=context)
    sample_all = make_engine_sampler(engine, work.seed)

    def sample(prompts: list[list[int]], tokens: int) -> None:
        sample_all(prompts, tokens)

    found = time_sampler(sample, work)
    before, prompts = engine.stats, work.prompts("counted")
    completions = sample_all(prompts, work.tokens)
    counted = engine.stats.since(before)
    found["counted_decode_tokens_per_second"] = counted.decode_tokens / counted.decode_seconds
    return found | compare_logprobs(model, prompts[:_COMPARED], completions[:_COMPARED])


def make_engine_sampler(engine: LocalEngine, seed: int) -> Callable[[list[list[int]], int], list[Completion]]:
    """Asks for all rows at once, as a rollout does."""
    asked = 0

    async def sample_row(number: int, prompt: list[int], tokens: int) -> Completion:
        how = Sampling(max_tokens=tokens, stop_ids=(), seed=derive_seed(seed, "row", number))
        completion = await engine.generate(f"row-{number}", prompt, how)
        await engine.end(f"row-{number}")
        assert len(completion.ids) == tokens
        return completion

    async def sample_rows(prompts: list[list[int]], tokens: int) -> list[Completion]:
        nonlocal asked
        asked += len(prompts)
        rows = (sample_row(asked + index, prompt, tokens) for index, prompt in enumerate(prompts))
        return list(await asyncio.gather(*rows))

    return lambda prompts, tokens: asyncio.run(sample_rows(prompts, tokens))


def measure_generate(settings: Mapping[str, Json]) -> dict[str, Json]:
    """transformers' `generate` with its dynamic cache; rows are equally long, so it pays for no padding."""
    model = make_model(settings)
    work = Workload.read(settings, vocabulary_of(model))

    def sample(prompts: list[list[int]], tokens: int) -> None:
        assert generate_rows(model, torch.tensor(prompts), tokens).shape == (len(prompts), work.prompt + tokens)

    return time_sampler(sample, work)


def generate_rows(
    model: PreTrainedModel, ids: torch.Tensor, tokens: int, live: torch.Tensor | None = None
) -> torch.Tensor:
    """Rows [B, P] with N sampled tokens after each: [B, P + N], on the host; `live` [B, P] is 0 on padding."""
    live = torch.ones_like(ids) if live is None else live
    rows: torch.Tensor = model.generate(
        ids.to(model.device), attention_mask=live.to(model.device), generation_config=sampling_config(tokens)
    )
    return rows.cpu()


def sampling_config(tokens: int) -> GenerationConfig:
    """The plain distribution at temperature 1, with nothing that ends a row early."""
    return GenerationConfig(
        max_new_tokens=tokens,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=None,
        pad_token_id=0,
        use_cache=True,
    )


def measure_continuous(settings: Mapping[str, Json]) -> dict[str, Json]:
    """transformers' continuous batching, timed by the stamps it puts on tokens: its own start-up is left out.

    Where it does not run on this device, its error is the result.
    """
    model = make_model(settings)
    work = Workload.read(settings, vocabulary_of(model))
    # It would fill nearly all of a CPU's memory with its cache before it begins.
    pool = ContinuousBatchingConfig(max_memory_percent=_POOL_SHARE) if model.device.type == "cpu" else None
    listener = _Listener()
    logging.getLogger("ContinuousBatchingLogger").addHandler(listener)
    try:
        for name, tokens in {"warm-up": 2, "continuous": work.tokens}.items():
            found = model.generate_batch(
                work.prompts(name),
                generation_config=sampling_config(tokens),
                continuous_batching_config=pool,
                record_timestamps=True,
            )
        rows = list(found.values())
        whole = [row for row in rows if row.error is None and len(row.generated_tokens) == work.tokens]
        if len(whole) < work.rows:
            why = next((row.error for row in rows if row.error is not None), None) or listener.last
            return {"failure": f"{len(whole)} of {work.rows} rows were finished: {why}"}
    except Exception as error:  # noqa: BLE001 (a peer that cannot run here is a finding, not a failure of ours)
        return {"failure": f"{type(error).__name__}: {_first_line(str(error))}"}
    began = min(row.created_time for row in whole)
    first = max(row.timestamps[0] for row in whole) - began
    last = max(row.timestamps[-1] for row in whole) - began
    return {"first_seconds": [first], "whole_seconds": [last]}


def time_sampler(sample: Sampler, work: Workload) -> dict[str, Json]:
    """`{"first_seconds": [...], "whole_seconds": [...]}`, after one whole run to warm up."""
    sample(work.prompts("warm-up"), work.tokens)
    sample(work.prompts("warm-up to one"), 1)
    first, whole = [], []
    for repeat in range(work.repeats):
        first.append(_clock(sample, work.prompts(f"first-{repeat}"), 1))
        whole.append(_clock(sample, work.prompts(f"whole-{repeat}"), work.tokens))
    return {"first_seconds": first, "whole_seconds": whole}


def _clock(sample: Sampler, prompts: list[list[int]], tokens: int) -> float:
    began = time.perf_counter()
    sample(prompts, tokens)
    return time.perf_counter() - began


def compare_logprobs(
    model: PreTrainedModel, prompts: Sequence[list[int]], completions: Sequence[Completion]
) -> dict[str, Json]:
    """How far the engine's logprobs are from those of one forward pass over the same rows, as shares of the largest.

    Where weights are not float32, the same forward pass in float32 says how much of it is rounding.
    """
    ids = torch.tensor([[*prompt, *one.ids] for prompt, one in zip(prompts, completions, strict=True)])  # [B, P + N]
    engine = torch.tensor([one.logprobs for one in completions], dtype=torch.double)  # [B, N]
    own = score_rows(model, ids, engine.shape[1])  # [B, N]
    found: dict[str, Json] = {
        "engine_minus_model": relative_error(engine, own),
        "engine_minus_model_mean": float((engine - own).abs().mean()),
    }
    if model.dtype is not torch.float32:
        exact = score_rows(model.float(), ids, engine.shape[1])  # [B, N]
        found["engine_minus_float32"] = relative_error(engine, exact)
        found["model_minus_float32"] = relative_error(own, exact)
    return found


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, over the largest value expected."""
    return float((found - expected).abs().max() / expected.abs().max())


def score_rows(model: PreTrainedModel, ids: torch.Tensor, tokens: int) -> torch.Tensor:
    """The model's own logprobs [B, N] of the last N of ids [B, P + N], read row by row in one forward pass each."""
    scores = []
    with torch.no_grad():
        for row in ids.to(model.device):  # [P + N]
            logits = model(input_ids=row[None], use_cache=False).logits[0, -tokens - 1 : -1]  # [N, V]
            logprobs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)  # [N, V]
            scores.append(logprobs.gather(-1, row[-tokens:, None]).squeeze(-1).double().cpu())  # [N]
    return torch.stack(scores)


class _Listener(logging.Handler):
    """Keeps the last log line: continuous batching logs its errors, and returns."""

    last = "it said nothing"

    def emit(self, record: logging.LogRecord) -> None:
        self.last = _first_line(record.getMessage())


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")


def _whole(settings: Mapping[str, Json], name: str) -> int:
    value = settings[name]
    assert isinstance(value, int), name
    return value
