"""What the KV cache takes of the host's memory on a CPU: rows of slots that are used, and never the last of it."""

import asyncio
import random
import weakref

import pytest
import torch

from tiny_models import logprobs_by_full_forward, make_model
from turnwise.compute import host_memory
from turnwise.engines import LocalEngineSettings, Sampling
from turnwise.engines.local import cache as cache_module
from turnwise.engines.local.cache import KVCache
from turnwise.engines.local.engine import LocalEngine


def ask(engine, *prompts, first=0):
    """A turn of each prompt, side by side, each in a session of its own."""

    async def everyone():
        sampling = Sampling(max_tokens=5, stop_ids=(), seed=1)
        return await asyncio.gather(
            *(engine.generate(f"s{number}", prompt, sampling) for number, prompt in enumerate(prompts, first))
        )

    return asyncio.run(everyone())


def rows_of(engine):
    """Of the first layer's keys, without the spare one."""
    return len(engine._runner._cache._layers[0][0]) - 1


def test_slots_that_no_episode_has_used_take_no_memory():
    """`engine.slots` of a recipe may be hundreds; SmolLM2 took 24 GiB for 16 episodes, and the kernel ended the run."""
    model = make_model().cpu()  # a GPU has all rows at once
    engine = LocalEngine(model, settings=LocalEngineSettings(slots=300))
    source = random.Random(0)
    prompts = [[source.randrange(10, 60) for _ in range(length)] for length in (3, 40, 7)]
    asked, rows = [], []
    for first in range(3):
        asked += zip(prompts, ask(engine, *prompts, first=3 * first), strict=True)
        rows.append(rows_of(engine))
    assert rows == [3, 6, 12], "twice as many as before, and not one row at each arrival"
    for prompt, completion in asked:
        expected = logprobs_by_full_forward(model, prompt, completion.ids)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)
    ask(engine, *([[1, 2]] * 400))
    assert rows_of(engine) == 300


def test_what_is_cached_stays_when_rows_are_added_and_the_old_spare_one_begins_empty():
    cache = KVCache(rows=2, dtype=None)
    cache.reserve(4, 2)
    keys, values = cache.layer(0, torch.zeros(1, 2, 3))
    for tensor in (keys, values):
        tensor.copy_(torch.rand_like(tensor))
    cache.reserve(6, 5)
    for larger, before in zip(cache.layer(0, keys), (keys, values), strict=True):
        assert larger.shape == (6, 2, 6, 3)
        assert larger[:2, :, :4].equal(before[:2])
        assert not larger[2:].any()
        assert not larger[:, :, 4:].any()
    assert (cache.capacity, cache.spare) == (6, 5)


def test_one_layer_at_a_time_is_there_twice(monkeypatch):
    cache = KVCache(rows=2, dtype=None)
    cache.reserve(4, 2)
    before = [weakref.ref(tensor) for layer in range(5) for tensor in cache.layer(layer, torch.zeros(1, 2, 3))]
    alive, plain = [], cache_module._zeros

    def zeros(*given):
        alive.append(sum(tensor() is not None for tensor in before))
        return plain(*given)

    monkeypatch.setattr(cache_module, "_zeros", zeros)
    cache.reserve(8, 2)
    assert alive == [10, 10, 8, 8, 6, 6, 4, 4, 2, 2]


def test_a_cache_that_does_not_fit_raises_what_a_full_gpu_raises(monkeypatch):
    monkeypatch.setattr(host_memory, "read_kernel_bytes", lambda *given: 1600.0)
    monkeypatch.setattr(host_memory, "free_memory", lambda: 340.0)
    cache = KVCache(rows=1, dtype=None)
    cache.reserve(5, 1)
    cache.layer(0, torch.zeros(1, 2, 3))  # 2 rows of 2 heads of 5 tokens of 3 numbers: 240 bytes, and 100 for others
    monkeypatch.setattr(host_memory, "free_memory", lambda: 339.0)
    with pytest.raises(torch.OutOfMemoryError, match="of the host's memory"):
        cache.layer(1, torch.zeros(1, 2, 3))
    with pytest.raises(torch.OutOfMemoryError, match="of the host's memory"):
        cache.reserve(6, 1)
    assert (cache.capacity, cache.spare) == (5, 1)
