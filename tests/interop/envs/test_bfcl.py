"""BFCL multi-turn: the ground truth passes the benchmark's own checker; nothing but calls and literals is evaluated."""

import asyncio
import json

import pytest

from turnwise.envs import EnvSettings, check_env, make_env
from turnwise.envs.adapters.bfcl import Bfcl
from turnwise.errors import EnvError
from turnwise.types import Message, ToolCall

pytest.importorskip("bfcl_eval")

from turnwise.envs.adapters.worlds.bfcl import CATEGORIES, BfclServer, write_call

FILES = {"classes": ["GorillaFileSystem"]}


@pytest.fixture(scope="module")
def env():
    return Bfcl(**FILES)


def call(name, arguments):
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Message(role="assistant", content="", tool_calls=(ToolCall(id="c", name=name, arguments=text),))


def test_it_keeps_the_contract_of_an_environment():
    env = make_env(EnvSettings(name="bfcl", args=FILES))
    assert asyncio.run(check_env(env, episodes=1)) == []


def test_the_ground_truth_passes_every_task(play):
    env = Bfcl(categories=CATEGORIES)
    assert (len(env.tasks("train")), len(env.tasks("test"))) == (680, 120)
    failed = [
        task.id
        for split in ("train", "test")
        for task in env.tasks(split)
        if play(env, task)[1][-1].metrics["success"] != 1.0
    ]
    assert failed == []


def test_a_scenario_is_in_one_split_alone():
    env = Bfcl(categories=CATEGORIES)
    train, test = ({task.id.rpartition("_")[2] for task in env.tasks(split)} for split in ("train", "test"))
    assert train & test == set()


def test_a_dialogue_by_hand(env):
    async def play():
        (task,) = (one for one in env.tasks("train") if one.id == "multi_turn_base_1")
        episode = env.spawn()
        (asked,) = await episode.reset(task, 0)
        assert asked.content.startswith("I am alex.")
        assert {spec.name for spec in episode.tools} >= {"cd", "ls", "mv", "grep", "tail"}
        step = await episode.step(call("ls", {"a": True}))
        assert json.loads(step.messages[0].content) == {"current_directory_content": ["workspace"]}
        step = await episode.step(Message(role="assistant", content="There is one folder."))
        assert [message.role for message in step.messages] == ["user"]
        assert step.messages[0].content.startswith("Go to workspace directory")
        for _ in range(3):
            step = await episode.step(Message(role="assistant", content="No."))
        assert (step.done, step.rewards, step.metrics["success"]) == (True, {"checker": 0.0}, 0.0)
        await episode.close()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("no_such", {}, "Error: there is no function 'no_such'"),
        ("ls", "{", "Error: the arguments are not JSON"),
        ("ls", [1], "Error: the arguments are not a JSON object"),
        ("ls", {"a=__import__('os').getcwd(),b": 1}, "Error: ls has no argument"),
        ("cd", {"folder": "__import__('os').getcwd()"}, '{"error": "cd: '),
        ("__import__", {"name": "os"}, "Error: there is no function"),
    ],
)
def test_a_call_is_never_code(env, name, arguments, answer):
    async def play():
        episode = env.spawn()
        await episode.reset(env.tasks("train")[0], 0)
        step = await episode.step(call(name, arguments))
        await episode.close()
        return step

    step = asyncio.run(play())
    assert step.messages[0].content.startswith(answer)


def test_too_many_steps_in_one_request_end_the_episode():
    async def play():
        env = Bfcl(**FILES, max_steps=3)
        episode = env.spawn()
        await episode.reset(env.tasks("train")[0], 0)
        return [await episode.step(call("pwd", {})) for _ in range(3)]

    steps = asyncio.run(play())
    assert [step.done for step in steps] == [False, False, True]
    assert steps[-1].metrics["success"] == 0.0


@pytest.mark.parametrize("requests", [0, 2, 4])
def test_requests_before_the_first_that_fails_are_paid_in_part(requests):
    async def play():
        env = Bfcl(**FILES, partial=0.4)
        episode = env.spawn()
        (task,) = (one for one in env.tasks("train") if one.id == "multi_turn_base_1")
        await episode.reset(task, 0)
        while True:
            done = episode._dialogue.turn
            step = await episode.step(episode.expert() if done < requests else Message(role="assistant", content="No."))
            if step.done:
                await episode.close()
                return step

    step = asyncio.run(play())
    passed = float(requests == 4)
    assert step.metrics["passed_requests"] == requests / 4
    assert step.metrics["success"] == step.rewards["checker"] == passed
    assert step.rewards["requests"] == pytest.approx(0.0 if passed else 0.1 * requests)


def test_a_request_that_takes_too_many_steps_costs_itself_and_those_after_it():
    async def play():
        env = Bfcl(**FILES, max_steps=4, partial=1.0)
        episode = env.spawn()
        (task,) = (one for one in env.tasks("train") if one.id == "multi_turn_base_1")
        await episode.reset(task, 0)
        while episode._dialogue.turn < 1:
            await episode.step(episode.expert())
        return [await episode.step(call("pwd", {})) for _ in range(4)][-1]

    step = asyncio.run(play())
    assert (step.done, step.rewards) == (True, {"checker": 0.0, "requests": 0.25})
    assert [message.role for message in step.messages] == ["tool"]


def test_a_call_that_takes_too_long_is_told_and_leaves_the_rest_as_it_was():
    async def play():
        env = Bfcl(classes=["MathAPI", "GorillaFileSystem"], seconds=3.0)
        episode = env.spawn()
        (task,) = (one for split in ("train", "test") for one in env.tasks(split) if one.id == "multi_turn_base_15")
        await episode.reset(task, 0)
        await episode.step(call("mkdir", {"dir_name": "kept"}))
        long = await episode.step(call("logarithm", {"value": 3.0, "base": 2.0, "precision": 10**9}))
        listed = await episode.step(call("ls", {}))
        await episode.close()
        return long.messages[0].content, listed.messages[0].content, listed.metrics["tool_errors"]

    long, listed, errors = asyncio.run(play())
    assert long == "Error during execution: it took too long"
    assert "kept" in listed
    assert errors == 1.0


def test_an_episode_outlives_its_process(env):
    async def play():
        episode = env.spawn()
        (task,) = (one for one in env.tasks("train") if one.id == "multi_turn_base_1")
        await episode.reset(task, 0)
        await episode.step(call("cd", {"folder": "workspace"}))
        env._children.close()
        step = await episode.step(call("pwd", {}))
        await episode.close()
        return step.messages[0].content

    assert json.loads(asyncio.run(play())) == {"current_working_directory": "/alex/workspace"}


def test_a_function_that_comes_late_is_told_by_the_user():
    served = BfclServer(categories=["miss_func"])
    told = served.describe("multi_turn_miss_func_0")
    assert "sort" not in {tool["name"] for tool in told["tools"]}
    assert "sort" in {tool["name"] for tool in told["all_tools"]}
    assert told["turns"][3].startswith('[{"name": "sort"')
    assert told["turns"][3].endswith("What about now?")


def test_schemas_are_json_schema(env):
    kinds = set()

    def walk(schema):
        if isinstance(schema, dict):
            if isinstance(schema.get("type"), str):
                kinds.add(schema["type"])
            for value in schema.values():
                walk(value)

    for spec in Bfcl().tools:
        walk(spec.parameters)
    assert kinds <= {"object", "string", "number", "integer", "array", "boolean"}


def test_wrong_settings_are_one_line():
    with pytest.raises(EnvError, match="there is no class 'FileSystem'; there are: GorillaFileSystem"):
        Bfcl(classes=["FileSystem"])
    with pytest.raises(EnvError, match="there is no category 'hard'"):
        Bfcl(categories=["hard"])
    with pytest.raises(EnvError, match="partial: 2 is not between 0 and 1"):
        Bfcl(partial=2)


def test_what_is_written_as_a_call_are_names_and_literals():
    assert write_call("mv", {"source": "a'b", "n": [1, None, True]}) == 'mv(source="a\'b", n=[1, None, True])'
    with pytest.raises(ValueError, match="is no name"):
        write_call("mv", {"a(b)": 1})
