"""Raw text to messages and back: nothing raises, nothing is lost, and what is wrong is said in words."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.render import CallFormat, format_call, format_message, parse_text
from turnwise.types import Message, ToolCall


def only_call(text: str) -> ToolCall:
    (call,) = parse_text(text).tool_calls
    return call


def test_thinking_words_and_calls_are_told_apart() -> None:
    text = (
        "<think>\nTwo places.\n</think>\n\nLet me look.\n"
        '<tool_call>\n{"name": "search", "arguments": {"query": "Oslo", "k": 1.0}}\n</tool_call>\n'
        '<tool_call>{"name":"look","arguments":{}}</tool_call>'
    )
    assert parse_text(text) == Message(
        role="assistant",
        content="Let me look.",
        thinking="Two places.",
        tool_calls=(
            ToolCall(id="call_0", name="search", arguments='{"query": "Oslo", "k": 1.0}'),
            ToolCall(id="call_1", name="look", arguments="{}"),
        ),
    )


def test_an_answer_stays_in_content() -> None:
    message = parse_text("<think>Easy.</think><answer>Oslo</answer>")
    assert message == Message(role="assistant", content="<answer>Oslo</answer>", thinking="Easy.")


def test_arguments_keep_their_raw_text() -> None:
    raw = '{ "b":1e3,"a" :"\\u00e9 </tool_call> <tool_call>" }'
    call = only_call(f'<tool_call>{{"arguments" : {raw} , "name": "f"}}</tool_call>')
    assert (call.name, call.arguments, call.problem) == ("f", raw, "")


def test_words_around_calls_become_lines_of_content() -> None:
    message = parse_text(f"before{format_call('f', {})}between<think>why</think>after")
    assert (message.content, message.thinking) == ("before\nbetween\nafter", "why")


@pytest.mark.parametrize(
    ("body", "name", "words"),
    [
        ('{"name": "f", "arguments": {"x": 1}', "", "not valid JSON (Expecting ',' delimiter"),
        ("", "", "not valid JSON (Expecting value at character 1)"),
        ('["f", {}]', "", 'not a JSON object but `["f", {}]`'),
        ('{"arguments": {}}', "", 'no "name"'),
        ('{"name": 7, "arguments": {}}', "", '"name" must be the name of a tool, not `7`'),
        ('{"name": "", "arguments": {}}', "", '"name" must be the name of a tool, not `""`'),
        ('{"name": "\\ud800", "arguments": {}}', "", '"name" must be the name of a tool, not `"\\ud800"`'),
        ('{"name": "f"}', "f", 'no "arguments"'),
        ('{"name": "f", "query": "Oslo"}', "f", '`query` stands beside "arguments"'),
        ('{"name": "f", "arguments": [1]}', "f", '"arguments" must be a JSON object, not `[1]`'),
        ('{"name": "f", "arguments": null}', "f", '"arguments" must be a JSON object, not `null`'),
        ('{"name": "f", "arguments": "Oslo"}', "f", '"arguments" must be a JSON object, not `"Oslo"`'),
        ('{"name": "f", "arguments": {}, "parameters": {}}', "f", 'both "arguments" and "parameters"'),
        ('{"name": "f", "arguments": {}}}', "f", "more text follows the JSON object: `}`"),
        ('{"name": "f", "name": "g", "arguments": {}}', "", "the key `name` twice"),
        ('{"name": "f", "arguments": {"x": NaN}}', "", "a number that is not JSON"),
        (f'{{"name": "f", "arguments": {{"x": {"9" * 5000}}}}}', "", "a number that is not JSON"),
        (f'{{"name": "f", "arguments": {"[" * 100_000}', "", "nested too deeply"),
        ("{'name': 'f'}", "", "not valid JSON (Expecting property name enclosed in double quotes at character 2)"),
    ],
)
def test_a_malformed_call_keeps_its_text_and_says_why(body: str, name: str, words: str) -> None:
    call = only_call(f"<tool_call>{body}</tool_call>")
    assert (call.name, call.arguments) == (name, body)
    assert words in call.problem
    assert call.problem.endswith('; write <tool_call>{"name": "...", "arguments": {...}}</tool_call>')
    assert len(call.problem) < 400


def test_a_call_without_its_closing_tag_is_named_so_and_ends_with_its_object() -> None:
    message = parse_text('<tool_call>{"name": "f", "arguments": {}}\nand then')
    (call,) = message.tool_calls
    assert (call.name, call.arguments, message.content) == ("f", '{"name": "f", "arguments": {}}', "and then")
    assert "</tool_call> is missing" in call.problem


def test_an_unclosed_call_does_not_swallow_the_next() -> None:
    broken, sound = parse_text('<tool_call>{"name": <tool_call>{"name": "g", "arguments": {}}</tool_call>').tool_calls
    assert (broken.arguments, sound.name, sound.problem) == ('{"name":', "g", "")
    assert "not valid JSON" in broken.problem


def test_unclosed_thinking_is_thinking_to_the_end() -> None:
    assert parse_text("Well. <think>so much to say") == Message(
        role="assistant", content="Well.", thinking="so much to say"
    )


def test_a_call_inside_unclosed_thinking_is_answered_with_advice() -> None:
    message = parse_text(f"<think>I must look {format_call('f', {})}")
    assert message.thinking == "I must look"
    assert (message.tool_calls[0].name, "write </think> before it" in message.tool_calls[0].problem) == ("f", True)


def test_a_call_inside_closed_thinking_is_only_a_thought() -> None:
    message = parse_text(f"<think>perhaps {format_call('f', {})}</think>no")
    assert (message.tool_calls, message.content) == ((), "no")
    assert "</tool_call>" in message.thinking


def test_stray_closing_tags_stay_in_content() -> None:
    assert parse_text("a </think> b </tool_call> c").content == "a </think> b </tool_call> c"


def test_arguments_written_as_a_json_string_are_the_object_inside() -> None:
    call = only_call('<tool_call>{"name": "f", "arguments": "{\\"x\\": \\"\\ud83d\\"}"}</tool_call>')
    assert (call.arguments, call.problem) == ('{"x": "\\ud83d"}', "")
    assert json.loads(call.arguments) == {"x": "\ud83d"}


def test_llama_calls_are_a_bare_object_and_nothing_else() -> None:
    expected = ToolCall(id="call_0", name="f", arguments='{"x": 1}')
    assert only_call('{"name": "f", "parameters": {"x": 1}}') == expected
    assert only_call('<|python_tag|>{"type": "function", "name": "f", "parameters": {"x": 1}}') == expected
    assert only_call('<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>') == expected
    for text in ('I say {"name": "f", "parameters": {}}', '{"name": "f", "parameters": {}} so', '{"name": "f"}'):
        assert parse_text(text) == Message(role="assistant", content=text)


CALL = '{"name": "f", "arguments": {"x": 1}}'
AGAIN = '{"name": "g", "arguments": {}}'


@pytest.mark.parametrize(
    ("text", "names", "content"),
    [
        (CALL, ["f"], ""),
        (f"{CALL}, {AGAIN}", ["f", "g"], ""),
        (f"{CALL}\n{AGAIN}\n", ["f", "g"], ""),
        (f"[{CALL}, {AGAIN}]", ["f", "g"], ""),
        (f"```json\n{CALL}\n```", ["f"], ""),
        (f"```\n{CALL}\n{AGAIN}\n```", ["f", "g"], ""),
        (f"<think>Hm.</think>First this.\n```json\n{CALL}\n```\nThen that.\n```json\n{AGAIN}\n```", ["f", "g"],
         "First this.\n\nThen that."),
        (f"```python\nprint(1)\n```\n```json\n{CALL}\n```", ["f"], "```python\nprint(1)\n```"),
    ],
)  # fmt: skip
def test_calls_are_read_without_tags_as_qwen_coder_writes_them(text, names, content) -> None:
    message = parse_text(text)
    assert [call.name for call in message.tool_calls] == names
    assert [call.id for call in message.tool_calls] == [f"call_{place}" for place in range(len(names))]
    assert message.tool_calls[0].arguments == '{"x": 1}'
    assert not any(call.problem for call in message.tool_calls)
    assert message.content == content


@pytest.mark.parametrize(
    "text",
    [
        f"I would call {CALL}.",
        f"{CALL} and so on",
        '{"name": "Oslo", "population": 700000}',
        '[{"name": "f"}]',
        '```json\n{"name": "Oslo", "arguments": {}, "country": "Norway"}\n```',
        f"```json\n{CALL}",
        "[]",
        "``````",
        "[1, 2]",
    ],
)
def test_other_json_stays_an_answer(text) -> None:
    assert parse_text(text) == Message(role="assistant", content=text)


def test_a_malformed_bare_call_is_corrected_in_its_own_format() -> None:
    call = only_call('{"name": "f", "parameters": 3}')
    assert call.arguments == '{"name": "f", "parameters": 3}'
    assert call.problem.endswith('; write {"name": "...", "parameters": {...}}')


def test_format_message_writes_llama_calls_bare_where_that_says_everything() -> None:
    call = ToolCall(id="call_0", name="f", arguments='{"x": 1}')
    alone = Message(role="assistant", content="", tool_calls=(call,))
    assert format_message(alone, CallFormat.LLAMA3) == '{"name": "f", "parameters": {"x": 1}}'
    with_words = Message(role="assistant", content="Wait.", tool_calls=(call,))
    assert format_message(with_words, CallFormat.LLAMA3) == f"Wait.\n{format_call('f', {'x': 1})}"


def test_format_message_writes_a_malformed_call_as_it_was() -> None:
    text = "Hm.\n<tool_call>\n{'name': f}\n</tool_call>"
    assert format_message(parse_text(text)) == text


FRAGMENTS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<answer>",
        "</answer>",
        "<|python_tag|>",
        '{"name": "f", "arguments": {"x": "',
        '"}}',
        '{"name": "f", "parameters": {}}',
        '{"name": ',
        '"arguments": "{}"',
        "{",
        "}",
        "[",
        '"',
        "\\",
        "\n",
        " ",
        "NaN",
        "\ud800",
    ]
)


@given(st.lists(FRAGMENTS | st.text(max_size=5), max_size=12).map("".join))
def test_no_text_raises_and_problems_are_one_line(text: str) -> None:
    message = parse_text(text)
    assert [call.id for call in message.tool_calls] == [f"call_{i}" for i in range(len(message.tool_calls))]
    for call in message.tool_calls:
        if call.problem:
            assert "\n" not in call.problem
        else:
            assert isinstance(json.loads(call.arguments), dict)


@given(st.lists(FRAGMENTS, max_size=14))
def test_no_word_is_lost(fragments: list[str]) -> None:
    words = [f"word{i}" for i in range(len(fragments) + 1)]
    text = words[0] + "".join(f"{fragment}{word}" for fragment, word in zip(fragments, words[1:], strict=True))
    message = parse_text(text)
    kept = "\n".join([message.content, message.thinking, *(call.arguments for call in message.tool_calls)])
    assert [word for word in words if word not in kept] == []


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_without_tags_is_its_own_content(text: str) -> None:
    assert parse_text(f"So {text}.") == Message(role="assistant", content=f"So {text}.")


PLAIN = st.text(st.sampled_from("abc é{}\"',:\n"), max_size=12).map(str.strip)
ARGUMENTS = st.dictionaries(PLAIN, PLAIN | st.integers() | st.lists(PLAIN, max_size=2), max_size=3)


@given(PLAIN, PLAIN, st.lists(st.tuples(st.sampled_from(["f", "go_on"]), ARGUMENTS), max_size=3))
def test_formatting_and_parsing_are_inverse(thinking: str, content: str, calls) -> None:
    message = Message(
        role="assistant",
        content=content,
        thinking=thinking,
        tool_calls=tuple(
            ToolCall(id=f"call_{i}", name=name, arguments=json.dumps(arguments))
            for i, (name, arguments) in enumerate(calls)
        ),
    )
    for calls_as in CallFormat:
        assert parse_text(format_message(message, calls_as)) == message
