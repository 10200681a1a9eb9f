"""Episodes of several turns: our engine, which keeps a conversation's keys and values, against reading all of it again.

Invariant: both play the same shape, turn for turn; the loop around `generate` gets its observations for free.
Shapes: B episodes, C tokens of the longest conversation so far, N sampled tokens of a turn.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from transformers import PreTrainedModel

from benchmarks.speed.episodes import Shape, play
from benchmarks.speed.models import draw_ids, make_model, vocabulary_of
from benchmarks.speed.sampling import generate_rows
from turnwise.compute.garbage import reduced_gc
from turnwise.engines.local.engine import LocalEngine
from turnwise.engines.settings import LocalEngineSettings
from turnwise.seeds import derive_seed
from turnwise.types import Json

_PREFILL_TOKENS = 16_384
"""Half of a batch's prompts in one forward: a model this small leaves the memory for it."""
_CONTEXT_ROOM = 64
"""So that no conversation ends at the limit."""


def measure_sessions(settings: Mapping[str, Json]) -> dict[str, Json]:
    """Our rollout: environment, renderer and engine, every conversation kept from turn to turn."""
    model, shape = make_model(settings), read_shape(settings)
    context = shape.prompt + shape.longest + _CONTEXT_ROOM
    sizes = LocalEngineSettings(slots=shape.episodes, prefill_tokens=_PREFILL_TOKENS)
    engine = LocalEngine(model, settings=sizes, context_limit=context)
    seconds: list[Json] = []
    with reduced_gc():  # as in training
        for repeat in range(_repeats(settings) + 1):
            _, took = asyncio.run(play(engine, shape, vocabulary_of(model), seed=repeat))
            seconds.append(took)
    return {"seconds": seconds[1:], "episodes": shape.episodes}


def measure_rereading(settings: Mapping[str, Json]) -> dict[str, Json]:
    """A loop that calls `generate` on the whole conversation every turn."""
    model, shape = make_model(settings), read_shape(settings)
    assert shape.members == 1, "an episode's turns are drawn by its group alone"
    vocabulary = vocabulary_of(model)
    seconds: list[Json] = []
    with reduced_gc():
        for repeat in range(_repeats(settings) + 1):
            seconds.append(_converse(model, shape, vocabulary, seed=repeat))
    return {"seconds": seconds[1:], "episodes": shape.episodes}


def _converse(model: PreTrainedModel, shape: Shape, vocabulary: int, *, seed: int) -> float:
    """Seconds that all conversations took, in one batch, turn by turn."""
    began = time.perf_counter()
    rows = _draw_rows(shape.episodes, shape.prompt, vocabulary, seed=derive_seed(seed, "prompt"))
    lengths = [shape.draw_turns(f"{seed}/{episode}/0") for episode in range(shape.episodes)]
    for turn in range(shape.turns):
        if turn:
            answers = _draw_rows(shape.episodes, shape.observation, vocabulary, seed=derive_seed(seed, turn))
            rows = [row + answer for row, answer in zip(rows, answers, strict=True)]
        rows = _generate_turn(model, rows, [of_turns[turn] for of_turns in lengths])
    took = time.perf_counter() - began
    read = shape.prompt + (shape.turns - 1) * shape.observation
    assert [len(row) - read for row in rows] == [sum(of_turns) for of_turns in lengths]
    return took


def read_shape(settings: Mapping[str, Json]) -> Shape:
    """`{"shape": {"groups": 32, "members": 1, "prompt": 128, "turns": 4, "turn": 32, "observation": 64}}`."""
    shape = settings["shape"]
    assert isinstance(shape, Mapping)
    return Shape(**cast(Mapping[str, int], shape))


def _generate_turn(model: PreTrainedModel, rows: Sequence[list[int]], lengths: Sequence[int]) -> list[list[int]]:
    """Every row with its own number of sampled tokens after it: all are sampled to the longest, and cut."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])  # [B, C]
    live = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])  # [B, C]
    sampled = generate_rows(model, ids, max(lengths), live)[:, width:].tolist()  # [B, N]
    return [row + some[:length] for row, some, length in zip(rows, sampled, lengths, strict=True)]


def _draw_rows(rows: int, length: int, vocabulary: int, *, seed: int) -> list[list[int]]:
    return [draw_ids(derive_seed(seed, row), length, vocabulary) for row in range(rows)]


def _repeats(settings: Mapping[str, Json]) -> int:
    """Repeats that count; one more before them warms up."""
    repeats = settings["repeats"]
    assert isinstance(repeats, int)
    return repeats
