"""`AgentProgram`: commands and functions, what they are told, how they are scored, and what their failures cost."""

import asyncio
import json
import os
import re
import sys
import textwrap
import time
import types
from pathlib import Path

import pytest

from byte_render import ByteRender
from turnwise.agents import PolicyAgent
from turnwise.engines.scripted import ScriptedEngine
from turnwise.envs import check_env
from turnwise.envs.registry import EnvSettings, make_env
from turnwise.errors import ConfigError, EnvError
from turnwise.gateway.client import _tls
from turnwise.gateway.program import AgentProgram
from turnwise.rollout import Limits, run_episode, run_groups
from turnwise.types import Message, StopReason, Task

RENDER = ByteRender()
TASK = Task(id="t7", seed=3, data={"question": "Where?", "answers": ["Norway"]})
ASK = """
    import json, os, sys, urllib.request

    def post(url, body):
        headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return json.loads(opener.open(request).read())

    def ask(*texts):
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
        reply = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"model": "m", "messages": messages})
        return reply["choices"][0]["message"]["content"]

    task = json.loads(os.environ["TURNWISE_TASK"])
"""


def script(tmp_path, text, name="agent.py"):
    """A program in a file, run as `python agent.py`."""
    path = tmp_path / name
    path.write_text(textwrap.dedent(ASK) + textwrap.dedent(text))
    return [sys.executable, "-S", str(path)]


def play(program, reply=lambda session, prompt: "Norway", **limits):
    agent = PolicyAgent(engine=ScriptedEngine(reply, RENDER.encode_action), render=RENDER)
    return asyncio.run(run_episode(agent, program.spawn(), TASK, episode_seed=9, limits=Limits(**limits)))


def test_a_command_is_told_its_task_and_its_last_line_is_its_answer(tmp_path):
    command = script(
        tmp_path,
        """
        print("thinking about", task["id"])
        said = ask(task["data"]["question"])
        print("<answer>" + ask(task["data"]["question"], said, "sure?") + "</answer>")
        print(" ")
        """,
    )
    seen = []
    program = AgentProgram(
        command=command, rewards="exact_match", score=lambda outcome: seen.append(outcome) or {"extra": 0.5}
    )
    episode = play(program)
    assert (episode.failure, episode.stop, episode.rewards) == ("", StopReason.DONE, {"exact_match": 1.0, "extra": 0.5})
    assert episode.turns[1].rewards == episode.rewards, "paid to the last turn"
    assert episode.success
    (outcome,) = seen
    assert (outcome.exit_code, outcome.last_line, outcome.task) == (0, "<answer>Norway</answer>", TASK)
    assert outcome.output.startswith("thinking about t7\n")
    assert [message.content for message in outcome.messages] == ["Where?", "Norway", "sure?", "Norway"]
    assert RENDER.decode(episode.rows()[0].ids.tolist()) == "<says>Where?<asks>Norway<end><says>sure?<asks>Norway<end>"


def test_both_apis_and_the_session_are_in_the_environment(tmp_path):
    command = script(tmp_path, "ask('x'); print(json.dumps(dict(os.environ)))")
    seen = {}
    program = AgentProgram(
        command=command,
        score=lambda outcome: seen.update(json.loads(outcome.last_line)) or 0.0,
        variables={"MINE": "1"},
    )
    assert play(program).failure == ""
    key = seen["OPENAI_API_KEY"]
    assert seen["OPENAI_BASE_URL"] == f"{seen['ANTHROPIC_BASE_URL']}/v1" == f"{seen['TURNWISE_SESSION_URL']}/v1"
    assert seen["OPENAI_BASE_URL"].endswith(f"/sessions/{key}/v1")
    assert (seen["ANTHROPIC_API_KEY"], seen["MINE"], seen["TURNWISE_EPISODE_SEED"]) == (key, "1", "9")
    assert json.loads(seen["TURNWISE_TASK"]) == {"id": "t7", "seed": 3, "data": dict(TASK.data)}


def test_rewards_ends_and_failures_are_reported_over_http(tmp_path):
    url = 'os.environ["TURNWISE_SESSION_URL"]'
    pays = f"""
        ask("x")
        post({url} + "/reward", {{"reward": 0.25, "name": "found"}})
        post({url} + "/reward", {{"reward": 0.25, "name": "found"}})
        ask("x", "Norway", "y")
        post({url} + "/end", {{"reward": 1, "metrics": {{"success": 1, "hops": 2}}}})
        import time; time.sleep(60)
    """
    began = time.monotonic()
    episode = play(AgentProgram(command=script(tmp_path, pays)))
    assert time.monotonic() - began < 30, "it is not waited for after its end"
    assert [turn.rewards for turn in episode.turns] == [{"found": 0.5}, {"reward": 1.0}]
    assert (episode.stop, episode.success, episode.metrics["hops"]) == (StopReason.DONE, True, 2.0)
    fails = f"""
        ask("x")
        post({url} + "/fail", {{"reason": "the browser is gone"}})
    """
    episode = play(AgentProgram(command=script(tmp_path, fails), score=lambda outcome: 1.0))
    assert (episode.stop, episode.failure) == (
        StopReason.ENV_FAILED,
        "task 't7': step: ProgramFailed: the browser is gone",
    )
    assert episode.reward == 0


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("ask('x'); sys.exit(3)", "step: ProgramFailed: the program ended with exit code 3"),
        (
            "ask('x'); raise ValueError('odd')",
            "step: ProgramFailed: the program ended with exit code 1: ValueError: odd",
        ),
        ("ask('x'); os.kill(os.getpid(), 9)", "step: ProgramFailed: the program ended with signal SIGKILL"),
        ("print('hm')", "reset: ProgramFailed: it ended before its first request to the model; its output ends in: hm"),
        ("ask('x'); import time; time.sleep(60)", "step: ProgramFailed: it was still running after 1.5 seconds"),
    ],
)
def test_a_program_that_breaks_costs_its_episode_and_is_not_scored(tmp_path, text, failure):
    program = AgentProgram(command=script(tmp_path, text), score=lambda outcome: 1.0, seconds=1.5)
    episode = play(program)
    assert (episode.stop, episode.failure, episode.reward) == (StopReason.ENV_FAILED, f"task 't7': {failure}", 0.0)


def test_a_crash_can_be_the_agents_own_doing(tmp_path):
    command = script(tmp_path, "ask('x'); print('so far'); sys.exit(3)")
    codes = []
    program = AgentProgram(
        command=command, crash="score", score=lambda outcome: codes.append(outcome.exit_code) or -1.0
    )
    episode = play(program)
    assert (episode.stop, episode.reward, codes) == (StopReason.DONE, -1.0, [3])


def test_no_process_of_a_program_outlives_its_episode(tmp_path):
    pids = tmp_path / "pids"
    command = script(
        tmp_path,
        f"""
        import signal, subprocess, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
        ask("x")
        ask("x", "Norway", "y")
        """,
    )
    assert play(AgentProgram(command=command), max_turns=1).stop is StopReason.MAX_TURNS
    deadline = time.monotonic() + 5
    left = [int(pid) for pid in pids.read_text().split()]
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if Path(f"/proc/{pid}/stat").exists() and _state(pid) != "Z"]
        time.sleep(0.05)
    assert not left


def _state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


def test_a_command_that_is_not_there_is_one_line():
    failure = play(AgentProgram(command=["no-such-agent"])).failure
    assert re.search(r"cannot run 'no-such-agent' \(No such file or directory\): check the program", failure)


def test_a_function_may_be_plain_and_may_block():
    def agent(task, client):
        reply = asyncio.run_coroutine_threadsafe(client.chat(messages=[{"role": "user", "content": "x"}]), other)
        return reply.result(10)["choices"][0]["message"]["content"]

    import threading

    other = asyncio.new_event_loop()
    threading.Thread(target=other.run_forever, daemon=True).start()
    episode = play(AgentProgram(function=agent, score=lambda outcome: float(outcome.result == "Norway")))
    assert (episode.failure, episode.reward) == ("", 1.0)
    other.call_soon_threadsafe(other.stop)


def test_a_function_that_raises_failed_and_one_that_hangs_is_left_behind():
    async def raises(task, client):
        await client.chat(messages=[{"role": "user", "content": "x"}])
        raise KeyError("gone")

    async def hangs(task, client):
        await client.chat(messages=[{"role": "user", "content": "x"}])
        time.sleep(3)

    failure = play(AgentProgram(function=raises)).failure
    assert failure.startswith("task 't7': step: ProgramFailed: the program raised KeyError: 'gone'")
    began = time.monotonic()
    assert "still running after 0.3 seconds" in play(AgentProgram(function=hangs, seconds=0.3)).failure
    assert time.monotonic() - began < 2.5


async def _asks(task, client):
    reply = await client.chat(messages=[{"role": "user", "content": "x"}])
    client.reward(0.5, "early")
    return reply["choices"][0]["message"]["content"]


def test_a_function_pays_by_callback_and_a_scorer_may_be_async():
    async def score(outcome):
        return {"end": 2.0}

    assert play(AgentProgram(function=_asks, score=score)).rewards == {"early": 0.5, "end": 2.0}


def test_a_scorer_that_raises_costs_its_episode_and_so_does_a_reward_that_is_no_number():
    def broken(outcome):
        raise ConnectionError("judge")

    episode = play(AgentProgram(function=_asks, score=broken))
    assert episode.failure.startswith("task 't7': step: ProgramFailed: score raised ConnectionError: judge (")
    episode = play(AgentProgram(function=_asks, score=lambda outcome: float("nan")))
    assert episode.stop is StopReason.ENV_FAILED
    assert "RewardError: reward 'score' is nan" in episode.failure


def test_an_unreadable_call_reaches_the_program_as_text():
    async def agent(task, client):
        reply = await client.chat(messages=[{"role": "user", "content": "x"}])
        message = reply["choices"][0]["message"]
        assert "tool_calls" not in message
        assert message["content"] == "Hm.\n<tool_call>\n{broken\n</tool_call>"
        # And it may be sent back as it came.
        await client.chat(messages=[{"role": "user", "content": "x"}, message, {"role": "user", "content": "again"}])

    class Parsing(ByteRender):
        def parse(self, action_ids):
            from turnwise.render import parse_text

            return parse_text(self.decode([i for i in action_ids if i < 256]))

    engine = ScriptedEngine(lambda *_: "Hm. <tool_call>{broken</tool_call>", RENDER.encode_action)
    policy = PolicyAgent(engine=engine, render=Parsing())
    episode = asyncio.run(run_episode(policy, AgentProgram(function=agent).spawn(), TASK, episode_seed=0))
    assert (episode.failure, episode.metrics["unreadable_calls"], episode.metrics["breaks"]) == ("", 2, 0)


def test_no_more_programs_run_at_once_than_allowed():
    running, most = set(), []

    async def agent(task, client):
        running.add(task.id)
        most.append(len(running))
        await client.chat(messages=[{"role": "user", "content": "x"}])
        await asyncio.sleep(0.02)
        running.discard(task.id)

    program = AgentProgram(function=agent, concurrency=3)
    policy = PolicyAgent(engine=ScriptedEngine(lambda *_: "a", RENDER.encode_action), render=RENDER)
    tasks = [Task(id=str(number)) for number in range(12)]
    groups = asyncio.run(run_groups(policy, program, tasks, group_size=1, seed=0))
    assert len(groups) == 12
    assert max(most) <= 3


def test_an_expert_writes_demonstrations_in_the_programs_own_conversation():
    def expert(task, messages):
        return Message(role="assistant", content=f"{task.id}:{len(messages)}")

    from turnwise.agents import DemonstratingExpert, ExpertAgent

    async def agent(task, client):
        first = await client.chat(messages=[{"role": "user", "content": "x"}])
        said = first["choices"][0]["message"]
        await client.chat(messages=[{"role": "user", "content": "x"}, said, {"role": "user", "content": "y"}])

    program = AgentProgram(function=agent, expert=expert)
    assert program.has_expert
    assert not AgentProgram(function=agent).has_expert
    demonstrator = DemonstratingExpert(render=RENDER, context_limit=1000)
    episode = asyncio.run(run_episode(demonstrator, program.spawn(), TASK, episode_seed=0))
    assert RENDER.decode(episode.rows()[0].ids.tolist()) == "<says>x<asks>t7:1<end><says>y<asks>t7:3<end>"
    by_messages = asyncio.run(run_episode(ExpertAgent(), program.spawn(), TASK, episode_seed=0))
    assert [message.content for message in by_messages.messages] == ["x", "t7:1", "y", "t7:3"]
    with pytest.raises(EnvError, match="pass expert="):
        AgentProgram(function=agent).expert()


def test_a_recipe_names_everything(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from turnwise import Task\n"
        "async def run(task, client): return 'x'\n"
        "def score(outcome): return 1.0\n"
        "def tasks(split): return [Task(id=split)]\n"
    )
    args = {"function": f"{file}:run", "score": f"{file}:score", "tasks": f"{file}:tasks", "seconds": 5.0}
    assert make_env(EnvSettings(name="program", args=args)).tasks("test")[0].id == "test"
    lines = tmp_path / "tasks.jsonl"
    lines.write_text('{"question": "a"}\n\n{"question": "b"}\n')
    made = make_env(EnvSettings(name="program", args={"command": ["true"], "tasks": str(lines)}))
    assert [task.data["question"] for task in made.tasks("train")] == ["a", "b"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "give a command or a function"),
        ({"command": ["a"], "function": "m:f"}, "give a command or a function"),
        ({"function": "nowhere:run"}, "env.args.function: there is no module 'nowhere'"),
        ({"command": ["a"], "tasks": "none.jsonl"}, "cannot read none.jsonl"),
        ({"command": ["a"], "crash": "ignore"}, "crash"),
        ({"command": "a b"}, "command"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_one_line(args, message):
    with pytest.raises((ConfigError, EnvError), match=message):
        make_env(EnvSettings(name="program", args=args))


def test_the_environment_of_this_process_is_as_it_was():
    assert "OPENAI_BASE_URL" not in os.environ


def test_a_forked_process_has_a_gateway_of_its_own():
    """Demonstrations may be played in forked processes, which inherit the gateway's object but not its thread."""
    assert play(AgentProgram(function=_asks)).failure == ""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, repr(play(AgentProgram(function=_over_http, seconds=10)).failure).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as said:
        assert said.read() == "''"


@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_sdk_clients_are_closed_in_the_loop_that_used_them(monkeypatch, ending):
    """Left to the garbage collector, an SDK's client closes its connections in another loop, with a stack trace."""
    loops, https = [], []

    class SDK:
        def __init__(self, **options):
            assert options["api_key"]
            https.append(options["http_client"])
            loops.append(asyncio.get_running_loop())

        async def close(self):
            loops.append(asyncio.get_running_loop())

    sdks = types.SimpleNamespace(AsyncOpenAI=SDK, AsyncAnthropic=SDK, DefaultAsyncHttpxClient=lambda **options: options)
    monkeypatch.setitem(sys.modules, "openai", sdks)
    monkeypatch.setitem(sys.modules, "anthropic", sdks)

    async def agent(task, client):
        client.openai()
        client.anthropic(http_client="mine")
        if ending == "raises":
            raise KeyError("mine")
        await client.chat(messages=[{"role": "user", "content": "x"}])

    failure = play(AgentProgram(function=agent)).failure
    assert ("KeyError" in failure) == (ending == "raises")
    assert len(loops) == 4
    assert len(set(loops)) == 1
    ours, mine = https
    assert mine == "mine", "what the agent asks for is passed on"
    assert ours["verify"] is _tls(), "the certificates are read once for all episodes"
    assert not ours["trust_env"], "no proxy stands between a program and its gateway"


async def _over_http(task, client):
    import httpx2

    async with httpx2.AsyncClient(trust_env=False, timeout=10) as http:
        body = {"messages": [{"role": "user", "content": "x"}]}
        (await http.post(f"{client.openai_base_url}/chat/completions", json=body)).raise_for_status()


def test_a_program_keeps_the_contract_of_environments():
    async def agent(task, client):
        asked = [{"role": "user", "content": task.data["question"]}]
        reply = await client.chat(messages=asked)
        again = [*asked, {"role": "assistant", "content": reply["choices"][0]["message"]["content"]}, *asked]
        return (await client.chat(messages=again))["choices"][0]["message"]["content"]

    program = AgentProgram(function=agent, tasks=[TASK], rewards="exact_match")
    assert asyncio.run(check_env(program)) == []
