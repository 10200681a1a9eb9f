"""Batched tools: one invocation for the calls of a tick, each with its own fate."""

import asyncio
import threading

import pytest

from turnwise.errors import ToolError
from turnwise.tools import batched_tool, run_calls
from turnwise.types import ToolCall, ToolResult


def recording(returned=None, **options):
    """A batched tool that upper-cases, and the list of batches it saw."""
    batches: list[list[str]] = []

    @batched_tool(**options)
    def shout(text: list[str], times: list[int]) -> list[str]:
        """Shouts.

        Args:
            text: What.
        """
        batches.append(list(text))
        return [t.upper() * n for t, n in zip(text, times, strict=True)] if returned is None else returned

    return shout, batches


def arguments(text: str, times: int = 1) -> str:
    return f'{{"text": "{text}", "times": {times}}}'


async def episodes(tool, *texts: str) -> list[ToolResult]:
    """Each text is a turn of another episode, all at once."""
    turns = (run_calls([tool], [ToolCall(id=t, name=tool.spec.name, arguments=arguments(t))]) for t in texts)
    return [result for (result,) in await asyncio.gather(*turns)]


def test_the_model_sees_the_elements_of_the_lists():
    shout, _ = recording()
    assert shout.spec.parameters["properties"] == {
        "text": {"type": "string", "description": "What."},
        "times": {"type": "integer"},
    }


@pytest.mark.parametrize("quick", [False, True])
def test_calls_of_one_tick_from_several_episodes_share_an_invocation(quick):
    shout, batches = recording(quick=quick)
    results = asyncio.run(episodes(shout, "a", "b", "c"))
    assert [result.content for result in results] == ["A", "B", "C"]
    assert batches == [["a", "b", "c"]]


def test_an_async_function_is_batched_too():
    sizes: list[int] = []

    @batched_tool()
    async def double(x: list[int]) -> list[int]:
        """Doubles."""
        sizes.append(len(x))
        await asyncio.sleep(0)
        return [2 * value for value in x]

    async def main() -> list[ToolResult]:
        return await asyncio.gather(*(double.call(f'{{"x": {i}}}') for i in range(5)))

    assert [result.content for result in asyncio.run(main())] == ["0", "2", "4", "6", "8"]
    assert sizes == [5]


def test_more_calls_than_a_batch_holds_make_several():
    shout, batches = recording(max_batch=2, quick=True)
    results = asyncio.run(episodes(shout, "a", "b", "c", "d", "e"))
    assert [result.content for result in results] == ["A", "B", "C", "D", "E"]
    assert batches == [["a", "b"], ["c", "d"], ["e"]]


def test_a_bad_call_is_told_so_and_the_others_are_answered():
    shout, batches = recording()

    async def main() -> list[ToolResult]:
        wrong = '{"text": "b", "times": "many"}'
        return await asyncio.gather(*map(shout.call, [arguments("a"), wrong, arguments("c")]))

    good, bad, fine = asyncio.run(main())
    assert (good.content, fine.content) == ("A", "C")
    assert "argument 'times' is wrong" in bad.content
    assert batches == [["a", "c"]]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (["only one"], "the tool returned 1 results for 2 calls"),
        ("ab", "must return a list, one result per call, not str"),
        (7, "must return a list, one result per call, not int"),
    ],
)
def test_a_wrong_return_is_an_observation_to_each_caller(returned, words):
    shout, _ = recording(returned)
    results = asyncio.run(episodes(shout, "a", "b"))
    assert [result.ok for result in results] == [False, False]
    assert all(words in result.content for result in results)


def test_one_result_that_json_cannot_carry_does_not_spoil_the_other():
    shout, _ = recording([ToolResult(content="fine", rewards={"found": 1.0}), threading.Lock()])
    good, bad = asyncio.run(episodes(shout, "a", "b"))
    assert good == ToolResult(content="fine", rewards={"found": 1.0})
    assert not bad.ok


def test_an_exception_and_a_timeout_reach_every_caller():
    release = threading.Event()

    @batched_tool()
    def fail(text: list[str], times: list[int]) -> list[str]:
        """Fails."""
        raise ConnectionError("the index is down")

    @batched_tool(timeout=0.05)
    def hang(text: list[str], times: list[int]) -> list[str]:
        """Hangs."""
        release.wait(20)
        return text

    assert {r.content for r in asyncio.run(episodes(fail, "a", "b"))} == {
        "fail failed: ConnectionError: the index is down"
    }
    assert all("within 0.05 seconds" in r.content for r in asyncio.run(episodes(hang, "a", "b")))
    release.set()


def test_a_cancelled_caller_leaves_the_others_alone_and_the_tool_usable():
    shout, batches = recording()

    async def main() -> ToolResult:
        leaving = asyncio.ensure_future(shout.call(arguments("gone")))
        staying = asyncio.ensure_future(shout.call(arguments("here")))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        return await staying

    assert asyncio.run(main()).content == "HERE"
    assert asyncio.run(episodes(shout, "again"))[0].content == "AGAIN"
    assert batches[-1] == ["again"]


def test_a_loop_that_died_before_its_batch_ran_does_not_block_the_next():
    shout, _ = recording()

    async def leave() -> None:
        asyncio.get_running_loop().create_task(shout.call(arguments("never")))
        await asyncio.sleep(0)

    asyncio.run(leave())
    assert asyncio.run(episodes(shout, "next"))[0].content == "NEXT"


def scalar(query: str) -> list[str]:
    """Searches."""
    return []


def default(query: list[str] = []) -> list[str]:  # noqa: B006 - refused for it
    """Searches."""
    return []


def method(self, query: list[str]) -> list[str]:
    """Searches."""
    return []


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (scalar, "parameter 'query' must be a list, e.g. list\\[str\\]"),
        (default, "parameter 'query' cannot have a default"),
        (method, "cannot be a method"),
    ],
)
def test_what_cannot_be_batched_is_refused_at_decoration(function, words):
    with pytest.raises(ToolError, match=words):
        batched_tool()(function)


def test_an_empty_batch_size_is_refused():
    with pytest.raises(ToolError, match="max_batch is 0"):
        batched_tool(max_batch=0)
