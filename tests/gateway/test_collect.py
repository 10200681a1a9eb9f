"""`turnwise gateway`: clients begin sessions by naming them; each is stored when it ends."""

import asyncio
import os
import signal

import httpx2
import pytest

from byte_render import ByteRender
from turnwise.agents import PolicyAgent
from turnwise.cli.main import main
from turnwise.engines.scripted import ScriptedEngine
from turnwise.errors import ConfigError, RenderError, RunError
from turnwise.gateway.collect import Collector, describe, serve
from turnwise.gateway.serving import find_target, run_gateway
from turnwise.rollout import Limits
from turnwise.runs import read_trajectories
from turnwise.types import StopReason

RENDER = ByteRender()


def ask(http, url, key, *texts):
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    headers = {"Authorization": f"Bearer {key}"}
    return http.post(f"{url}/v1/chat/completions", json={"messages": messages}, headers=headers)


def collect(tmp_path, clients, *, idle=60.0, render=RENDER, follow=None):
    """Serves a scripted engine to `clients(http, url)` and returns the lines shown."""
    lines = []

    async def run():
        engine = ScriptedEngine(lambda session, prompt: f"to {session}", RENDER.encode_action)
        policy = PolicyAgent(engine=engine, render=render)
        collector = Collector(policy=policy, limits=Limits(max_turns=99), folder=tmp_path, idle=idle, show=lines.append)
        ready = asyncio.get_running_loop().create_future()
        serving = asyncio.ensure_future(
            serve(collector, host="127.0.0.1", port=0, ready=ready.set_result, follow=follow)
        )
        async with httpx2.AsyncClient(trust_env=False, timeout=20) as http:
            await clients(http, await ready)
        os.kill(os.getpid(), signal.SIGINT)
        await serving

    asyncio.run(run())
    return lines


def test_each_key_is_a_session_and_each_session_is_stored(tmp_path):
    async def clients(http, url):
        said = await asyncio.gather(*(ask(http, url, key, "x") for key in "ab"))
        assert [one.json()["choices"][0]["message"]["content"] for one in said] == ["to a", "to b"]
        await ask(http, url, "a", "x", "to a", "y")
        ended = await http.post(f"{url}/sessions/a/end", json={"reward": 2.5})
        assert ended.status_code == 200
        await ask(http, url, "b", "other")

    lines = collect(tmp_path, clients)
    assert lines == [
        "session a: 2 turns in 1 rows, 10 tokens sampled, 0 breaks, reward 2.5",
        "session b: 2 turns in 2 rows, 10 tokens sampled, 1 breaks (branched 1), reward 0",
    ]
    first, second = (read_trajectories(path) for path in sorted(tmp_path.iterdir()))
    (group,) = first
    (played,) = group.trajectories
    assert (played.task.id, played.reward, played.stop) == ("a", 2.5, StopReason.DONE)
    assert RENDER.decode(played.rows()[0].ids.tolist()) == "<says>x<asks>to a<end><says>y<asks>to a<end>"
    assert second[0].task.id == "b", "what was open when the server stopped is stored too"


def test_stored_sessions_are_listed_and_shown(tmp_path, capsys):
    async def clients(http, url):
        for key in ("first", "second"):
            await ask(http, url, key, f"I am {key}")
            await http.post(f"{url}/sessions/{key}/end", json={"reward": 0.5})

    collect(tmp_path, clients)
    assert main(["show", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines() if "+0.5" in line] == ["session-0/0/0", "session-1/0/0"]
    assert main(["show", str(tmp_path), "session-1/0/0"]) == 0
    shown = capsys.readouterr().out
    assert "I am second" in shown
    assert "to second" in shown
    assert main(["show", str(tmp_path), "session-2/0/0"]) == 2
    assert "the last ones of this run are: session-000000, session-000001" in capsys.readouterr().err


def test_silence_ends_a_session(tmp_path):
    async def clients(http, url):
        await ask(http, url, "a", "x")
        await asyncio.sleep(0.4)
        assert (await http.get(f"{url}/health")).json()["sessions"] == 0
        await ask(http, url, "a", "x")  # a new one under the same name

    assert len(collect(tmp_path, clients, idle=0.2)) == 2


def test_a_conversation_that_cannot_be_written_is_the_clients_error(tmp_path):
    class Picky(ByteRender):
        def start(self, messages, tools):
            if messages[0].content == "bad":
                raise RenderError("the chat template cannot write that")
            return super().start(messages, tools)

    async def clients(http, url):
        refused = await ask(http, url, "a", "bad")
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
        assert (await ask(http, url, "b", "good")).status_code == 200

    assert len(collect(tmp_path, clients, render=Picky())) == 1


def test_a_follower_that_breaks_ends_the_server_and_loses_nothing(tmp_path):
    async def follow(gateway):
        await asyncio.sleep(0.5)
        raise RunError("the run is gone")

    async def clients(http, url):
        await ask(http, url, "a", "x")
        await asyncio.sleep(0.8)

    with pytest.raises(RunError, match="the run is gone"):
        collect(tmp_path, clients, follow=follow)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        ("encyclopedia-grpo", {}, "the built-in model is made by training; name a run"),
        ("some/model", {"follow": True}, "--follow: some/model is not a run"),
        ("nothing.yaml", {}, "nothing.yaml"),
    ],
)
def test_what_cannot_be_served_is_one_line(what, options, message):
    defaults = {"host": "127.0.0.1", "port": 0, "save": None, "idle": 1.0, "follow": False, "show": print}
    with pytest.raises((ConfigError, RunError), match=message):
        run_gateway(what, [], **{**defaults, **options})


def test_a_folder_that_has_sessions_is_not_written_to(tmp_path):
    (tmp_path / "session-000000.parquet").touch()
    assert main(["gateway", "some/model", "--save", str(tmp_path)]) == 2


def test_a_model_by_name_has_the_default_settings_and_overrides():
    config = find_target("some/model", ["evaluate.temperature=0.5"])
    assert (config.model.name, config.evaluate.temperature) == ("some/model", 0.5)


def test_a_session_without_a_turn_is_described_as_such():
    from turnwise.types import Task, Trajectory

    failed = Trajectory(task=Task(id="s"), turns=(), stop=StopReason.ENV_FAILED, failure="step: gone")
    assert describe(failed) == "session s: 0 turns in 0 rows, 0 tokens sampled, 0 breaks, reward 0; failed: step: gone"
