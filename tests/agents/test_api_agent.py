"""A model behind an API plays like any other; what its server does wrong is never the agent's mistake."""

import asyncio
import json
import re
import socket
from types import SimpleNamespace

import pytest

from chat_stub import Answer, says, serve
from turnwise.agents import ApiAgent, Decoding, Endpoint, EndpointSettings, PolicyAgent
from turnwise.agents.chat import NoCompletionError, read_completion, write_message
from turnwise.agents.endpoint import EndpointDownError
from turnwise.engines.scripted import ScriptedEngine
from turnwise.envs.base import Env
from turnwise.envs.tool_env import ToolEnv
from turnwise.errors import ConfigError, EnvError, ModelError
from turnwise.evaluation import evaluate
from turnwise.evaluation.report import read_answer
from turnwise.models.small import SmallSettings, train_tokenizer
from turnwise.render import make_render
from turnwise.rewards import exact_match_reward
from turnwise.rollout import Limits, run_episode, run_groups
from turnwise.settings import parse_settings
from turnwise.tools import tool
from turnwise.types import Message, Step, StopReason, Task, ToolCall

FOUNDERS = {"Lumen": "Ada", "Orbit": "Bo", "Pine": "Cy"}


@tool(quick=True)
def look_up(company: str) -> str:
    """Tells who founded a company.

    Args:
        company: Its name.
    """
    return f"{FOUNDERS[company]} founded {company}."


class Founders(ToolEnv):
    """One search, then the answer."""

    def __init__(self):
        tasks = [{"question": f"Who founded {company}?", "answers": [founder]} for company, founder in FOUNDERS.items()]
        super().__init__(tools=[look_up], tasks=tasks, rewards=[exact_match_reward.weighted(2.0)], system="Be brief.")

    def begin(self, task, episode_seed):
        self._episode_seed = episode_seed

    async def step(self, message):
        step = await super().step(message)
        return Step(
            messages=step.messages,
            rewards=step.rewards,
            done=step.done,
            metrics={**step.metrics, "episode_seed": float(self._episode_seed % 1000)},
        )


def company_in(messages):
    question = next(message["content"] for message in messages if message["role"] == "user")
    return question.removeprefix("Who founded ").removesuffix("?")


def expert(body, number):
    """Looks the company up, then answers by what it read."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return says(f"<answer>{last['content'].split()[0]}</answer>")
    return says(None, ("look_up", json.dumps({"company": company_in(body["messages"])})))


def agent_of(stub, decoding=None, **changed):
    return ApiAgent(endpoint=Endpoint(stub.settings(**changed)), decoding=decoding or Decoding())


def play_one(agent, limits=None, env=None, place=0, episode_seed=7):
    env = env or Founders()
    task = env.tasks("test")[place]
    return asyncio.run(run_episode(agent, env.spawn(), task, episode_seed=episode_seed, limits=limits))


def test_it_speaks_openais_shapes_both_ways():
    with serve(expert) as stub:
        decoding = Decoding(temperature=0.5, top_p=0.9, top_k=4)
        response = play_one(agent_of(stub, decoding), Limits(turn_tokens=99))
    assert (response.stop, len(response.turns), read_answer(response)) == (StopReason.DONE, 2, "Ada")
    assert (response.success, response.has_tokens) == (True, False)
    assert (response.rewards, response.reward) == ({"exact_match": 2.0}, 2.0)
    assert (response.metrics["tool_calls"], response.metrics["tool_errors"]) == (1.0, 0.0)
    assert [path for path, _, _ in stub.asked] == ["/v1/chat/completions"] * 2
    assert all("Authorization" not in headers for _, headers, _ in stub.asked)
    first, second = stub.bodies
    assert {name: first[name] for name in ("model", "temperature", "top_p", "top_k", "max_tokens")} == {
        "model": "m",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "max_tokens": 99,
    }
    assert first["tools"] == [look_up.spec.to_openai()]
    assert first["seed"] != second["seed"]
    opening = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who founded Lumen?"}]
    assert first["messages"] == opening
    call = {"id": "id_0", "type": "function", "function": {"name": "look_up", "arguments": '{"company": "Lumen"}'}}
    assert second["messages"] == [
        *opening,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "Ada founded Lumen.", "tool_call_id": "id_0"},
    ]
    assert [message.role for message in response.messages] == ["system", "user", "assistant", "tool", "assistant"]


def test_calls_in_plain_text_are_calls():
    def play(body, number):
        call = '<tool_call>{"name": "look_up", "arguments": {"company": "Lumen"}}</tool_call>'
        return says(f"<think>Look.</think>{call}{call}" if number == 0 else "<answer>Ada</answer>")

    with serve(play) as stub:
        response = play_one(agent_of(stub))
    assert (response.success, response.metrics["tool_calls"]) == (True, 2.0)
    assistant, *answers = stub.bodies[1]["messages"][2:]
    assert [call["id"] for call in assistant["tool_calls"]] == ["call_0_0", "call_0_1"]
    assert [answer["tool_call_id"] for answer in answers] == ["call_0_0", "call_0_1"]
    assert assistant["content"] is None


def test_both_kinds_of_agents_come_to_the_same_figures():
    """The same policy, once by tokens and once by messages: equal metrics, episode seed and all."""
    env = Founders()
    render = make_render(train_tokenizer(["Who founded Lumen? Ada Bo Cy"], SmallSettings(vocabulary=280)))

    def reply(session, prompt):
        text = render.decode(prompt)
        company = next(name for name in FOUNDERS if f"Who founded {name}?" in text)
        if f"founded {company}." not in text:
            return f'<tool_call>{{"name": "look_up", "arguments": {{"company": "{company}"}}}}</tool_call>'
        return f"<answer>{'nobody' if company == 'Orbit' else FOUNDERS[company]}</answer>"

    def play(body, number):
        answer = expert(body, number)
        return says("<answer>nobody</answer>") if b"<answer>Bo<" in answer.body else answer

    ours = PolicyAgent(engine=ScriptedEngine(reply, render.encode_action), render=render)
    one = asyncio.run(evaluate(ours, env, env.tasks("test"), samples_per_task=2, seed=3))
    with serve(play) as stub:
        other = asyncio.run(evaluate(agent_of(stub), env, env.tasks("test"), samples_per_task=2, seed=3))
    assert one.success == pytest.approx(2 / 3)
    assert one.metrics() == other.metrics()
    answers = [[[read_answer(t) for t in group.trajectories] for group in e.groups] for e in (one, other)]
    assert answers == [[["Ada"] * 2, ["nobody"] * 2, ["Cy"] * 2]] * 2
    groups = asyncio.run(run_groups(ours, env, env.tasks("test"), group_size=2, seed=3))
    episode_seeds = [t.episode_seed % 1000 for group in groups for t in group.trajectories]
    assert episode_seeds == [t.metrics["episode_seed"] for group in other.groups for t in group.trajectories]
    for evaluation, tokens in ((one, True), (other, False)):
        everyone = [t for group in evaluation.groups for t in group.trajectories]
        assert [(t.has_tokens, bool(t.messages)) for t in everyone] == [(tokens, not tokens)] * 6


@pytest.mark.parametrize(
    "stumble",
    [
        Answer(status=429, body=b"slow down"),
        Answer(status=503),
        Answer(body=b'{"choices": ['),
        Answer(body=b'{"error": {"message": "upstream"}}'),
        Answer(body=b'{"choices": [{"message": null}]}'),
    ],
)
def test_a_server_that_stumbles_is_asked_again(stumble):
    with serve(lambda body, number: stumble if number in (0, 2, 3) else expert(body, number)) as stub:
        response = play_one(agent_of(stub))
    assert (response.success, len(response.turns), len(stub.asked)) == (True, 2, 5)
    assert stub.bodies[0] == stub.bodies[1]


def test_waits_double_and_heed_the_server(monkeypatch):
    waits = []

    async def note(seconds):
        waits.append(seconds)

    monkeypatch.setattr("turnwise.http.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": note}))
    monkeypatch.setattr("turnwise.http._jitter.uniform", lambda low, high: high)
    asked = {1: "7", 2: "Wed, 21 Oct 2026 07:28:00 GMT", 3: "3600"}

    def busy(body, number):
        return Answer(status=429, headers=(("Retry-After", asked[number]),) if number in asked else ())

    with serve(busy) as stub:
        response = play_one(agent_of(stub, attempts=6, backoff=1.0))
    assert response.failure == "task 'task-0': endpoint: it answered with status 429, 6 times"
    assert waits == [1, 7, 4, 60, 16]


def test_time_lost_to_a_busy_server_is_not_the_agents(monkeypatch):
    """The waits are 0.4 and 0.8 seconds, which are more than the episode has."""
    monkeypatch.setattr("turnwise.http._jitter.uniform", lambda low, high: high)
    with serve(lambda body, number: Answer(status=503) if number < 2 else expert(body, number)) as stub:
        response = play_one(agent_of(stub, backoff=0.4), Limits(seconds=1.0))
    assert (response.stop, response.success) == (StopReason.DONE, True)
    assert response.seconds > 1.2


def test_a_slow_agent_runs_out_of_its_own_time():
    with serve(lambda body, number: expert(body, number)._replace(delay=0.0 if number == 0 else 1.0)) as stub:
        response = play_one(agent_of(stub), Limits(seconds=0.3))
    assert (response.stop, len(response.turns), response.failure) == (StopReason.TIMEOUT, 1, "")


@pytest.mark.parametrize(
    ("trouble", "words", "attempts"),
    [
        (Answer(status=500, body=b"oh\nno"), "endpoint: it answered with status 500: oh no, 3 times", 3),
        (Answer(status=400, body=b"bad"), "endpoint: it answered with status 400: bad", 1),
        (Answer(body=b"<html>"), "endpoint: its reply is not JSON, 3 times", 3),
        (Answer(body=b"{}", delay=0.8), "endpoint: no answer in 0.4 seconds, 3 times", 3),
        (Answer(body=b" " * 2**25), "endpoint: its answer is longer than 16777216 bytes", 1),
    ],
)
def test_what_the_endpoint_breaks_is_failed_and_counted_and_never_wrong(trouble, words, attempts, caplog):
    """One question out of three meets it in its second turn."""

    def play(body, number):
        return (
            trouble if company_in(body["messages"]) == "Orbit" and len(body["messages"]) > 2 else expert(body, number)
        )

    env = Founders()
    with serve(play) as stub:
        slow = {"timeout": 0.4} if trouble.delay else {}
        result = asyncio.run(evaluate(agent_of(stub, **slow), env, env.tasks("test")))
    failed = result.groups[1].trajectories[0]
    words = f"task 'task-1': {words}"
    assert (failed.stop, failed.failure, len(failed.turns), failed.success) == (StopReason.ENV_FAILED, words, 1, False)
    assert (result.success, result.reward, result.episodes, result.scores.failed) == (1.0, 2.0, 2, 1)
    assert len(stub.asked) == 2 + 2 + 1 + attempts
    assert f"1 of 3 episodes failed, the first: {words}" in caplog.text
    assert str(result).endswith("2 episodes, 1 failed")


def test_when_every_episode_fails_there_is_nothing_to_tell():
    env = Founders()
    words = (
        "every episode failed, 3 times alike: task 'task-0': endpoint: it answered with status 422: no max_tokens here"
    )
    unable = Answer(status=422, body=b"no max_tokens here")
    with serve(lambda body, number: unable) as stub, pytest.raises(EnvError, match=words):
        asyncio.run(evaluate(agent_of(stub), env, env.tasks("test")))
    assert len(stub.asked) == 3


def test_nobody_there_is_the_users_mistake():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    settings = EndpointSettings(url=f"http://127.0.0.1:{port}/v1", model="m", attempts=2, backoff=0.0)
    env = Founders()
    with pytest.raises(ModelError, match=r"cannot be reached .*refused.*; check the address"):
        asyncio.run(evaluate(ApiAgent(endpoint=Endpoint(settings)), env, env.tasks("test")))


def test_the_key_is_sent_and_shown_to_nobody(monkeypatch):
    monkeypatch.setenv("STUB_KEY", "not-a-real-key-0123456789\n")
    echo = b'{"error": "%s wrong key not-a-real-key-0123456789"}' % (b"." * 80)
    words = r"status 401.*wrong key \*\*\*.*--key-env"
    with (
        serve(lambda body, number: Answer(status=401, body=echo)) as stub,
        pytest.raises(ModelError, match=words) as raised,
    ):
        play_one(agent_of(stub, key_env="STUB_KEY"))
    assert stub.asked[0][1]["Authorization"] == "Bearer not-a-real-key-0123456789"
    assert "not-a-real" not in str(raised.value)
    assert "not-a-real" not in repr(stub.settings(key_env="STUB_KEY"))
    assert len(stub.asked) == 1
    with pytest.raises(ConfigError, match="key_env is NO_SUCH_KEY, but no such environment variable is set"):
        Endpoint(stub.settings(key_env="NO_SUCH_KEY"))


def test_a_key_that_expires_in_the_middle_loses_nothing_that_was_played():
    async def two(endpoint):
        await endpoint.complete({}, turn=0, lose=lambda seconds: None)
        await endpoint.complete({}, turn=0, lose=lambda seconds: None)

    with (
        serve(lambda body, number: says("Hello.") if number == 0 else Answer(status=401)) as stub,
        pytest.raises(EndpointDownError, match="status 401"),
    ):
        asyncio.run(two(Endpoint(stub.settings())))


def test_a_conversation_too_long_is_the_agents_unless_it_never_fitted():
    full = Answer(status=400, body=b'{"error": {"code": "context_length_exceeded"}}')
    with serve(lambda body, number: full if number == 1 else expert(body, number)) as stub:
        response = play_one(agent_of(stub))
        assert (response.stop, len(response.turns), read_answer(response)) == (StopReason.CONTEXT_FULL, 1, None)
    with serve(lambda body, number: full) as stub:
        assert play_one(agent_of(stub)).stop is StopReason.ENV_FAILED


def test_options_add_replace_and_leave_out():
    with serve(expert) as stub:
        play_one(agent_of(stub, options={"seed": None, "temperature": 1, "max_completion_tokens": 5}))
    (body, _) = stub.bodies
    assert "seed" not in body
    assert (body["temperature"], body["max_completion_tokens"]) == (1, 5)


def test_no_more_episodes_at_once_than_allowed():
    under_way, most = [], []

    def play(body, number):
        under_way.append(number)
        most.append(len(under_way))
        answer = expert(body, number)
        under_way.remove(number)
        return answer

    env = Founders()
    with serve(play) as stub:
        told = []
        results = asyncio.run(
            run_groups(
                agent_of(stub, concurrency=1),
                env,
                env.tasks("test"),
                group_size=2,
                seed=0,
                progress=lambda done, total: told.append((done, total)),
            )
        )
    assert max(most) == 1
    assert told == [(done, 6) for done in range(1, 7)]
    assert [len(group.trajectories) for group in results] == [2, 2, 2]


class Stages(Env):
    """Rewrites what was said, then goes by what the task says."""

    def tasks(self, split):
        return [Task(id=name) for name in ("forever", "clock", "break", "mistake", "close")]

    async def reset(self, task, episode_seed):
        self._task, self._turns = task, 0
        return [Message(role="user", content="Begin.")]

    async def step(self, message):
        self._turns += 1
        if self._task.id == "break":
            raise ConnectionError("no simulator")
        if self._task.id == "mistake":
            raise EnvError("a mistake of the user's")
        if self._task.id in ("clock", "close"):
            return Step(done=True, truncated=self._task.id == "clock", metrics={"success": 1.0})
        if self._turns == 1:
            return Step(rewrites=(Message(role="user", content=f"You said: {message.content}"),), rewards={"a": 1.0})
        return Step(messages=(Message(role="user", content="Go on."),), rewards={"a": 0.5})

    async def close(self):
        if self._task.id == "close":
            raise OSError("it is stuck")


@pytest.mark.parametrize(
    ("place", "stop", "failure"),
    [
        (0, StopReason.MAX_TURNS, ""),
        (1, StopReason.TIME_UP, ""),
        (2, StopReason.ENV_FAILED, r"task 'break': step: ConnectionError: no simulator \(.*agent\.py:\d+ in step\)"),
        (4, StopReason.DONE, r"task 'close': close: OSError: it is stuck \(.*agent\.py:\d+ in close\)"),
    ],
)
def test_who_ended_an_episode_is_never_lost(place, stop, failure):
    with serve(lambda body, number: says("<answer>up</answer>")) as stub:
        response = play_one(agent_of(stub), Limits(max_turns=3), Stages(), place)
    assert (response.stop, read_answer(response)) == (stop, "up")
    assert re.fullmatch(failure, response.failure)
    assert response.success == (place in (1, 4))
    if place == 0:
        assert (response.rewards, len(response.turns)) == ({"a": 2.0}, 3)
        assert stub.bodies[0].keys() == {"model", "messages", "temperature", "max_tokens", "seed"}
        assert [[message["content"] for message in body["messages"]] for body in stub.bodies[1:]] == [
            ["You said: <answer>up</answer>"],
            ["You said: <answer>up</answer>", "<answer>up</answer>", "Go on."],
        ]


def test_a_mistake_in_one_task_costs_that_tasks_episode_and_not_the_evaluation():
    with serve(lambda body, number: says("Hi.")) as stub:
        result = asyncio.run(evaluate(agent_of(stub), Stages(), Stages().tasks("test"), limits=Limits(max_turns=3)))
    failed = [t.failure for group in result.groups for t in group.trajectories if t.stop is StopReason.ENV_FAILED]
    assert [words.split(":")[:3] for words in failed] == [
        ["task 'break'", " step", " ConnectionError"],
        ["task 'mistake'", " step", " EnvError"],
    ]


def completion(**message):
    return json.dumps({"choices": [{"message": message}]}).encode()


CALL = {"function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "read"),
    [
        ({"content": " Hi. "}, {"content": "Hi."}),
        ({"content": None}, {}),
        ({"content": [{"type": "text", "text": "A"}, {"type": "image"}, {"text": "B"}]}, {"content": "AB"}),
        ({"content": None, "refusal": "No."}, {"content": "No."}),
        ({"content": "<think>a</think>b", "reasoning_content": "r"}, {"content": "b", "thinking": "r\na"}),
        ({"content": "b", "reasoning": "r"}, {"content": "b", "thinking": "r"}),
        ({"content": "", "tool_calls": [{**CALL, "id": "x"}]}, {"calls": [("x", "f", "{}")]}),
        ({"tool_calls": [CALL, {**CALL, "id": 7}]}, {"calls": [("call_3_0", "f", "{}"), ("call_3_1", "f", "{}")]}),
        (
            {"tool_calls": [{**CALL, "id": "x"}, {**CALL, "id": "x"}]},
            {"calls": [("x", "f", "{}"), ("call_3_1", "f", "{}")]},
        ),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
            {"calls": [("call_3_0", "f", '{"x": 1}')]},
        ),
        ({"tool_calls": [{"function": {"name": "f", "arguments": "{x"}}]}, {"calls": [("call_3_0", "f", "{x")]}),
        ({"tool_calls": [{"name": "f"}]}, {"calls": [("call_3_0", "", '{"name": "f"}')]}),
        (
            {"content": "<tool_call>{}</tool_call>", "tool_calls": [CALL]},
            {"content": "<tool_call>{}</tool_call>", "calls": [("call_3_0", "f", "{}")]},
        ),
    ],
)
def test_what_a_completion_says(message, read):
    found = read_completion(completion(**message), turn=3)
    calls = [(call.id, call.name, call.arguments) for call in found.tool_calls]
    expected = {"content": "", "thinking": "", "calls": []} | read
    assert {"content": found.content, "thinking": found.thinking, "calls": calls} == expected
    assert [bool(call.problem) for call in found.tool_calls] == [not call.name for call in found.tool_calls]


@pytest.mark.parametrize("body", [b"", b"[]", b"[" * 100_000, b'{"choices": []}', completion(tool_calls="f")])
def test_what_is_no_completion(body):
    with pytest.raises(NoCompletionError):
        read_completion(body, turn=0)


def test_history_is_json_whatever_the_model_wrote():
    calls = (
        ToolCall(id="a", name="f", arguments='{"x": 1}'),
        ToolCall(id="b", name="", arguments="{oops \ud800", problem="not JSON"),
        ToolCall(id="c", name="web search!", arguments="[1]"),
    )
    written = write_message(Message(role="assistant", content="Well \ud800", thinking="secret", tool_calls=calls))
    functions = [(call["id"], call["function"]) for call in written["tool_calls"]]
    assert functions == [
        ("a", {"name": "f", "arguments": '{"x": 1}'}),
        ("b", {"name": "unknown", "arguments": '{"unreadable": "{oops ?"}'}),
        ("c", {"name": "web_search_", "arguments": '{"unreadable": "[1]"}'}),
    ]
    assert written["content"] == "Well ?"
    assert "secret" not in json.dumps(written)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"url": "localhost:8000"}, "'localhost:8000' is not the address of an endpoint"),
        ({"attempts": 0}, "attempts: expected a value greater"),
        ({"time_out": 3}, "did you mean 'timeout'?"),
    ],
)
def test_settings_that_mean_nothing_are_refused_in_one_line(changed, words):
    with pytest.raises(ConfigError) as error:
        parse_settings(EndpointSettings, {"url": "http://a/v1", "model": "m"} | changed, source="--endpoint")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_address_may_be_that_of_the_method():
    assert EndpointSettings(url="http://a/v1/chat/completions", model="m").url == "http://a/v1"
    assert EndpointSettings(url="http://a/v1/", model="m").url == "http://a/v1"
