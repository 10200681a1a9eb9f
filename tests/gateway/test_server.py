"""The server over HTTP: sessions by path and by key, errors in the shape of each API, retries, pauses, disconnects."""

import asyncio
import contextlib
import json
import socket
import time

import httpx2
import pytest

from byte_render import ByteRender
from turnwise.agents import PolicyAgent
from turnwise.engines.scripted import ScriptedEngine
from turnwise.errors import RunError
from turnwise.gateway.env import Score, SessionEnv
from turnwise.gateway.server import Gateway
from turnwise.rollout import Limits, run_episode
from turnwise.types import Task
from wire_agents import read_events

RENDER = ByteRender()


class OneSession(SessionEnv):
    """The episode of a session that the test itself sends requests to."""

    def __init__(self, gateway, opened):
        super().__init__(seconds=20)
        self.gateway, self.opened = gateway, opened

    async def begin(self, task, episode_seed):
        self.session = self.gateway.open()
        self.opened.set_result(self.session.name)
        return self.session

    async def score(self, ended, conversation):
        return Score()

    async def stop(self):
        self.gateway.forget(self.session)


@contextlib.asynccontextmanager
async def episode(reply=lambda session, prompt: "hi", **limits):
    """A gateway with one session: yields the client, its URL and the episode's task."""
    with Gateway().running() as gateway:
        opened = asyncio.get_running_loop().create_future()
        agent = PolicyAgent(engine=ScriptedEngine(reply, RENDER.encode_action, context_limit=200), render=RENDER)
        env = OneSession(gateway, opened)
        playing = asyncio.ensure_future(
            run_episode(agent, env, Task(id="t"), episode_seed=0, limits=Limits(max_turns=50, **limits))
        )
        async with httpx2.AsyncClient(trust_env=False, timeout=20) as http:
            yield gateway, http, await opened, playing
        playing.cancel()


def body(*texts, **fields):
    messages = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]
    return {"model": "m", "messages": messages, **fields}


def test_a_session_is_named_by_path_or_by_either_kind_of_key():
    async def main():
        async with episode() as (gateway, http, name, playing):
            at = gateway.url
            by_path = await http.post(f"{at}/sessions/{name}/v1/chat/completions", json=body("a"))
            bearer = {"Authorization": f"Bearer {name}"}
            by_key = await http.post(f"{at}/v1/chat/completions", json=body("b"), headers=bearer)
            x_key = {"x-api-key": name}
            by_x_key = await http.post(f"{at}/v1/messages", json=body("c", max_tokens=9), headers=x_key)
            without_version = await http.post(f"{at}/sessions/{name}/chat/completions", json=body("d"))
            codes = [one.status_code for one in (by_path, by_key, by_x_key, without_version)]
            assert codes == [200] * 4
            assert by_path.json()["choices"][0]["message"]["content"] == "hi"
            assert by_x_key.json()["content"] == [{"type": "text", "text": "hi"}]
            models = await http.get(f"{at}/v1/models")
            assert models.json()["data"][0]["object"] == "model"
            shown = await http.get(f"{at}/sessions/{name}")
            assert shown.json() == {"session": name, "requests": 4}
            await http.post(f"{at}/sessions/{name}/end", json={})
            played = await playing
            assert len(played.turns) == 4
            over = await http.post(f"{at}/sessions/{name}/v1/chat/completions", json=body("a"))
            assert (over.status_code, over.json()["error"]["code"]) == (401, "invalid_api_key")
            assert name in over.json()["error"]["message"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sent", "status", "param"),
    [
        (b"{", 400, "the request"),
        (b"[]", 400, "the request"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages.0.role"),
        (body("x", n=0), 400, "n"),
        (body("x", max_tokens=0), 400, "max_tokens"),
        (body("x", logit_bias={"5": 1}), 400, "logit_bias"),
        (body("x", frequency_penalty=0.5), 400, "frequency_penalty"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            400,
            "messages.0.content",
        ),
    ],
)
def test_a_bad_request_is_refused_in_openais_shape_and_is_no_turn(sent, status, param):
    async def main():
        async with episode() as (gateway, http, name, playing):
            url = f"{gateway.url}/sessions/{name}/v1/chat/completions"
            content = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
            answer = await http.post(url, content=content)
            error = answer.json()["error"]
            assert (answer.status_code, error["type"], error["param"]) == (status, "invalid_request_error", param)
            assert set(error) == {"message", "type", "param", "code"}
            fine = body("x", logit_bias={}, presence_penalty=0, temperature=0.3, top_p=0.5, seed=1, tool_choice="none")
            assert (await http.post(url, json=fine)).status_code == 200
            await http.post(f"{gateway.url}/sessions/{name}/end", json={})
            played = await playing
            overridden = {key: value for key, value in played.metrics.items() if key.startswith("overridden")}
            assert overridden == dict.fromkeys(
                ("overridden_temperature", "overridden_top_p", "overridden_seed", "overridden_tool_choice"), 1
            )
            assert len(played.turns) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "sent",
    [
        body("x"),
        {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "tool_use", "id": "1", "name": "f"}]}]},
        {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text"}]}]},
    ],
)
def test_a_bad_request_is_refused_in_anthropics_shape(sent):
    async def main():
        async with episode() as (gateway, http, name, _):
            answer = await http.post(f"{gateway.url}/sessions/{name}/v1/messages", json=sent)
            assert answer.status_code == 400
            assert answer.json()["type"] == "error"
            assert answer.json()["error"]["type"] == "invalid_request_error"
            nobody = await http.post(f"{gateway.url}/v1/messages", json=body("x", max_tokens=5))
            assert (nobody.status_code, nobody.json()["error"]["type"]) == (401, "authentication_error")

    asyncio.run(main())


def test_a_full_context_is_each_apis_own_error():
    async def main():
        async with episode() as (gateway, http, name, _):
            at, long = f"{gateway.url}/sessions/{name}/v1", "x" * 300

            async def ask(path, text):
                return await http.post(f"{at}/{path}", json=body(text, max_tokens=9))

            assert (await ask("messages", "x")).status_code == 200
            for path in ("messages", "chat/completions"):  # the next request tells that the program goes on
                full, shorter = await asyncio.gather(ask(path, long), ask(path, f"short {path}"))
                assert (full.status_code, shorter.status_code) == (400, 200)
                error = full.json()["error"]
                if path == "messages":
                    assert (error["type"], error["message"][:18]) == ("invalid_request_error", "prompt is too long")
                else:
                    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")

    asyncio.run(main())


def test_while_weights_change_requests_come_back_later():
    async def main():
        async with episode() as (gateway, http, name, playing):
            at = f"{gateway.url}/sessions/{name}/v1"
            with gateway.paused(retry_after=3):
                busy = await http.post(f"{at}/chat/completions", json=body("x"))
                assert (busy.status_code, busy.headers["Retry-After"]) == (429, "3")
                assert busy.json()["error"]["type"] == "rate_limit_error"
                busy = await http.post(f"{at}/messages", json=body("x", max_tokens=3))
                assert (busy.status_code, busy.json()["error"]["type"]) == (429, "rate_limit_error")
            assert (await http.post(f"{at}/chat/completions", json=body("x"))).status_code == 200
            await http.post(f"{gateway.url}/sessions/{name}/end", json={})
            assert len((await playing).turns) == 1

    asyncio.run(main())


def test_usage_logprobs_and_versions_are_those_of_the_turn():
    async def main():
        async with episode() as (gateway, http, name, _):
            url = f"{gateway.url}/sessions/{name}/v1/chat/completions"
            first = (await http.post(url, json=body("abc", logprobs=True))).json()
            assert first["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
            entries = first["choices"][0]["logprobs"]["content"]
            assert [one["token"] for one in entries] == [f"token_id:{ord(c)}" for c in "hi"] + ["token_id:256"]
            assert first["system_fingerprint"] == "turnwise-v0"
            second = (await http.post(url, json=body("abc", "hi", "de"))).json()
            assert second["usage"]["prompt_tokens"] == 8 + 4
            streamed = body("abc", "hi", "de", "hi", "f", stream=True, stream_options={"include_usage": True})
            last = read_events((await http.post(url, json=streamed)).text)[-1]
            assert (last["choices"], last["usage"]["prompt_tokens"]) == ([], 15 + 3)

    asyncio.run(main())


def test_a_client_that_leaves_withdraws_its_request_and_a_retry_of_a_begun_one_is_no_second_turn():
    async def main():
        slow = asyncio.Event()

        class Slow(ScriptedEngine):
            async def generate(self, session, prompt_ids, sampling):
                await slow.wait()
                return await super().generate(session, prompt_ids, sampling)

        with Gateway().running() as gateway:
            opened = asyncio.get_running_loop().create_future()
            agent = PolicyAgent(engine=Slow(lambda *_: "hi", RENDER.encode_action), render=RENDER)
            playing = asyncio.ensure_future(
                run_episode(agent, OneSession(gateway, opened), Task(id="t"), episode_seed=0)
            )
            name = await opened
            url = f"{gateway.url}/sessions/{name}/v1/chat/completions"
            async with httpx2.AsyncClient(trust_env=False, timeout=20) as http:
                for text in ("begun", "queued"):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.3):
                            await http.post(url, json=body(text))
                retried = asyncio.ensure_future(http.post(url, json=body("begun")))
                deadline = time.monotonic() + 5
                while (await http.get(f"{gateway.url}/sessions/{name}")).json() != {
                    "session": name,
                    "requests": 2,
                    "withdrawn": 1,
                    "retries": 1,
                }:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.02)
                slow.set()
                assert (await retried).json()["choices"][0]["message"]["content"] == "hi"
                await http.post(f"{gateway.url}/sessions/{name}/end", json={})
            played = await playing
        assert [RENDER.decode(turn.context_ids) for turn in played.turns] == ["<says>begun<asks>"]
        assert (played.metrics["retries"], played.metrics["withdrawn"]) == (1, 1)

    asyncio.run(main())


def test_a_first_attempt_that_is_read_after_its_retry_is_no_second_turn_unless_its_client_stays():
    """A busy server may read a request, whose client has timed out, after the retry that its client sent then."""
    asked = body("x")

    async def main():
        async with episode() as (gateway, http, name, _):
            url = f"{gateway.url}/sessions/{name}"

            async def post(attempt):
                headers = {"x-stainless-retry-count": str(attempt)}
                return (await http.post(f"{url}/v1/chat/completions", json=asked, headers=headers)).json()["id"]

            _, late = await asyncio.open_connection("127.0.0.1", httpx2.URL(url).port)
            sent = json.dumps(asked, separators=(",", ":"), ensure_ascii=False).encode()
            head = f"POST /sessions/{name}/v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-stainless-retry-count: 0\r\n"
            late.write(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent[:-1])
            await late.drain()
            retried = await post(1)
            late.write(sent[-1:])
            await late.drain()
            late.close()
            await asyncio.sleep(0.3)
            shown = (await http.get(url)).json()
            assert (shown["requests"], shown.get("retries", 0)) == (1, 0)
            assert await post(0) != retried, "the prompt is sampled a second time"
            assert (await http.get(url)).json()["requests"] == 2

    asyncio.run(main())


def test_a_client_that_leaves_in_the_middle_of_its_request_is_no_failure(caplog):
    async def main():
        async with episode() as (gateway, http, name, _):
            for path in ("v1/chat/completions", "reward"):
                _, gone = await asyncio.open_connection("127.0.0.1", httpx2.URL(gateway.url).port)
                gone.write(f"POST /sessions/{name}/{path} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{{".encode())
                await gone.drain()
                await asyncio.sleep(0.05)
                gone.close()
            await asyncio.sleep(0.2)
            assert (await http.get(f"{gateway.url}/sessions/{name}")).json() == {"session": name}

    asyncio.run(main())
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("reward", {}),
        ("reward", {"reward": "much"}),
        ("reward", {"reward": True}),
        ("reward", {"reward": 1, "name": ""}),
        ("end", {"metrics": {"success": "yes"}}),
    ],
)
def test_rewards_and_ends_that_are_no_numbers_are_refused(path, sent):
    async def main():
        async with episode() as (gateway, http, name, _):
            answer = await http.post(f"{gateway.url}/sessions/{name}/{path}", json=sent)
            assert answer.status_code == 400
            bad = await http.post(f"{gateway.url}/sessions/{name}/{path}", content=b'{"reward": NaN')
            assert bad.status_code == 400

    asyncio.run(main())


def test_what_is_not_there_is_refused_in_the_shape_of_its_api():
    async def main():
        async with episode() as (gateway, http, name, _):
            at = f"{gateway.url}/sessions/{name}"
            nothing = await http.post(f"{at}/v1/embeddings", json={})
            assert (nothing.status_code, nothing.json()["error"]["code"]) == (404, "not_found")
            assert nothing.json()["error"]["message"] == f"there is nothing to POST at /sessions/{name}/v1/embeddings"
            nothing = await http.post(f"{at}/v1/messages/count_tokens", json={})
            assert (nothing.status_code, nothing.json()["error"]["type"]) == (404, "not_found_error")
            assert (await http.get(f"{at}/v1/messages")).status_code == 405

    asyncio.run(main())


def test_a_port_that_is_taken_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(RunError, match="cannot listen at"):
        Gateway(port=taken.getsockname()[1])
