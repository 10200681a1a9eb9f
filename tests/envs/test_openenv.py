"""`OpenEnv` and `OpenEnvServer` without the packages openenv and websockets; tests/interop has the real ones."""

import asyncio
import json
from functools import partial

import pytest

from turnwise import Message, Task, ToolCall
from turnwise.agents import ScriptedAgent
from turnwise.envs.adapters.openenv import OpenEnv
from turnwise.envs.adapters.openenv.text import UnreadableError, make_reader, show_observation
from turnwise.envs.adapters.openenv.wire import LostServer, Observed, RefusedAction, read_observed
from turnwise.envs.encyclopedia.env import Encyclopedia
from turnwise.errors import EnvError
from turnwise.rollout import run_episode
from turnwise.serving.openenv import OpenEnvServer
from turnwise.types import StopReason

NUMBER = {
    "properties": {"guess": {"type": "integer"}, "why": {"type": "string"}, "metadata": {"type": "object"}},
    "required": ["guess"],
    "type": "object",
}


class Guessing:
    """A server of one number, in this process."""

    def __init__(self):
        self.seen, self.open, self.reply = [], 0, None

    async def reset(self, arguments):
        self.seen.append(("reset", dict(arguments)))
        self.open += 1
        return Observed(observation={"text": "Guess."}, reward=0.0, done=False, metadata={})

    async def step(self, action):
        self.seen.append(("step", dict(action)))
        if self.reply is not None:
            raise self.reply
        right = action["guess"] == 7
        return Observed(observation={"text": "no"}, reward=float(right), done=right, metadata={})

    async def state(self):
        return {}

    async def close(self):
        self.open -= 1


@pytest.fixture
def server(monkeypatch):
    server = Guessing()
    monkeypatch.setattr("turnwise.envs.adapters.openenv.env.fetch_schema", lambda *_: {"action": NUMBER})
    monkeypatch.setattr(OpenEnv, "_connect", lambda self: server)
    return server


def play(env, *replies, task=None):
    agent = ScriptedAgent(replies=replies)
    return asyncio.run(run_episode(agent, env.spawn(), task or env.tasks("train")[0], episode_seed=0))


def test_text_is_the_field_that_the_schema_asks_for_in_its_type(server):
    episode = play(OpenEnv(url="http://x", prompt="Be brief."), "3", "seven", "7")
    assert (episode.stop, episode.reward, episode.metrics["success"]) == (StopReason.DONE, 1.0, 1.0)
    assert server.seen == [("reset", {"seed": 0}), ("step", {"guess": 3}), ("step", {"guess": 7})]
    assert [message.content for message in episode.messages] == [
        "Be brief.",
        "Guess.",
        "3",
        "no",
        "seven",
        "That is no valid action: 'seven' is no integer, which guess is",
        "7",
    ]
    assert server.open == 0


def test_the_action_is_found_by_a_pattern_and_has_fixed_fields(server):
    env = OpenEnv(url="http://x", pattern="<answer>(.*?)</answer>", fixed={"why": "because"})
    play(env, "no tags", "<answer>1</answer> or <answer> 7 </answer>")
    assert server.seen[1:] == [("step", {"why": "because", "guess": 7})]


def test_the_action_is_a_tool_with_the_servers_schema(server):
    env = OpenEnv(url="http://x", action="tool")
    (spec,) = env.tools
    assert (spec.name, set(spec.parameters["properties"])) == ("act", {"guess", "why"})

    async def episode():
        live = env.spawn()
        await live.reset(env.tasks("test")[0], 0)
        calls = [ToolCall(id="a", name="act", arguments='{"guess": 7, "why": "x"}')]
        idle = await live.step(Message(role="assistant", content="7"))
        wrong = await live.step(Message(role="assistant", content="", tool_calls=(*calls, *calls)))
        right = await live.step(Message(role="assistant", content="", tool_calls=tuple(calls)))
        return idle, wrong, right

    idle, wrong, right = asyncio.run(episode())
    assert idle.messages[0].role == "user"
    assert [message.role for message in wrong.messages] == ["tool", "tool"]
    assert (right.done, right.messages[0].tool_call_id) == (True, "a")
    assert server.seen[0] == ("reset", {"seed": 1_000_000}), "a test's seed is in no training task"


def test_a_tasks_data_may_have_arguments_of_reset(server):
    task = Task(id="t", seed=5, data={"reset": {"level": 3}})
    play(OpenEnv(url="http://x"), "7", task=task)
    assert server.seen[0] == ("reset", {"seed": 5, "level": 3})


def test_an_action_that_the_server_refuses_is_read_and_a_lost_server_fails_the_episode(server):
    env = OpenEnv(url="http://x", max_turns=1)
    server.reply = RefusedAction("guess: must be positive")
    episode = play(env, "3")
    assert (episode.stop, episode.metrics["invalid_action"]) == (StopReason.TIME_UP, 1.0)
    server.reply = LostServer("OpenEnv server http://x is lost: gone")
    episode = play(env, "3")
    assert (episode.stop, episode.failure) == (
        StopReason.ENV_FAILED,
        "task 'train-0': step: OpenEnv server http://x is lost: gone",
    )
    assert server.open == 0


@pytest.mark.parametrize("data", [{}, {"observation": "text"}, {"observation": {}, "reward": "much"}, []])
def test_an_answer_that_is_none_is_a_lost_server(data):
    with pytest.raises(LostServer):
        read_observed("http://x", data)


def test_an_observation_is_its_one_text_or_a_template_or_json():
    one = {"text": "hello", "metadata": {}, "reward": None}
    assert show_observation(one, None) == "hello"
    two = {"board": [[0, 1]], "info": {"score": 2}, "absent": None}
    assert show_observation(two, None) == '{"board": [[0, 1]], "info": {"score": 2}}'
    assert show_observation(two, "{board}: {info.score} {nothing}") == "[[0, 1]]: 2 "


def test_an_action_without_one_field_is_json():
    schema = {"properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}, "required": ["x", "y"]}
    reader = make_reader(schema, field=None, pattern=None, fixed={})
    assert reader.read('{"x": 1, "y": 2}') == {"x": 1, "y": 2}
    with pytest.raises(UnreadableError, match="one JSON object"):
        reader.read("1, 2")
    with pytest.raises(EnvError, match="no field 'z'; they have: x, y"):
        make_reader(schema, field="z", pattern=None, fixed={})
    with pytest.raises(EnvError, match="no regular expression"):
        make_reader(schema, field="x", pattern="(", fixed={})


async def request(app, method, path, body=None):
    """One HTTP request to an ASGI application."""
    sent, raw = [], b"" if body is None else json.dumps(body).encode()

    async def receive():
        return {"type": "http.request", "body": raw}

    async def send(message):
        sent.append(message)

    path, _, query = path.partition("?")
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": []}
    await app(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent))


async def converse(app, *messages):
    """The replies over one WebSocket to an ASGI application."""
    waiting = [{"type": "websocket.connect"}, *({"type": "websocket.receive", "text": text} for text in messages)]
    waiting.append({"type": "websocket.disconnect", "code": 1000})
    replies = []

    async def receive():
        return waiting.pop(0)

    async def send(message):
        replies.append(message)

    await app({"type": "websocket", "path": "/ws", "query_string": b"", "headers": []}, receive, send)
    return [json.loads(reply["text"]) for reply in replies if reply["type"] == "websocket.send"]


def test_an_environment_is_served_over_a_socket():
    env = Encyclopedia()
    task = env.tasks("train")[5]
    told = [
        json.dumps({"type": "step", "data": {"message": "early"}}),
        json.dumps({"type": "reset", "data": {"seed": 5, "other": 1}}),
        json.dumps({"type": "step", "data": {"tool": "search", "arguments": {"query": "Lumen"}}}),
        json.dumps({"type": "step", "data": {"tool": "search", "message": "both"}}),
        json.dumps({"type": "state"}),
        json.dumps({"type": "step", "data": {"message": f"<answer>{task.data['answers'][0]}</answer>"}}),
        "{",
        json.dumps({"type": "dance"}),
    ]
    early, opening, found, both, state, end, broken, dance = asyncio.run(converse(OpenEnvServer(env).app, *told))
    assert early["data"] == {"message": "no episode has begun: reset first", "code": "EXECUTION_ERROR"}
    assert opening["data"]["observation"]["text"].endswith(task.data["question"])
    assert (opening["data"]["reward"], opening["data"]["done"]) == (None, False)
    assert opening["data"]["metadata"]["tools"][0]["function"]["name"] == "search"
    assert found["data"]["observation"]["messages"][0]["role"] == "tool"
    assert both["data"]["code"] == "VALIDATION_ERROR"
    assert (state["type"], state["data"]["step_count"], state["data"]["task"]) == ("state", 1, task.id)
    assert (end["data"]["done"], end["data"]["reward"]) == (True, end["data"]["metadata"]["reward"])
    assert end["data"]["metadata"]["metrics"]["success"] == 1.0
    assert (broken["data"]["code"], dance["data"]["code"]) == ("INVALID_JSON", "UNKNOWN_TYPE")


def test_episodes_over_http_are_kept_apart_by_their_id():
    ask = partial(request, OpenEnvServer(Encyclopedia()).app)

    async def play():
        for name, seed in (("a", 0), ("b", 1)):
            assert (await ask("POST", "/reset", {"episode_id": name, "seed": seed}))[0] == 200
        action = {"tool": "search", "arguments": {"query": "x"}}
        status, _ = await ask("POST", "/step", {"episode_id": "a", "action": action})
        states = [(await ask("GET", f"/state?episode_id={name}"))[1]["step_count"] for name in "ab"]
        lost = await ask("POST", "/step", {"episode_id": "c", "action": {"message": "x"}})
        bad = await ask("POST", "/step", {"episode_id": "a", "action": {"nothing": 1}})
        return status, states, lost, bad, await ask("GET", "/health"), await ask("GET", "/schema")

    status, states, lost, bad, health, schema = asyncio.run(play())
    assert (status, states) == (200, [1, 0])
    assert lost == (409, {"detail": "no episode has begun: reset first"})
    assert (bad[0], bad[1]["detail"][0]["loc"]) == (422, ["nothing"])
    assert health == (200, {"status": "healthy"})
    assert set(schema[1]) == {"action", "observation", "state"}
