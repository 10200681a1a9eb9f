"""Sections of several kinds: `kind` chooses, may be left out, and decides which keys are known."""

from typing import Annotated, Literal

import pytest
from pydantic import PositiveInt, Tag

from turnwise.errors import ConfigError
from turnwise.settings import Settings, by_kind, dump_settings, load_yaml, parse_settings


class Local(Settings):
    kind: Literal["local"] = "local"
    slots: PositiveInt = 4
    sizes: tuple[int, ...] = (1,)


class Server(Settings):
    kind: Literal["server"] = "server"
    url: str
    replicas: PositiveInt = 1


class Recipe(Settings):
    engine: Annotated[Annotated[Local, Tag("local")] | Annotated[Server, Tag("server")], by_kind("local")] = Local()


def parse(section: object) -> Recipe:
    return parse_settings(Recipe, {"engine": section}, source="recipe.yaml")


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({}, Local()),
        ({"slots": 8, "sizes": [1, 2]}, Local(slots=8, sizes=(1, 2))),
        ({"kind": "local"}, Local()),
        ({"kind": "server", "url": "http://x"}, Server(url="http://x")),
    ],
)
def test_kind_chooses_and_has_a_default(section, expected):
    recipe = parse(section)
    assert recipe.engine == expected
    assert parse_settings(Recipe, load_yaml(dump_settings(recipe), source="dump"), source="dump") == recipe


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"slotz": 3}, "engine.slotz: unknown key in recipe.yaml; did you mean 'slots'?"),
        ({"url": "http://x"}, "engine.url: unknown key in recipe.yaml; known here: kind, sizes, slots"),
        (
            {"kind": "server", "url": "http://x", "slots": 3},
            "engine.slots: unknown key in recipe.yaml; known here: kind, replicas, url",
        ),
        (
            {"kind": "server", "url": "http://x", "replica": 3},
            "engine.replica: unknown key in recipe.yaml; did you mean 'replicas'?",
        ),
        ({"kind": "server"}, "engine.url: required, but missing in recipe.yaml"),
        ({"kind": "server", "url": 3}, "engine.url: expected text, got 3 in recipe.yaml"),
        ({"kind": "servr"}, "engine.kind: unknown kind 'servr' in recipe.yaml; did you mean 'server'?"),
        ({"kind": "cloud"}, "engine.kind: unknown kind 'cloud' in recipe.yaml; known here: local, server"),
        (3, "engine: expected a mapping, got 3 in recipe.yaml"),
    ],
)
def test_a_key_or_kind_that_is_not_known_is_an_error(section, message):
    with pytest.raises(ConfigError) as raised:
        parse(section)
    assert str(raised.value) == message
