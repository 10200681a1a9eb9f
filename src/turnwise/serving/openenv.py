"""Any environment as an OpenEnv server: the routes and messages of `create_fastapi_app`, without that package.

    WebSocket /ws                  an episode each: reset, step, state, close
    POST /reset, POST /step, GET /state      the same over HTTP; `episode_id` names the episode
    GET /schema, /metadata, /health

An action is `{"message": text}` or `{"tool": name, "arguments": {}}`. An observation has `text`, what the environment
says in one piece, and `messages`, the same one by one. `seed` in a reset chooses the task, unless `index` and `split`,
or `task` (its id) do; `episode_seed` is the seed of the episode's own noise.

Invariant: an action that is none is refused as invalid; what breaks in the environment's code is an execution error.
"""

import json
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from turnwise.envs.base import Env
from turnwise.envs.boundary import EpisodeFailure
from turnwise.errors import EnvError, RunError
from turnwise.serving.episode import NotPlaying, Progress, ServedEpisode, join_texts
from turnwise.types import Json, Message

try:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocket, WebSocketDisconnect
except ImportError as missing:
    raise RunError(f"serving over HTTP needs {missing.name}: pip install 'turnwise[serve]'") from None

_logger = logging.getLogger(__name__)
_MOST_EPISODES: Final = 1000
"""Kept over HTTP; of more, those that were used longest ago are closed."""


class Action(BaseModel):
    """What an agent does: says something, or calls a tool."""

    model_config = ConfigDict(extra="forbid", strict=True)

    message: str = Field(default="", description="What the agent says: a move, or the final answer.")
    tool: str | None = Field(default=None, description="The tool that the agent calls.")
    arguments: dict[str, object] = Field(default_factory=dict, description="The tool's arguments.")
    metadata: dict[str, object] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_of_two(self) -> "Action":
        if self.tool is not None and self.message:
            raise ValueError("an action is a message or a tool's call, one of the two")
        return self


class Observation(BaseModel):
    """What an agent reads."""

    text: str
    messages: list[dict[str, object]]
    metadata: dict[str, object] = Field(default_factory=dict)


class State(BaseModel):
    """What is known of an episode."""

    episode_id: str | None = None
    step_count: int = 0
    task: str | None = None
    rewards: dict[str, float] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)


class ResetArguments(BaseModel):
    """What a reset may say; arguments of other environments are passed over."""

    seed: int | None = None
    index: int | None = None
    task: str | None = None
    split: str | None = None
    episode_seed: int = 0
    episode_id: str | None = None


class Session:
    """One episode, in OpenEnv's words."""

    def __init__(self, env: Env, split: str) -> None:
        self._env, self._split = env, split
        self.episode = ServedEpisode(env, split=split)
        self._episode_id: str | None = None
        self._paid = 0.0

    async def reset(self, data: Mapping[str, object]) -> dict[str, Json]:
        given = ResetArguments.model_validate(data)
        index = given.index
        if index is None and given.task is None and given.seed is not None:
            index = given.seed % len(self._env.tasks(given.split or self._split))
        self._episode_id, self._paid = given.episode_id, 0.0
        opening = await self.episode.reset(
            index=index, task=given.task, split=given.split, episode_seed=given.episode_seed
        )
        return self._show(opening)

    async def step(self, data: Mapping[str, object]) -> dict[str, Json]:
        action = Action.model_validate(data)
        if action.tool is not None:
            step = await self.episode.call(action.tool, action.arguments)  # type: ignore[arg-type]  # from JSON
        else:
            step = await self.episode.respond(action.message)
        return self._show(step.messages if step.rewrites is None else step.rewrites)

    @property
    def state(self) -> dict[str, Json]:
        progress = self.episode.progress
        state = State(
            episode_id=self._episode_id,
            step_count=progress.turns if progress else 0,
            task=progress.task.id if progress else None,
            rewards=progress.rewards if progress else {},
            metrics=progress.metrics if progress else {},
        )
        return state.model_dump()

    async def close(self) -> None:
        """Ends the episode; what breaks in it then concerns no client any more."""
        try:
            await self.episode.close()
        except EpisodeFailure as failure:
            _logger.warning("an episode could not be closed: %s", failure)

    def _show(self, messages: tuple[Message, ...]) -> dict[str, Json]:
        progress = self.episode.progress
        assert progress is not None, "an episode runs"
        listed: list[Json] = [{"role": message.role, "content": message.content} for message in messages]
        metadata = _metadata(progress, self._env)
        reward, self._paid = progress.reward - self._paid, progress.reward
        return {
            "observation": {"text": join_texts(messages), "messages": listed, "metadata": metadata},
            "reward": reward if progress.turns else None,
            "done": progress.done,
            "metadata": metadata,
        }


Act: TypeAlias = Callable[[Session, Mapping[str, object]], Awaitable[dict[str, Json]]]


class OpenEnvServer:
    """The routes over one environment: `OpenEnvServer(env).app` is the ASGI application."""

    def __init__(self, env: Env, *, split: str = "train") -> None:
        self._env, self._split = env, split
        self._named: OrderedDict[str, Session] = OrderedDict()
        schema = {
            "action": Action.model_json_schema(),
            "observation": Observation.model_json_schema(),
            "state": State.model_json_schema(),
        }
        about = {"name": type(env).__name__, "description": (type(env).__doc__ or "").strip().split("\n")[0]}
        facts: dict[str, Mapping[str, object]] = {"schema": schema, "metadata": about, "health": {"status": "healthy"}}
        self.app = Starlette(
            lifespan=self._lifespan,
            routes=[
                Route("/reset", self._reset, methods=["POST"]),
                Route("/step", self._step, methods=["POST"]),
                Route("/state", self._state),
                WebSocketRoute("/ws", self._converse),
                *(Route(f"/{name}", partial(_tell, fact)) for name, fact in facts.items()),
            ],
        )

    async def _reset(self, request: Request) -> Response:
        return await self._post(request, lambda session, data: session.reset(data))

    async def _step(self, request: Request) -> Response:
        return await self._post(request, lambda session, data: session.step(_action_of(data)))

    async def _state(self, request: Request) -> Response:
        return JSONResponse((await self._find(request.query_params.get("episode_id"))).state)

    async def _post(self, request: Request, act: Act) -> Response:
        try:
            data = json.loads(await request.body() or b"{}")
        except ValueError as error:
            return JSONResponse({"detail": f"not JSON: {error}"}, status_code=422)
        if not isinstance(data, dict):
            return JSONResponse({"detail": "not a JSON object"}, status_code=422)
        try:
            return JSONResponse(await act(await self._find(data.get("episode_id")), data))
        except ValidationError as error:
            return JSONResponse({"detail": _errors_of(error)}, status_code=422)
        except (NotPlaying, EnvError) as error:
            return JSONResponse({"detail": str(error)}, status_code=409)
        except EpisodeFailure as error:
            return JSONResponse({"detail": str(error)}, status_code=500)

    async def _find(self, name: object) -> Session:
        """The episode of this name; those of HTTP have no other end than to be the oldest of too many."""
        key = str(name or "")
        session = self._named.setdefault(key, Session(self._env, self._split))
        self._named.move_to_end(key)
        while len(self._named) > _MOST_EPISODES:
            await self._named.popitem(last=False)[1].close()
        return session

    async def _converse(self, websocket: WebSocket) -> None:
        """An episode over a WebSocket, for as long as it is open."""
        await websocket.accept()
        session = Session(self._env, self._split)
        with suppress(WebSocketDisconnect):
            try:
                while (reply := await _answer(session, await websocket.receive_text())) is not None:
                    await websocket.send_text(json.dumps(reply))
                await websocket.close()
            finally:
                await session.close()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        for session in self._named.values():
            await session.close()


async def _answer(session: Session, text: str) -> dict[str, Json] | None:
    """The reply to a message over a WebSocket; None where it says goodbye."""
    try:
        message = json.loads(text)
    except ValueError as error:
        return _refuse("INVALID_JSON", f"Invalid JSON: {error}")
    kind = message.get("type") if isinstance(message, dict) else None
    data = message.get("data") if isinstance(message, dict) else None
    try:
        match kind:
            case "reset":
                return {"type": "observation", "data": await session.reset(data or {})}
            case "step":
                return {"type": "observation", "data": await session.step(data or {})}
            case "state":
                return {"type": "state", "data": session.state}
            case "close":
                return None
            case _:
                return _refuse("UNKNOWN_TYPE", f"Unknown message type: {kind}")
    except ValidationError as error:
        return _refuse("VALIDATION_ERROR", "Invalid message", errors=_errors_of(error))
    except (NotPlaying, EnvError, EpisodeFailure) as error:
        return _refuse("EXECUTION_ERROR", str(error))


def _refuse(code: str, message: str, **further: Json) -> dict[str, Json]:
    return {"type": "error", "data": {"message": message, "code": code, **further}}


def _errors_of(error: ValidationError) -> list[Json]:
    return cast(list[Json], error.errors(include_url=False, include_context=False, include_input=False))


def _action_of(data: Mapping[str, object]) -> Mapping[str, object]:
    action = data.get("action")
    return action if isinstance(action, dict) else {"action": action}


async def _tell(fact: Mapping[str, object], request: Request) -> Response:
    return JSONResponse(fact)


def _metadata(progress: Progress, env: Env) -> dict[str, Json]:
    tools: list[Json] = [spec.to_openai() for spec in env.tools]
    return {**progress.describe(), "tools": tools}
