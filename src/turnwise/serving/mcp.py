"""Any environment, or a set of tools, as an MCP server: over stdio, or over streamable HTTP with an episode a session.

    reset_episode(index, split, episode_seed)   begins an episode; what the agent reads first
    the environment's own tools                 each call is a turn of the agent
    respond(text)                               says something, as a turn: a move of a game, a final answer
    episode_reward(answer)                      ends with an answer, if one is given; what was paid so far

Invariant: sessions share nothing but what the environment's copies share. A move that the environment cannot take is a
tool's error, which a model can read; what breaks in the environment's code is an error of the protocol.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Protocol, cast

from turnwise.envs.base import Env
from turnwise.envs.boundary import EpisodeFailure
from turnwise.errors import EnvError, RunError
from turnwise.plugins import PluginKind, find_plugin
from turnwise.serving.episode import NotPlaying, ServedEpisode, join_texts
from turnwise.tools import Tool, index_tools, run_calls
from turnwise.types import Json, ToolCall, ToolSpec

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp_types import CallToolResult

REWARDS: Final = "turnwise/rewards"
RESET: Final = ToolSpec(
    name="reset_episode",
    description="Begins an episode, and returns what is to be done in it.",
    parameters={
        "type": "object",
        "properties": {
            "index": {"type": "integer", "description": "The place of the task in its split.", "default": 0},
            "split": {"type": "string", "description": "train or test."},
            "episode_seed": {"type": "integer", "description": "The seed of the episode's own noise.", "default": 0},
        },
    },
)
RESPOND: Final = ToolSpec(
    name="respond",
    description="Says something to the environment: a move of a game, or the final answer.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)
REWARD: Final = ToolSpec(
    name="episode_reward",
    description="The reward of the episode so far and whether it is over; ends it with a final answer if one is given.",
    parameters={"type": "object", "properties": {"answer": {"type": ["string", "null"]}}},
)


class Served(Protocol):
    """What a session is answered with."""

    @property
    def specs(self) -> Sequence[ToolSpec]: ...

    async def call(self, name: str, arguments: Mapping[str, Json]) -> "CallToolResult": ...

    async def close(self) -> None: ...


class ServedTools:
    """Tools by themselves, which have no state."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tuple(tools)
        self.specs = [tool.spec for tool in self._tools]

    async def call(self, name: str, arguments: Mapping[str, Json]) -> "CallToolResult":
        made = ToolCall(id="call", name=name, arguments=json.dumps(arguments))
        (result,) = await run_calls(self._tools, [made])
        return _answer(result.content, ok=result.ok, rewards=result.rewards)

    async def close(self) -> None:
        return


class ServedEnv:
    """An environment, with the episode of one session."""

    def __init__(self, env: Env, *, split: str) -> None:
        self._episode = ServedEpisode(env, split=split)
        taken = {RESET.name, RESPOND.name, REWARD.name} & {spec.name for spec in env.tools}
        if taken:
            raise EnvError(f"the environment has a tool named '{taken.pop()}', which is the server's own: rename it")

    @property
    def specs(self) -> Sequence[ToolSpec]:
        return [RESET, *self._episode.env.tools, RESPOND, REWARD]

    async def call(self, name: str, arguments: Mapping[str, Json]) -> "CallToolResult":
        try:
            return await self._call(name, arguments)
        except (NotPlaying, EnvError) as error:
            return _answer(str(error), ok=False)

    async def close(self) -> None:
        await self._episode.close()

    async def _call(self, name: str, arguments: Mapping[str, Json]) -> "CallToolResult":
        episode = self._episode
        if name == RESET.name:
            known = {key: arguments[key] for key in ("index", "split", "episode_seed") if key in arguments}
            opening = await episode.reset(**known)  # type: ignore[arg-type]  # its schema was checked
            return _answer(join_texts(opening), structured=episode.progress.describe() if episode.progress else None)
        if name == REWARD.name:
            if arguments.get("answer") is not None and episode.progress and not episode.progress.done:
                await episode.respond(str(arguments["answer"]))
            if episode.progress is None:
                raise NotPlaying("no episode has begun: reset first")
            return _answer(f"{episode.progress.reward:g}", structured=episode.progress.describe())
        errors = episode.progress.metrics.get("tool_errors", 0.0) if episode.progress else 0.0
        step = await (
            episode.respond(str(arguments["text"])) if name == RESPOND.name else episode.call(name, arguments)
        )
        progress = episode.progress
        assert progress is not None, "a step was taken"
        text = join_texts(step.messages if step.rewrites is None else step.rewrites)
        if step.done:
            text = "\n\n".join(filter(None, (text, f"The episode is over, with reward {progress.reward:g}.")))
        ok = progress.metrics.get("tool_errors", 0.0) == errors
        return _answer(text, ok=ok, structured=progress.describe())


def find_tools(name: str) -> tuple[Tool, ...]:
    """The tools that `module:name` or `file.py:name` stands for: one, or several in a list."""
    kind = PluginKind(
        key="tools", noun="list of tools", group="turnwise.tools", args="tools", contract="put @tool above"
    )
    found = find_plugin(kind, name, {}, lambda value: isinstance(value, Tool | Sequence) and not isinstance(value, str))
    tools = (found,) if isinstance(found, Tool) else tuple(cast(Sequence[Tool], found))
    return tuple(index_tools(tools).values())


def make_server(make: Callable[[], Served], *, name: str) -> "Server[dict[str, object]]":
    """An MCP server each of whose connections is answered by what `make` makes for it."""
    if find_spec("mcp") is None:
        raise RunError("serving MCP needs the package mcp: pip install 'turnwise[mcp]'")
    import mcp_types as types
    from mcp import MCPError
    from mcp.server.lowlevel import Server

    alone = make()  # of stdio, whose process has one client; and what is wrong is known before any

    def session_of(context: object) -> Served:
        connection = getattr(getattr(context, "session", None), "_connection", None)
        if connection is None or connection.session_id is None:
            return alone
        if "turnwise" not in connection.state:
            connection.state["turnwise"] = made = make()
            connection.exit_stack.push_async_callback(made.close)
        return cast(Served, connection.state["turnwise"])

    async def list_tools(context: object, _: object) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=spec.name, description=spec.description, input_schema=dict(spec.parameters))
                for spec in session_of(context).specs
            ]
        )

    async def call_tool(context: object, params: types.CallToolRequestParams) -> types.CallToolResult:
        session = session_of(context)
        spec = next((spec for spec in session.specs if spec.name == params.name), None)
        if spec is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool '{params.name}'")
        arguments = params.arguments or {}
        if problem := _check(spec, arguments):
            return _answer(problem, ok=False)
        try:
            return await session.call(params.name, arguments)
        except EpisodeFailure as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from error

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[dict[str, object]]:
        try:
            yield {}
        finally:
            await alone.close()

    return Server(name, lifespan=lifespan, on_list_tools=list_tools, on_call_tool=call_tool)


def _check(spec: ToolSpec, arguments: Mapping[str, Json]) -> str:
    """What is wrong with the arguments of the server's own tools; the environment's check theirs themselves."""
    from turnwise.tools.mcp.arguments import SchemaArguments
    from turnwise.tools.parameters import BadArgumentsError

    if spec not in (RESET, RESPOND, REWARD):
        return ""
    try:
        SchemaArguments(spec.name, spec.parameters).read(json.dumps(arguments))
    except BadArgumentsError as error:
        return f"{spec.name} was not called: {error}"
    return ""


def _answer(
    text: str, *, ok: bool = True, rewards: Mapping[str, float] | None = None, structured: Json = None
) -> "CallToolResult":
    from mcp_types import CallToolResult, TextContent

    meta = {REWARDS: dict(rewards)} if rewards else None
    return CallToolResult(
        content=[TextContent(text=text or "(no output)")], is_error=not ok, structured_content=structured, _meta=meta
    )
