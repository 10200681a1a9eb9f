"""What the gateway adds to a request: `python -m benchmarks.tools.gateway_overhead`.

64 sessions at once send requests over HTTP from a process of their own to a scripted engine that takes a fixed time.
The added latency is what the client waits beyond that time; the CPU time is the gateway's process, loop included.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence

from turnwise.agents import PolicyAgent
from turnwise.engines.base import Completion, Sampling
from turnwise.engines.scripted import ScriptedEngine
from turnwise.gateway.env import Score, SessionEnv
from turnwise.gateway.server import Gateway
from turnwise.gateway.session import Ended, Session
from turnwise.render import format_call
from turnwise.rollout import Limits, run_episode
from turnwise.types import Message, Task, ToolSpec

REPLY = "I look it up. " + format_call("search", {"query": "harbour of Oslo"})


class ByteRender:
    """A renderer that costs next to nothing, so that the gateway is what is measured."""

    stop_ids = (256,)

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        return tuple(b"\n".join(message.content.encode() for message in messages))

    def extend(self, action_ids: Sequence[int], messages: Sequence[Message]) -> tuple[int, ...]:
        return self.start(messages, ())

    def parse(self, action_ids: Sequence[int]) -> Message:
        return Message(role="assistant", content=bytes(action_ids[:-1]).decode())

    def write(self, message: Message) -> str:
        return message.content

    def encode_action(self, text: str) -> tuple[int, ...]:
        return (*text.encode(), 256)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode()


class TimedEngine(ScriptedEngine):
    """Takes a fixed time for every turn, whatever else is asked of it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(lambda session, prompt: REPLY, ByteRender().encode_action)
        self._seconds = seconds

    async def generate(self, session: str, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        await asyncio.sleep(self._seconds)
        return await super().generate(session, prompt_ids, sampling)


class OpenSession(SessionEnv):
    """A session that waits for its client."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    async def begin(self, task: Task, episode_seed: int) -> Session:
        return self._session

    async def score(self, ended: Ended, conversation: tuple[Message, ...]) -> Score:
        return Score()

    async def stop(self) -> None:
        return


async def converse(host: str, port: int, name: str, requests: int, seconds: float) -> list[float]:
    """One client's conversation, ten turns long and then anew; the latency of each request less the engine's time.

    Before each request it runs its tools for up to as long as the engine takes, so that clients are out of step.
    """
    reader, writer = await asyncio.open_connection(host, port)
    tools = random.Random(name)
    added: list[float] = []
    messages: list[dict[str, str]] = []
    for number in range(requests):
        if number % 10 == 0:
            messages = [{"role": "system", "content": "Answer briefly. " * 20}]
        messages.append({"role": "user", "content": f"{name} asks number {number}. " * 4})
        body = json.dumps({"model": "m", "messages": messages}).encode()
        await asyncio.sleep(tools.random() * seconds)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {name}\r\n"
        began = time.perf_counter()
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        headers = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(headers.split(b"content-length: ")[1].split(b"\r\n")[0])
        answer = json.loads(await reader.readexactly(length))
        added.append(time.perf_counter() - began - seconds)
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    writer.write(f"POST /sessions/{name}/end HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
    await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return added


async def run_clients(port: int, sessions: int, requests: int, seconds: float) -> list[float]:
    clients = (converse("127.0.0.1", port, f"s{number}", requests, seconds) for number in range(sessions))
    return [one for added in await asyncio.gather(*clients) for one in added]


async def measure(sessions: int, requests: int, seconds: float) -> dict[str, float]:
    """Serves the sessions here, and their clients in another process."""
    with Gateway().running() as gateway:
        agent = PolicyAgent(engine=TimedEngine(seconds), render=ByteRender())
        limits = Limits(max_turns=10**6, turn_tokens=10**4)
        opened = [gateway.open(f"s{number}") for number in range(sessions)]
        playing = [
            asyncio.ensure_future(
                run_episode(agent, OpenSession(one), Task(id=one.name), episode_seed=0, limits=limits, session=one.name)
            )
            for one in opened
        ]
        began, busy = time.perf_counter(), time.process_time()
        arguments = [str(value) for value in (gateway.port, sessions, requests, seconds)]
        clients = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.tools.gateway_overhead",
            "--client",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
        )
        written, _ = await clients.communicate()
        episodes = await asyncio.gather(*playing)
        wall, busy = time.perf_counter() - began, time.process_time() - busy
    added = [1000 * one for one in json.loads(written)]
    assert len(added) == sum(len(episode.turns) for episode in episodes) == sessions * requests
    return {
        "added_ms_median": statistics.median(added),
        "added_ms_p95": statistics.quantiles(added, n=20)[-1],
        "cpu_ms": 1000 * busy / len(added),
        "requests_per_second": len(added) / wall,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--requests", type=int, default=20, help="of each session")
    parser.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        port, sessions, requests = map(int, options.client[:3])
        sys.stdout.write(json.dumps(asyncio.run(run_clients(port, sessions, requests, float(options.client[3])))))
        return
    sys.stdout.write(f"{options.sessions} sessions at once, {options.requests} requests each\n")
    sys.stdout.write("engine seconds   added ms (median)   added ms (p95)   gateway CPU ms   requests/s\n")
    for seconds in (1.0, 0.2, 0.0):
        got = asyncio.run(measure(options.sessions, options.requests, seconds))
        sys.stdout.write(
            f"{seconds:14g} {got['added_ms_median']:19.1f} {got['added_ms_p95']:16.1f} {got['cpu_ms']:16.2f} "
            f"{got['requests_per_second']:12.0f}\n"
        )


if __name__ == "__main__":
    main()
