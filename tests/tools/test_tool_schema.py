"""What the model is told of a function: the JSON schema, and what cannot be offered at all."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal, Optional

import pytest
from pydantic import BaseModel, Field

from turnwise.errors import ToolError
from turnwise.tools import tool


class Unit(Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


@dataclass
class Place:
    city: str
    country: str = "NO"


class Window(BaseModel):
    title: str
    """A property called like a JSON schema keyword."""
    days: Annotated[int, Field(ge=1, le=7)] = 1


class Node(BaseModel):
    name: str
    children: list["Node"] = []


def test_plain_types_defaults_and_descriptions():
    @tool
    def lookup(query: str, k: int = 5, exact: bool = False, weight: float = 0.5) -> str:
        """Looks things up.

        In a large book.

        Args:
            query: What to look for,
                in English.
            k (int): How many.

        Returns:
            Lines of text.
        """
        return query

    assert lookup.spec.to_openai() == {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Looks things up.\n\nIn a large book.",
            "parameters": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "query": {"type": "string", "description": "What to look for, in English."},
                    "k": {"type": "integer", "default": 5, "description": "How many."},
                    "exact": {"type": "boolean", "default": False},
                    "weight": {"type": "number", "default": 0.5},
                },
                "required": ["query"],
            },
        },
    }


def test_nested_types_are_written_out_without_references():
    @tool
    def forecast(
        place: Place,
        window: Window,
        unit: Unit = Unit.CELSIUS,
        mode: Literal["short", "long"] = "short",
        tags: list[str] | None = None,
        limits: dict[str, int] = {},  # noqa: B006 - a schema must show it
        note: Optional[str] = None,  # noqa: UP045 - the old spelling must work too
    ) -> str:
        """Forecasts.

        Args:
            unit: Of the temperature.
        """
        return ""

    assert forecast.spec.parameters["properties"] == {
        "place": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"city": {"type": "string"}, "country": {"type": "string", "default": "NO"}},
            "required": ["city"],
        },
        "window": {
            "type": "object",
            "properties": {
                "title": {"type": "string"},
                "days": {"type": "integer", "default": 1, "minimum": 1, "maximum": 7},
            },
            "required": ["title"],
        },
        "unit": {"type": "string", "enum": ["c", "f"], "default": "c", "description": "Of the temperature."},
        "mode": {"type": "string", "enum": ["short", "long"], "default": "short"},
        "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
        "limits": {"type": "object", "additionalProperties": {"type": "integer"}, "default": {}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    }
    assert forecast.spec.parameters["required"] == ["place", "window"]


def test_a_type_that_contains_itself_keeps_valid_references():
    @tool
    def walk(tree: Node) -> str:
        """Walks a tree."""
        return tree.name

    schema = walk.spec.parameters
    assert schema["properties"]["tree"] == {"$ref": "#/$defs/Node"}
    assert schema["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}


def test_awkward_parameter_names_and_no_parameters():
    @tool
    def odd(schema: int, copy: int, model_config: int, _k: int = 1) -> str:
        """Adds."""
        return ""

    @tool
    def now() -> str:
        """Tells the time."""
        return ""

    assert list(odd.spec.parameters["properties"]) == ["schema", "copy", "model_config", "_k"]
    assert now.spec.parameters == {"type": "object", "additionalProperties": False, "properties": {}}


def test_a_default_that_json_cannot_say_is_left_out_without_a_warning(recwarn):
    sentinel = object()

    @tool
    def f(x: object = sentinel) -> str:
        """Does."""
        return "default" if x is sentinel else "given"

    assert f.spec.parameters["properties"] == {"x": {}}
    assert not recwarn.list
    assert f() == "default"


def test_options_rename_the_tool():
    @tool(name="find-it", timeout=2.5, max_chars=10, quick=True)
    def f(x: int) -> str:
        """Finds."""
        return str(x)

    assert (f.spec.name, f.timeout, f.max_chars, f.quick) == ("find-it", 2.5, 10, True)


def no_type(query, k: int) -> str:
    """Searches."""
    return ""


def no_docstring(query: str) -> str:
    return query


def only_sections(query: str) -> str:
    """
    Args:
        query: What.
    """
    return query


def misspelt(query: str) -> str:
    """Searches.

    Args:
        qurey: What to look for.
    """
    return query


def star(*queries: str) -> str:
    """Searches."""
    return ""


def callback(then: Callable[[int], int]) -> str:
    """Calls."""
    return ""


def unresolved(x: "Nowhere") -> str:  # noqa: F821 - meant
    """Does."""
    return ""


def generator(x: int):
    """Yields."""
    yield x


async def coroutine(x: int) -> str:
    """Waits."""
    return ""


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (no_type, {}, "tool 'no_type': parameter 'query' has no type; write e.g. `query: str`"),
        (no_docstring, {}, "tool 'no_docstring' has no docstring; say in a sentence"),
        (only_sections, {}, "has no docstring"),
        (misspelt, {}, "name 'qurey' (did you mean 'query'?), which is not a parameter"),
        (star, {}, "parameter 'queries' is variadic positional"),
        (callback, {}, "parameter 'then' has type collections.abc.Callable[[int], int], which JSON cannot carry"),
        (unresolved, {}, "a type hint cannot be resolved (name 'Nowhere' is not defined)"),
        (generator, {}, "is a generator; return its results as a list"),
        (coroutine, {"quick": True}, "is async; quick=True is for plain functions"),
        (lambda: "", {}, "'<lambda>' cannot name a tool"),
        (callback, {"name": "two words"}, "'two words' cannot name a tool"),
        (coroutine, {"timeout": 0.0}, "timeout is 0.0; give a positive number of seconds"),
        (coroutine, {"timeout": float("inf")}, "timeout is inf"),
        (coroutine, {"max_chars": 0}, "max_chars is 0; give at least 1"),
    ],
)
def test_what_cannot_be_offered_is_one_line_at_decoration(function, options, words):
    with pytest.raises(ToolError) as error:
        tool(**options)(function)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
