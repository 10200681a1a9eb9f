"""Which families the local engine samples, and that it never samples one wrongly; docs/families.md is made here."""

import asyncio
from functools import cache
from pathlib import Path

import pytest

from model_families import FAMILIES, make_family
from tiny_models import greedy_by_full_forwards
from turnwise.engines import LocalEngineSettings, Sampling
from turnwise.engines.local.engine import LocalEngine
from turnwise.errors import ModelError

PAGE = Path(__file__).parents[2] / "docs/families.md"
HEADER = "| sampled by | families (`model_type`) |\n|---|---|\n"
FUSED, OWN, REFUSED = "the fused forward", "the model's own forward, many times slower", "refused, with the reason"


@cache
def engine_or_error(name: str) -> LocalEngine | ModelError:
    try:
        return LocalEngine(make_family(name), settings=LocalEngineSettings(slots=2))
    except ModelError as error:
        return error


def kind_of(name: str) -> str:
    engine = engine_or_error(name)
    if isinstance(engine, ModelError):
        return REFUSED
    return FUSED if engine.slow_reason is None else OWN


def make_table() -> str:
    kinds = {name: kind_of(name) for name in FAMILIES}
    rows = [(kind, [name for name in kinds if kinds[name] == kind]) for kind in (FUSED, OWN, REFUSED)]
    return HEADER + "".join(f"| {kind} | {'; '.join(names)} |\n" for kind, names in rows)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_sampled_right_or_refused(name):
    """Greedy tokens past every window are those of full forwards without a cache."""
    engine = engine_or_error(name)
    if isinstance(engine, ModelError):
        assert str(engine).splitlines() == [str(engine)]
        assert name.partition(",")[0] in str(engine)
        return
    prompt = [5 + place % 40 for place in range(30)]
    expected, _ = greedy_by_full_forwards(engine._model, prompt, 6)
    said = asyncio.run(engine.generate("s", prompt, Sampling(max_tokens=6, stop_ids=(), temperature=0)))
    assert list(said.ids) == expected


@pytest.mark.parametrize("name", ["gpt_neo", "recurrent_gemma", "rwkv"])
def test_a_family_that_would_be_silently_wrong_is_refused(name):
    error = engine_or_error(name)
    assert isinstance(error, ModelError)
    assert f"cannot sample {name} models like this: over its KV cache, in float32 its logits are off" in str(error)
    assert "choose a model of another family" in str(error)


@pytest.mark.parametrize("name", ["bloom", "deepseek_v3", "falcon, alibi"])
def test_a_family_whose_code_fails_over_our_cache_is_one_line(name):
    error = engine_or_error(name)
    assert isinstance(error, ModelError)
    assert "its forward fails (" in str(error)
    assert "choose a model of another family" in str(error)


def test_the_page_has_this_table():
    table = make_table()
    assert table in PAGE.read_text(encoding="utf-8"), f"put this into docs/families.md:\n{table}"
