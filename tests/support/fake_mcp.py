"""MCP servers of our own making, for tests that do without the package `mcp`."""

import asyncio
import json
from contextlib import asynccontextmanager

from turnwise import Task
from turnwise.agents import ScriptedAgent
from turnwise.rollout import run_episode
from turnwise.tools.mcp.server import CallAnswer, ListedTool

ECHO = ListedTool(
    name="echo",
    description="Says it again.",
    schema={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)
EMPTY = {"type": "object", "properties": {}}


class FakeServer:
    """Counts its connections; each has a state of its own, as a process has."""

    def __init__(self, *tools, answer=None, changes=False):
        self.tools = [ECHO, *(ListedTool(name=name, description=name, schema=EMPTY) for name in tools)]
        self.answer, self.changes = answer, changes
        self.opened, self.closed, self.seen = [], 0, []
        self.most = 0

    @asynccontextmanager
    async def connect(self, server):
        self.opened.append(server)
        self.most = max(self.most, len(self.opened) - self.closed)
        try:
            yield FakeClient(self)
        finally:
            self.closed += 1


class FakeClient:
    def __init__(self, server):
        self.server, self.calls, self.dead = server, 0, False

    @property
    def changes(self):
        return self.server.changes

    async def list_tools(self):
        if self.dead:
            await asyncio.sleep(60)
        return list(self.server.tools)

    async def call_tool(self, name, arguments):
        self.calls += 1
        self.server.seen.append((name, arguments))
        if self.server.answer is not None:
            return await self.server.answer(self, name, arguments)
        return CallAnswer(text=f"{arguments.get('text', name)} ({self.calls})")


def play(env, *replies):
    agent = ScriptedAgent(replies=replies)
    return asyncio.run(run_episode(agent, env.spawn(), Task(id="t", data={"question": "?"}), episode_seed=0))


def wants(*texts):
    """A reply that calls echo on each of these."""
    calls = [json.dumps({"name": "echo", "arguments": {"text": text}}) for text in texts]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


DONE = "done"
