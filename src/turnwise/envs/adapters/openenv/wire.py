"""OpenEnv's two wires: a WebSocket, whose connection is an episode, and HTTP.

    -> {"type": "reset", "data": {"seed": 7}}      <- {"type": "observation", "data": {"observation": {...}, "reward":
    -> {"type": "step", "data": {"move": "up"}}        null, "done": false}}
    -> {"type": "state"}                           <- {"type": "error", "data": {"message": ..., "code": ...}}

Invariant: an action that the server refuses as invalid is a `RefusedAction`, which the agent can read; everything else
that goes wrong is a `LostServer` and fails the episode.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, cast

import httpx2

from turnwise.errors import EnvError
from turnwise.tools.infrastructure import InfrastructureError
from turnwise.types import Json

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_FULL_WAIT: Final = 0.5
_MAX_BYTES: Final = 64 * 2**20
_SHOWN_CHARS: Final = 300


class LostServer(InfrastructureError):
    """An OpenEnv server that cannot be reached, is full, or failed in its own code."""


class RefusedAction(Exception):
    """An action that does not fit the server's schema; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a server answers to a reset or a step."""

    observation: Mapping[str, Json]
    reward: float
    done: bool
    metadata: Mapping[str, Json]


class Connection(Protocol):
    """One episode on a server."""

    async def reset(self, arguments: Mapping[str, Json]) -> Observed: ...

    async def step(self, action: Mapping[str, Json]) -> Observed: ...

    async def state(self) -> Mapping[str, Json]: ...

    async def close(self) -> None: ...


def read_observed(server: str, data: object) -> Observed:
    """The payload of an observation; a LostServer where it is none."""
    if not isinstance(data, Mapping) or not isinstance(data.get("observation"), Mapping):
        raise LostServer(f"OpenEnv server {server} answered with no observation: {str(data)[:_SHOWN_CHARS]}")
    reward = data.get("reward")
    if reward is not None and not isinstance(reward, bool | int | float):
        raise LostServer(f"OpenEnv server {server} answered with the reward {reward!r}, which is no number")
    observation, metadata = cast(Mapping[str, Json], data["observation"]), data.get("metadata")
    return Observed(
        observation=observation,
        reward=float(reward or 0.0),
        done=bool(data.get("done", False)),
        metadata=metadata if isinstance(metadata, Mapping) else {},
    )


def fetch_schema(url: str, headers: Mapping[str, str], seconds: float) -> Mapping[str, Json]:
    """The server's schemas of actions and observations."""
    try:
        reply = httpx2.get(f"{url}/schema", headers=dict(headers), timeout=seconds, trust_env=False)
        reply.raise_for_status()
        schema = reply.json()
    except (httpx2.HTTPError, ValueError) as error:
        raise EnvError(
            f"OpenEnv server {url} gave no /schema ({error or type(error).__name__}): is it running?"
        ) from None
    if not isinstance(schema, Mapping) or not isinstance(schema.get("action"), Mapping):
        raise EnvError(f"OpenEnv server {url} gave a /schema without an action: is it an OpenEnv server?")
    return cast(Mapping[str, Json], schema)


class SocketConnection:
    """A WebSocket: `SocketConnection(url, headers={}, seconds=60.0)`."""

    def __init__(self, url: str, *, headers: Mapping[str, str], seconds: float) -> None:
        self._url, self._headers, self._seconds = url, dict(headers), seconds
        self._socket: ClientConnection | None = None

    async def reset(self, arguments: Mapping[str, Json]) -> Observed:
        """Connects, waiting for a place on a server that is full, and begins an episode."""
        deadline = asyncio.get_running_loop().time() + self._seconds
        while True:
            if self._socket is None:
                self._socket = await self._connect()
            try:
                return read_observed(self._url, await self._ask({"type": "reset", "data": dict(arguments)}))
            except _Full as full:
                await self.close()
                if asyncio.get_running_loop().time() > deadline:
                    raise LostServer(f"OpenEnv server {self._url} stayed full for {self._seconds:g} seconds") from full
                await asyncio.sleep(_FULL_WAIT)

    async def step(self, action: Mapping[str, Json]) -> Observed:
        return read_observed(self._url, await self._ask({"type": "step", "data": dict(action)}))

    async def state(self) -> Mapping[str, Json]:
        return cast(Mapping[str, Json], await self._ask({"type": "state"}))

    async def close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            with suppress(Exception):  # it may be gone, which is what is wanted
                await socket.send(json.dumps({"type": "close"}))
            await socket.close()

    async def _connect(self) -> "ClientConnection":
        try:
            from websockets.asyncio.client import connect
        except ImportError:
            raise EnvError("OpenEnv over WebSocket needs websockets: pip install 'turnwise[openenv]'") from None
        address = f"{self._url.replace('http', 'ws', 1)}/ws"
        try:
            return await connect(
                address,
                additional_headers=self._headers,
                open_timeout=self._seconds,
                max_size=_MAX_BYTES,
                ping_interval=None,  # a step of the server's may hold its loop for longer than a ping waits
                proxy=None,
            )
        except Exception as error:
            raise LostServer(f"OpenEnv server {self._url} is lost: {_words(error)}") from error

    async def _ask(self, message: Mapping[str, Json]) -> object:
        if self._socket is None:
            raise LostServer(f"OpenEnv server {self._url} is not connected: reset first")
        try:
            async with asyncio.timeout(self._seconds):
                with suppress(Exception):  # a server that is full says so, and closes, before it is asked
                    await self._socket.send(json.dumps(message))
                reply = json.loads(await self._socket.recv())
        except TimeoutError:
            raise LostServer(f"OpenEnv server {self._url} did not answer within {self._seconds:g} seconds") from None
        except Exception as error:
            raise LostServer(f"OpenEnv server {self._url} is lost: {_words(error)}") from error
        data = reply.get("data") if isinstance(reply, dict) else None
        if not isinstance(data, dict) or reply.get("type") not in ("observation", "state"):
            self._refuse(data if isinstance(data, dict) else {}, reply)
        return data

    def _refuse(self, data: Mapping[str, object], reply: object) -> None:
        words = str(data.get("message", reply))[:_SHOWN_CHARS]
        if data.get("code") == "VALIDATION_ERROR":
            raise RefusedAction(_explain(data.get("errors")) or words)
        if data.get("code") == "CAPACITY_REACHED":
            raise _Full(words)
        raise LostServer(f"OpenEnv server {self._url} failed: {words}")


class HttpConnection:
    """HTTP requests. OpenEnv's own servers make a new environment for each, so that only a server which keeps an
    `episode_id` (as `turnwise serve-openenv` does), or one whose episodes have one step, can be played so."""

    def __init__(self, url: str, *, headers: Mapping[str, str], seconds: float, episode_id: str) -> None:
        self._url, self._episode_id = url, episode_id
        self._client = httpx2.AsyncClient(headers=dict(headers), timeout=seconds, trust_env=False)

    async def reset(self, arguments: Mapping[str, Json]) -> Observed:
        return read_observed(self._url, await self._ask("reset", {**arguments, "episode_id": self._episode_id}))

    async def step(self, action: Mapping[str, Json]) -> Observed:
        body: dict[str, Json] = {"action": dict(action), "episode_id": self._episode_id}
        return read_observed(self._url, await self._ask("step", body))

    async def state(self) -> Mapping[str, Json]:
        return cast(Mapping[str, Json], await self._ask("state", None))

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, what: str, body: Mapping[str, Json] | None) -> object:
        address = f"{self._url}/{what}"
        try:
            reply = await (self._client.get(address) if body is None else self._client.post(address, json=body))
            if reply.status_code == 422:
                raise RefusedAction(_explain(reply.json().get("detail")))
            reply.raise_for_status()
            return reply.json()
        except (httpx2.HTTPError, ValueError, AttributeError) as error:
            raise LostServer(f"OpenEnv server {self._url} is lost: {_words(error)}") from error


class _Full(Exception):
    """The server has as many sessions as it takes."""


def _explain(errors: object) -> str:
    """pydantic's errors in words: `move: Input should be a valid string`."""
    if not isinstance(errors, list):
        return str(errors or "")[:_SHOWN_CHARS]
    words = [
        f"{'.'.join(map(str, one.get('loc', ())))}: {one.get('msg', '')}" for one in errors if isinstance(one, dict)
    ]
    return "; ".join(words)[:_SHOWN_CHARS]


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:_SHOWN_CHARS] or type(error).__name__
