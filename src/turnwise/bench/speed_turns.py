"""Episodes of several turns: our engine, which keeps a conversation's keys and values, against reading all of it again.

Invariant: both play the same shape; the loop around `generate` gets its answers for nothing, and pays for no padding.
Shapes: B episodes, C tokens of the conversation so far, N sampled tokens of a turn.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import cast

import torch

from turnwise.bench.speed_episodes import Shape, play
from turnwise.bench.speed_models import draw_ids, make_model, vocabulary_of
from turnwise.bench.speed_sampling import generate_rows
from turnwise.engines.local import EngineSettings, LocalEngine
from turnwise.seeds import derive_seed
from turnwise.types import Json

_CONTEXT_ROOM = 64
"""So that a conversation's end is no special case for anybody."""


def measure_sessions(settings: Mapping[str, Json]) -> dict[str, Json]:
    """Our rollout: environment, renderer and engine, every conversation kept from turn to turn."""
    model, shape = make_model(settings), read_shape(settings)
    context = shape.prompt + shape.completion + _CONTEXT_ROOM
    engine = LocalEngine(model, settings=EngineSettings(slots=shape.episodes), context_limit=context)
    seconds: list[Json] = []
    for repeat in range(_repeats(settings) + 1):
        _, took = asyncio.run(play(engine, shape, vocabulary_of(model), seed=repeat))
        seconds.append(took)
    return {"seconds": seconds[1:], "episodes": shape.episodes}


def measure_rereading(settings: Mapping[str, Json]) -> dict[str, Json]:
    """A loop that calls `generate` on the whole conversation every turn."""
    model, shape = make_model(settings), read_shape(settings)
    vocabulary = vocabulary_of(model)
    seconds: list[Json] = []
    for repeat in range(_repeats(settings) + 1):
        began = time.perf_counter()
        ids = _draw_rows(shape.episodes, shape.prompt, vocabulary, seed=derive_seed(repeat, "prompt"))  # [B, C]
        for turn in range(shape.turns):
            if turn:
                answers = _draw_rows(shape.episodes, shape.observation, vocabulary, seed=derive_seed(repeat, turn))
                ids = torch.cat([ids, answers], dim=1)  # [B, C]
            ids = generate_rows(model, ids, shape.turn)  # [B, C + N]
        seconds.append(time.perf_counter() - began)
        assert ids.shape == (shape.episodes, shape.prompt + shape.completion)
    return {"seconds": seconds[1:], "episodes": shape.episodes}


def read_shape(settings: Mapping[str, Json]) -> Shape:
    """`{"shape": {"groups": 32, "members": 1, "prompt": 128, "turns": 4, "turn": 32, "observation": 64}}`."""
    shape = settings["shape"]
    assert isinstance(shape, Mapping)
    return Shape(**cast(Mapping[str, int], shape))


def _draw_rows(rows: int, length: int, vocabulary: int, *, seed: int) -> torch.Tensor:
    return torch.tensor([draw_ids(derive_seed(seed, row), length, vocabulary) for row in range(rows)])  # [B, length]


def _repeats(settings: Mapping[str, Json]) -> int:
    """Those that count; one more goes before them, to warm up."""
    repeats = settings["repeats"]
    assert isinstance(repeats, int)
    return repeats
