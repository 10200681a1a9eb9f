"""The engine section of a recipe, and the factory that reads it."""

import pytest

from tiny_models import make_model
from turnwise.config import Config
from turnwise.engines import EngineSettings, EngineStats, LocalEngineSettings, make_engine
from turnwise.engines.local.engine import LocalEngine
from turnwise.errors import ConfigError
from turnwise.settings import dump_settings, load_yaml, parse_settings


def parse(section: object) -> Config:
    return parse_settings(Config, {"env": {"name": "encyclopedia"}, "engine": section}, source="recipe.yaml")


def test_the_local_engine_is_the_default_kind():
    config = parse({"slots": 128})
    assert config.engine == LocalEngineSettings(kind="local", slots=128, prefill_tokens=8192)
    assert parse({"kind": "local", "slots": 128}) == config


def test_a_config_with_its_kind_written_out_parses_back():
    config = parse({"slots": 3})
    data = load_yaml(dump_settings(config), source="config.yaml")
    assert data["engine"] == {"kind": "local", "slots": 3, "prefill_tokens": 8192}
    assert parse_settings(Config, data, source="config.yaml") == config


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"slotz": 8}, "engine.slotz: unknown key in recipe.yaml; did you mean 'slots'?"),
        (
            {"gpu": 1},
            "engine.gpu: unknown key in recipe.yaml; known here: kind, prefill_tokens, slots",
        ),
        ({"kind": "lokal"}, "engine.kind: expected 'local', got \"lokal\" in recipe.yaml"),
        ({"slots": 0}, "engine.slots: expected a value greater than 0, got 0 in recipe.yaml"),
    ],
)
def test_mistakes_are_named_where_they_were_written(section, message):
    with pytest.raises(ConfigError) as raised:
        parse(section)
    assert str(raised.value) == message


def test_the_factory_makes_what_the_settings_choose():
    settings: EngineSettings = LocalEngineSettings(slots=3)
    engine = make_engine(settings, make_model(), context_limit=40)
    assert isinstance(engine, LocalEngine)
    assert (engine.context_limit, len(engine._table.slots)) == (40, 3)
    assert engine.stats == EngineStats()


def test_statistics_subtract_field_by_field():
    before = EngineStats(prefill_tokens=10, decode_steps=2, decode_seconds=0.5)
    after = EngineStats(prefill_tokens=14, decode_steps=5, decode_seconds=0.75, evictions=1)
    assert after.since(before) == EngineStats(prefill_tokens=4, decode_steps=3, decode_seconds=0.25, evictions=1)
    assert after.since(after) == EngineStats()
