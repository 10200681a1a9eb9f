"""Whatever a file, a recipe, a model or a client holds: a value, or a TurnwiseError of one line; of a server, a 4xx.

A few hundred cases here; 100,000 with `TURNWISE_FAULTS=long` (`make test-faults`).
"""

import asyncio
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from fuzzing import ODD, TEXT, damaged, fuzz, nearly
from tiny_runs import run_tiny
from turnwise.agents.chat import NoCompletionError, read_completion
from turnwise.config import load_config
from turnwise.envs.qa.data import read_questions
from turnwise.envs.task_files import read_tasks
from turnwise.errors import TurnwiseError
from turnwise.gateway.chat import GatewayError
from turnwise.gateway.wire import ANTHROPIC, OPENAI, RESPONSES
from turnwise.recipes import packaged_recipes
from turnwise.render.formats import CallFormat, format_message, parse_text
from turnwise.runs.findings import read_findings
from turnwise.runs.metrics import read_metrics
from turnwise.runs.store import read_trajectories
from turnwise.tools import tool
from turnwise.tools.search.corpus import read_corpus
from turnwise.tools.search.server import _parse
from turnwise.types import Message, ToolResult


def one_line(call, *arguments, **options) -> object:
    """What the call returns, or None where it refused in one line; anything else is raised."""
    try:
        return call(*arguments, **options)
    except TurnwiseError as error:
        lines = str(error)
    assert lines
    assert "\n" not in lines
    return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Hypothesis calls a test many times with one fixture: each call writes its file anew."""
    return tmp_path_factory.mktemp("fuzz")


RECIPES = [path.read_text(encoding="utf-8") for path in packaged_recipes().values()]
RECIPE_DATA = [data for text in RECIPES if "extends" not in (data := yaml.safe_load(text))]


@fuzz(10_000)
@given(data=nearly(RECIPE_DATA), style=st.booleans())
def test_recipes_with_odd_values(folder, data, style):
    file = folder / "recipe.yaml"
    text = yaml.dump(data, default_flow_style=style, allow_unicode=True)
    file.write_text(text, encoding="utf-8", errors="surrogateescape" if text.isascii() else "replace")
    one_line(load_config, file)


@fuzz(8_000)
@given(
    data=st.one_of(
        damaged([text.encode() for text in RECIPES]),
        st.binary(max_size=40),
        TEXT.map(lambda t: t.encode("utf-8", "replace")),
    )
)
def test_recipes_with_odd_text(folder, data):
    file = folder / "recipe.yaml"
    file.write_bytes(data)
    one_line(load_config, file)


KEYS = [
    "steps",
    "seed",
    "rollout.group_size",
    "loss.kl_coef",
    "env.args",
    "model.name",
    "learner.optimizer",
    "algorithm",
    "",
]


@fuzz(6_000)
@given(key=st.one_of(st.sampled_from(KEYS), TEXT), value=st.one_of(TEXT, ODD.map(str)))
def test_overrides(key, value):
    one_line(load_config, "encyclopedia-grpo", [f"{key}={value}"])


PIECES = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "{",
        "}",
        '"',
        ":",
        ",",
        "\\",
        '"name"',
        '"arguments"',
        '"parameters"',
        "[",
        "]",
        "null",
        "1e999",
        "\\u0000",
        "\\ud800",
        "f",
        "NaN",
        '{"name":"f","arguments":{}}',
        '{"name":"f","parameters":{"a":1}}',
    ]
)
DEEP = st.sampled_from(["{" * 2000, "[" * 2000, '{"a":' * 2000, "\n", " "])


@fuzz(16_000)
@given(pieces=st.lists(st.one_of(PIECES, DEEP, TEXT), max_size=12))
def test_replies_of_models(pieces):
    """Always a message, which can be written again and shown as JSON."""
    message = parse_text("".join(pieces))
    assert isinstance(message, Message)
    for shape in CallFormat:
        assert isinstance(format_message(message, shape), str)


@tool
def look_up(word: str, times: int = 1, tags: list[str] | None = None, more: dict[str, float] | None = None) -> str:
    """Looks a word up.

    Args:
        word: The word.
        times: How often.
        tags: Some.
        more: More.
    """
    return f"{word} {times} {tags} {more}"


CALLS = [{"word": "a", "times": 2, "tags": ["x"], "more": {"y": 1.5}}, {"word": "b"}]


@pytest.fixture(scope="module")
def loop():
    """One for all cases: most of the time of a call went into a loop and a thread of its own."""
    with asyncio.Runner() as runner:
        yield runner


@fuzz(10_000)
@given(arguments=st.one_of(nearly(CALLS).map(json.dumps), damaged([json.dumps(c).encode() for c in CALLS]), TEXT))
def test_arguments_of_tools(loop, arguments):
    text = arguments.decode("utf-8", "replace") if isinstance(arguments, bytes) else arguments
    result = loop.run(look_up.call(text))
    assert isinstance(result, ToolResult)


CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
    "temperature": 0.5,
    "max_tokens": 9,
    "n": 1,
    "stream": True,
    "stop": ["x"],
    "stream_options": {"include_usage": True},
    "logprobs": True,
}
CLAUDE = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "4"}]}],
        },
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "stop_sequences": ["x"],
    "stream": False,
}
RESPONSE = {
    "model": "m",
    "instructions": "i",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "42"},
    ],
    "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {}}],
    "max_output_tokens": 9,
}
WIRES = {"openai": (OPENAI, CHAT), "anthropic": (ANTHROPIC, CLAUDE), "responses": (RESPONSES, RESPONSE)}


@pytest.mark.parametrize("api", WIRES)
@fuzz(8_000)
@given(drawn=st.data())
def test_requests_to_the_gateway(api, drawn):
    wire, sample = WIRES[api]
    body = drawn.draw(
        st.one_of(nearly([sample]).map(json.dumps).map(str.encode), damaged([json.dumps(sample).encode()]))
    )
    refusal = None
    try:
        wire.read(body)
    except GatewayError as error:
        refusal = error
    if refusal is not None:
        assert 400 <= refusal.status < 500, refusal
        json.dumps(wire.write_error(refusal))


@fuzz(6_000)
@given(
    body=st.one_of(
        nearly([{"queries": ["a", "b"], "topk": 3, "return_scores": True}]).map(json.dumps).map(str.encode),
        damaged([b'{"queries": ["a"], "topk": 5}']),
    )
)
def test_requests_to_the_search_server(body):
    status = 200
    try:
        assert len(_parse(body).queries) <= 4096
    except HTTPException as error:
        status = error.status_code
    assert status in (200, 400)


TASKS = [
    {"id": "1", "question": "Who?", "answers": ["Ada"], "n": 3},
    {"id": "2", "question": "Where?", "answers": ["Oslo"]},
]
QUESTIONS = [
    {"id": "1", "question": "Who?", "golden_answers": ["Ada"]},
    {
        "_id": "2",
        "question": "Where?",
        "answer": "Oslo",
        "supporting_facts": [["A", 0]],
        "context": [["A", ["s."]]],
        "type": "bridge",
    },
    {
        "id": "3",
        "question": "When?",
        "answers": ["1901"],
        "paragraphs": [{"idx": 0, "title": "t", "paragraph_text": "p"}],
    },
]
CORPUS = [{"id": "1", "title": "T", "text": "words"}, {"id": "2", "contents": '"T"\nwords'}]


def lines_of(entries: object) -> bytes:
    listed = entries if isinstance(entries, list) else [entries]
    return "\n".join(json.dumps(entry) for entry in listed).encode()


def parquet_of(row: dict[str, object]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([row] * 3), file)
    return file.getvalue()


PARQUET = [parquet_of({"id": "1", "question": "Who?", "answers": ["Ada"], "text": "t"})]


def written(samples: list[dict[str, object]]) -> st.SearchStrategy[tuple[str, bytes]]:
    """The end of a file's name, and what is in it."""
    table = b'id,question,answers\n1,Who?,Ada\n2,"a\nb","x""y"\n'
    return st.one_of(
        st.tuples(st.just(".jsonl"), st.one_of(nearly([samples]).map(lines_of), damaged([lines_of(samples)]))),
        st.tuples(
            st.just(".json"),
            st.one_of(nearly([samples]).map(json.dumps).map(str.encode), damaged([json.dumps(samples).encode()])),
        ),
        st.tuples(st.sampled_from([".csv", ".tsv"]), damaged([table, table.replace(b",", b"\t")])),
        st.tuples(st.sampled_from([".jsonl.gz", ".json.gz", ".parquet", ".txt"]), st.binary(max_size=40)),
    )


def read_all_tasks(file) -> list[object]:
    return [dict(task.data) for task in read_tasks(file)]


@pytest.mark.parametrize(
    ("read", "samples"),
    [(read_all_tasks, TASKS), (read_questions, QUESTIONS), (read_corpus, CORPUS)],
    ids=["tasks", "questions", "corpus"],
)
@fuzz(5_000)
@given(drawn=st.data())
def test_files_of_tasks_questions_and_passages(folder, read, samples, drawn):
    end, data = drawn.draw(written(samples))
    file = folder / f"file{end}"
    file.write_bytes(data)
    one_line(read, file)


@pytest.mark.parametrize("read", [read_all_tasks, read_questions, read_corpus])
@fuzz(1_000)
@given(drawn=st.data())
def test_damaged_parquet_of_tasks_questions_and_passages(folder, read, drawn):
    file = folder / "file.parquet"
    file.write_bytes(drawn.draw(damaged(PARQUET)))
    one_line(read, file)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    run = run_tiny(tmp_path_factory.mktemp("stored") / "run", steps=1)
    return run.trajectory_file("train", 1).read_bytes(), run.metrics.read_bytes()


@fuzz(4_000)
@given(drawn=st.data())
def test_stored_trajectories(folder, stored, drawn):
    file = folder / "trajectories.parquet"
    file.write_bytes(drawn.draw(damaged([stored[0]])))
    one_line(read_trajectories, file)


@fuzz(4_000)
@given(drawn=st.data())
def test_stored_metrics_and_findings(folder, stored, drawn):
    file = folder / "metrics.jsonl"
    file.write_bytes(drawn.draw(damaged([stored[1]])))
    one_line(read_metrics, file)
    one_line(read_findings, file)


COMPLETION = {
    "choices": [{"message": {"role": "assistant", "content": "hi", "tool_calls": CHAT["messages"][2]["tool_calls"]}}]
}


@fuzz(6_000)
@given(body=st.one_of(nearly([COMPLETION]).map(json.dumps).map(str.encode), damaged([json.dumps(COMPLETION).encode()])))
def test_replies_of_models_behind_an_api(body):
    refusal = ""
    try:
        assert isinstance(read_completion(body, turn=1), Message)
    except NoCompletionError as error:
        refusal = str(error)
    assert "\n" not in refusal
