"""Calls: right ones run, and every wrong one is answered in words that the model can act on."""

import asyncio
import contextvars
import json
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from enum import Enum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.errors import ToolError
from turnwise.tools import Tool, abandoned_threads, run_calls, tool
from turnwise.types import ToolCall, ToolResult


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


@tool
def paint(colour: Colour, points: list[Point], layers: int = 1) -> str:
    """Paints points."""
    return f"{colour.name} {points} {layers}"


def call(tool_: Tool, arguments: str) -> ToolResult:
    return asyncio.run(tool_.call(arguments))


def test_arguments_arrive_as_the_types_they_are_declared_with():
    result = call(paint, '{"colour": "red", "points": [{"x": 1}, {"x": 2, "y": 3}]}')
    assert result == ToolResult(content="RED [Point(x=1, y=0), Point(x=2, y=3)] 1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "the arguments are not valid JSON"),
        ('{"colour": "red"', "the arguments are not valid JSON (EOF"),
        ("[1]", 'must be one JSON object such as {"colour": ..., "points": ..., "layers": ...}'),
        ("null", "must be one JSON object"),
        ('"red"', "must be one JSON object"),
        ("{}", "argument 'colour' is missing; argument 'points' is missing"),
        ('{"colour": "red", "points": [], "layer": 2}', "there is no argument 'layer' (did you mean 'layers'?)"),
        ('{"colour": "green", "points": []}', "argument 'colour' is wrong: input should be 'red' or 'blue'"),
        (
            '{"colour": "red", "points": [], "layers": "2"}',
            "argument 'layers' is wrong: input should be a valid integer",
        ),
        ('{"colour": "red", "points": [], "layers": true}', "argument 'layers' is wrong"),
        ('{"colour": "red", "points": [{"y": 1}]}', "argument 'points.0.x' is missing"),
        ('{"colour": "red", "points": [{"x": 1, "z": 1}]}', "there is no argument 'points.0.z'"),
        ('{"p0": "red", "points": []}', "there is no argument 'p0'"),
        ("[" * 100_000, "not valid JSON (recursion limit"),
        ('{"colour": "\\ud800", "points": []}', "not valid JSON"),
    ],
)
def test_wrong_arguments_are_explained_with_the_usage(arguments, words):
    result = call(paint, arguments)
    assert not result.ok
    assert result.content.startswith("paint was not called: ")
    assert words in result.content
    assert 'Usage: paint(colour: "red" | "blue", points: array of object, layers: integer = 1)' in result.content


def test_numbers_must_be_finite_but_an_integer_is_a_number():
    @tool(quick=True)
    def half(x: float) -> float:
        """Halves."""
        return x / 2

    assert call(half, '{"x": 3}').content == "1.5"
    assert not call(half, '{"x": NaN}').ok
    assert not call(half, '{"x": 1e999}').ok


@given(st.text() | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(json.dumps))
@settings(max_examples=60, deadline=None)
def test_no_text_whatsoever_raises_or_gives_an_empty_answer(arguments):
    result = call(paint, arguments)
    assert not result.ok
    assert result.content not in ("", "{}")


@pytest.mark.parametrize(
    ("returned", "content"),
    [
        ("plain", "plain"),
        ("", "(no output)"),
        (None, "(no output)"),
        ({"a": [1, None]}, '{"a": [1, null]}'),
        ("ø", "ø"),
        (["ø"], '["ø"]'),
        (Point(x=1), '{"x": 1, "y": 0}'),
        (Colour.RED, '"red"'),
        (3, "3"),
        ("bad \ud83d surrogate", "bad ? surrogate"),
    ],
)
@pytest.mark.parametrize("quick", [False, True])
def test_what_a_function_returns_is_what_the_model_reads(returned, content, quick):
    @tool(quick=quick)
    def give() -> object:
        """Gives."""
        return returned

    assert call(give, "{}") == ToolResult(content=content)


def test_a_result_keeps_its_rewards_and_is_cut_with_a_note():
    @tool(max_chars=5)
    async def give() -> ToolResult:
        """Gives."""
        return ToolResult(content="abcdefgh", rewards={"found": 0.5})

    result = call(give, "{}")
    assert result.content == "abcde\n[cut: 3 of 8 characters are not shown]"
    assert result.rewards == {"found": 0.5}
    assert result.ok


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no such city"), "f failed: ValueError: no such city"),
        (StopIteration(3), "f failed: "),
        (KeyError("x"), "f failed: KeyError: 'x'"),
        (SystemExit(3), "f failed: "),
        (TimeoutError("the server's own"), "f failed: TimeoutError: the server's own"),
        (_UnprintableError(), "f failed: "),
    ],
)
@pytest.mark.parametrize("kind", ["thread", "quick", "async"])
def test_an_exception_becomes_an_observation(error, words, kind):
    def f() -> str:
        """Fails."""
        raise error

    async def g() -> str:
        """Fails."""
        raise error

    made = tool(name="f")(g) if kind == "async" else tool(name="f", quick=kind == "quick")(f)
    result = call(made, "{}")
    assert not result.ok
    assert result.content.startswith(words)


def test_what_json_cannot_carry_is_a_failure_told_in_words():
    @tool
    def give() -> object:
        """Gives."""
        return threading.Lock()

    result = call(give, "{}")
    assert not result.ok
    assert "give failed: " in result.content


def test_a_hung_thread_is_abandoned_and_counted_and_others_go_on():
    release = threading.Event()

    @tool(timeout=0.05)
    def hang() -> str:
        """Hangs."""
        release.wait(20)
        return "late"

    @tool
    def fine() -> str:
        """Works."""
        return "fine"

    async def main() -> list[ToolResult]:
        calls = [ToolCall(id=str(i), name="hang", arguments="{}") for i in range(40)]
        return await run_calls([hang, fine], [*calls, ToolCall(id="x", name="fine", arguments="{}")])

    before, start = abandoned_threads(), time.perf_counter()
    *hung, good = asyncio.run(main())
    assert time.perf_counter() - start < 10
    assert {result.content for result in hung} == {
        "hang gave no answer within 0.05 seconds and was stopped; ask for less or go on without"
    }
    assert not any(result.ok for result in hung)
    assert good == ToolResult(content="fine")
    assert abandoned_threads() - before == 40
    release.set()
    deadline = time.perf_counter() + 10
    while abandoned_threads() > before and time.perf_counter() < deadline:
        time.sleep(0.01)
    assert abandoned_threads() == before


def test_a_hung_thread_does_not_keep_the_process_alive():
    program = textwrap.dedent("""
        import asyncio, time
        from turnwise.tools import tool

        @tool(timeout=0.05)
        def hang() -> str:
            '''Hangs.'''
            time.sleep(60)

        assert not asyncio.run(hang.call("{}")).ok
    """)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=40)


@pytest.mark.parametrize("stubborn", [False, True])
def test_an_async_tool_is_stopped_even_when_it_ignores_cancellation(stubborn):
    @tool(timeout=0.05)
    async def wait() -> str:
        """Waits."""
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            if not stubborn:
                raise
            await asyncio.sleep(0.2)
        return "late"

    result = call(wait, "{}")
    assert not result.ok
    assert "within 0.05 seconds" in result.content


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_cancelling_the_caller_gets_through(kind):
    release = threading.Event()

    def block() -> str:
        """Blocks."""
        release.wait(20)
        return ""

    async def wait() -> str:
        """Waits."""
        await asyncio.sleep(20)
        return ""

    made = tool(wait) if kind == "async" else tool(block)

    async def main() -> None:
        task = asyncio.ensure_future(run_calls([made], [ToolCall(id="1", name=made.spec.name, arguments="{}")]))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    release.set()


def test_a_tool_that_cancels_itself_does_not_cancel_the_episode():
    @tool
    async def give_up() -> str:
        """Gives up."""
        raise asyncio.CancelledError

    assert call(give_up, "{}") == ToolResult(content="give_up failed: RuntimeError: it cancelled itself", ok=False)


def test_threads_see_the_callers_context():
    episode = contextvars.ContextVar("episode", default="none")

    @tool
    def which() -> str:
        """Says which."""
        return episode.get()

    async def main() -> str:
        episode.set("seven")
        return (await which.call("{}")).content

    assert asyncio.run(main()) == "seven"


def test_calls_of_a_turn_run_side_by_side_and_answer_in_order():
    barrier = threading.Barrier(3, timeout=10)

    @tool
    def meet(name: str) -> str:
        """Returns only when three are there."""
        barrier.wait()
        return name

    calls = [ToolCall(id=name, name="meet", arguments=json.dumps({"name": name})) for name in "abc"]
    results = asyncio.run(run_calls([meet], calls))
    assert [result.content for result in results] == ["a", "b", "c"]


def test_quick_calls_run_in_order_on_the_event_loop():
    order: list[int] = []
    threads: set[int] = set()

    @tool(quick=True)
    def note(x: int) -> None:
        """Notes."""
        order.append(x)
        threads.add(threading.get_ident())

    asyncio.run(run_calls([note], [ToolCall(id=str(i), name="note", arguments=f'{{"x": {i}}}') for i in range(20)]))
    assert order == list(range(20))
    assert threads == {threading.get_ident()}


def test_calls_that_cannot_be_made_are_answered_and_the_others_run():
    @tool(quick=True)
    def search(query: str) -> str:
        """Searches."""
        return f"found {query}"

    calls = [
        ToolCall(id="1", name="serch", arguments="{}"),
        ToolCall(id="2", name="", arguments="<tool_call>{", problem="the JSON stops in the middle"),
        ToolCall(id="3", name="search", arguments='{"query": "Oslo"}'),
        ToolCall(id="4", name="x" * 9000, arguments="{}"),
    ]
    misspelt, unread, good, absurd = asyncio.run(run_calls([search], calls))
    assert misspelt.content == "there is no tool 'serch' (did you mean 'search'?). The tools are: search."
    assert unread.content == "the tool call could not be read: the JSON stops in the middle"
    assert good == ToolResult(content="found Oslo")
    assert len(absurd.content) < 200
    assert [result.ok for result in (misspelt, unread, absurd)] == [False] * 3
    (alone,) = asyncio.run(run_calls([], calls[:1]))
    assert alone.content == "there is no tool 'serch'. There are no tools: answer directly."


class Counter:
    def __init__(self) -> None:
        self.total = 0

    @tool(quick=True)
    def add(self, amount: int) -> str:
        """Adds.

        Args:
            amount: How much.
        """
        self.total += amount
        return str(self.total)

    @tool
    async def total_later(self) -> int:
        """Tells the total."""
        return self.total


def test_a_method_binds_to_its_instance_and_hides_self():
    one, two = Counter(), Counter()
    assert list(Counter.add.spec.parameters["properties"]) == ["amount"]
    assert call(one.add, '{"amount": 2}').content == "2"
    assert call(one.add, '{"amount": 3}').content == "5"
    assert call(two.add, '{"amount": 4}').content == "4"
    assert call(one.total_later, "{}").content == "5"
    assert one.add(1) == "6"


def test_a_toolset_refuses_duplicates_methods_without_object_and_plain_functions():
    def refuse(tools: list[object], words: str) -> None:
        with pytest.raises(ToolError, match=words):
            asyncio.run(run_calls(tools, []))

    refuse([paint, paint], r"two tools are named 'paint'; rename one with @tool\(name=...\)")
    refuse([Counter.add], "tool 'add' is a method without its object")
    refuse([len], "is not a tool; put @tool above the function")
