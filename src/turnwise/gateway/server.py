"""The gateway's HTTP server, in a thread of its own, so that it answers while the rollout's loop computes.

    POST /sessions/{id}/v1/chat/completions | /v1/messages | /v1/responses     or /v1/... with the id as the API key
    GET  /sessions/{id}/v1/models
    POST /sessions/{id}/reward {"reward": 1.0, "name": "reward"}     GET /sessions/{id}
    POST /sessions/{id}/end {"reward": 1.0, "metrics": {...}}        POST /sessions/{id}/fail {"reason": "..."}

Invariant: every well-formed request is answered in the shape of the API that it speaks, errors included; a stream is
sent only when the whole turn is known, so it never ends in the middle.
"""

import asyncio
import json
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, TypeAlias

from turnwise.errors import RunError
from turnwise.gateway.chat import Answer, ErrorKind, GatewayError
from turnwise.gateway.session import Ended, Exchange, Identity, Session
from turnwise.gateway.wire import ANTHROPIC, OPENAI, RESPONSES, Wire
from turnwise.http_server import listen, make_server
from turnwise.types import Json

try:
    import uvicorn as uvicorn  # which `make_server` needs
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError as missing:
    raise RunError(f"the gateway needs {missing.name}: pip install 'turnwise[serve]'") from None

Begin: TypeAlias = Callable[[str], Session | None]
"""Opens a session that a client names for the first time, or refuses it."""

_MAX_BYTES: Final = 64 * 2**20
_READ_SECONDS: Final = 60.0
_DRAIN_SECONDS: Final = 5
_STAY_SECONDS: Final = 0.1
"""For a connection's end, which its client sent before it sent a retry, to be read after the request itself."""
_WIRES: Final[Mapping[str, Wire]] = {
    "chat/completions": OPENAI,
    "messages": ANTHROPIC,
    "responses": RESPONSES,
}


class _ClientLeft(Exception):
    """The client closed the connection before its answer came."""


class Gateway:
    """`with Gateway(port=0).running() as gateway: session = gateway.open()`; port 0 takes any free one."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, begin: Begin = lambda name: None) -> None:
        """Listens, but answers nothing until it runs."""
        self._socket, self.url = listen(host, port)
        self.port = int(self._socket.getsockname()[1])
        self._begin = begin
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()
        self._paused: float | None = None
        app = Starlette(routes=self._routes(), exception_handlers={HTTPException: _not_found, Exception: _failed})
        self._server = make_server(app, drain_seconds=_DRAIN_SECONDS)

    def open(self, name: str | None = None, loop: asyncio.AbstractEventLoop | None = None) -> Session:
        """A session for an event loop, the running one by default; without a name it gets one that none can guess."""
        session = Session(name or f"tw-{secrets.token_hex(12)}", loop)
        with self._lock:
            assert session.name not in self._sessions, "a session is opened once"
            self._sessions[session.name] = session
        return session

    def forget(self, session: Session) -> None:
        """A session that is over; requests to it are refused from now on."""
        with self._lock:
            self._sessions.pop(session.name, None)

    def session_url(self, name: str) -> str:
        """Where a session's program sends its requests, `/v1/...` excepted."""
        return f"{self.url}/sessions/{name}"

    @contextmanager
    def paused(self, *, retry_after: float = 1.0) -> Iterator[None]:
        """While weights change: new requests are told to come back, with Retry-After."""
        self._paused = retry_after
        try:
            yield
        finally:
            self._paused = None

    @contextmanager
    def running(self) -> Iterator["Gateway"]:
        """Serves in a thread until the block ends."""
        thread = self.start()
        try:
            yield self
        finally:
            self.stop()
            thread.join()

    def start(self) -> threading.Thread:
        """Serves in a thread that ends with the process; returns when it answers."""
        thread = threading.Thread(target=self._server.run, args=([self._socket],), name="gateway", daemon=True)
        thread.start()
        # It imports modules as it starts: a process that was forked meanwhile would wait for their locks for ever.
        while not self._server.started and thread.is_alive():
            time.sleep(0.002)
        return thread

    def stop(self) -> None:
        """Makes the server answer what is in flight and end; from any thread."""
        self._server.should_exit = True

    def _routes(self) -> list[Route]:
        routes = [Route("/health", self._health, methods=["GET"])]
        for prefix in ("", "/sessions/{session}"):
            for version in ("/v1", ""):
                routes.append(Route(f"{prefix}{version}/models", self._models, methods=["GET"]))
                for path, wire in _WIRES.items():
                    handler = partial(self._complete, wire=wire)
                    routes.append(Route(f"{prefix}{version}/{path}", handler, methods=["POST"]))
        routes += [
            Route("/sessions/{session}/reward", partial(self._control, act=_pay), methods=["POST"]),
            Route("/sessions/{session}/end", partial(self._control, act=_end), methods=["POST"]),
            Route("/sessions/{session}/fail", partial(self._control, act=_fail), methods=["POST"]),
            Route("/sessions/{session}", self._show, methods=["GET"]),
        ]
        return routes

    async def _complete(self, request: Request, wire: Wire) -> Response:
        try:
            body = await _read_body(request)
            asked = wire.read(body)
            if self._paused is not None:
                raise GatewayError(ErrorKind.BUSY, "the weights are changing; try again", retry_after=self._paused)
            session = self._find(request)
            identity = Identity.of(request.url.path, body, request.headers)
            if session.is_overtaken(identity):
                await _stays(request)
            answer = await _await(request, session, session.ask(asked, identity))
        except GatewayError as error:
            return _json(wire.write_error(error), error.status, error.headers)
        except _ClientLeft:
            return Response(status_code=499)
        if answer.request.stream:
            return Response(b"".join(wire.stream(answer)), media_type="text/event-stream")
        return _json(wire.write(answer))

    async def _control(self, request: Request, act: Callable[[Session, Mapping[str, Json]], None]) -> Response:
        try:
            body = await _read_body(request)
            try:
                data = json.loads(body or b"{}")
            except ValueError:
                raise GatewayError(ErrorKind.INVALID, "the body is not JSON") from None
            if not isinstance(data, dict):
                raise GatewayError(ErrorKind.INVALID, "the body is not a JSON object")
            act(self._find(request), data)
        except GatewayError as error:
            return _json(OPENAI.write_error(error), error.status, error.headers)
        except _ClientLeft:
            return Response(status_code=499)
        return _json({"ok": True})

    async def _show(self, request: Request) -> Response:
        try:
            session = self._find(request)
        except GatewayError as error:
            return _json(OPENAI.write_error(error), error.status)
        return _json({"session": session.name, **session.counts})

    async def _models(self, request: Request) -> Response:
        model: dict[str, Json] = {"id": "turnwise", "object": "model", "created": 0, "owned_by": "turnwise"}
        return _json({"object": "list", "data": [model]})

    async def _health(self, request: Request) -> Response:
        return _json({"status": "ok", "sessions": len(self._sessions)})

    def _find(self, request: Request) -> Session:
        """The session that the path or else the API key names."""
        name = request.path_params.get("session") or _key(request)
        if not name:
            raise GatewayError(ErrorKind.NO_SESSION, "no session: give its id as the API key, or in the base URL")
        with self._lock:
            session = self._sessions.get(name)
        session = session or self._begin(name)
        if session is None:
            raise GatewayError(ErrorKind.NO_SESSION, f"there is no session '{name[:64]}', or it is over")
        return session


async def _await(request: Request, session: Session, exchange: Exchange) -> Answer:
    """The answer, unless the client leaves before it comes."""
    answered = asyncio.wrap_future(exchange.answer)
    left = asyncio.ensure_future(_disconnected(request))
    await asyncio.wait((answered, left), return_when=asyncio.FIRST_COMPLETED)
    left.cancel()
    if answered.done() and not answered.cancelled():
        return answered.result()
    session.leave(exchange)
    raise _ClientLeft


async def _stays(request: Request) -> None:
    """Waits until a client that has closed its connection would have been seen to: then its request is none."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_STAY_SECONDS):
            await _disconnected(request)
            raise _ClientLeft


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _read_body(request: Request) -> bytes:
    chunks, size = [], 0
    try:
        async with asyncio.timeout(_READ_SECONDS):
            async for chunk in request.stream():
                chunks.append(chunk)
                size += len(chunk)
                if size > _MAX_BYTES:
                    raise GatewayError(ErrorKind.TOO_LARGE, f"the request has more than {_MAX_BYTES} bytes")
    except ClientDisconnect:
        raise _ClientLeft from None
    except TimeoutError:
        raise GatewayError(ErrorKind.INVALID, f"the request was incomplete after {_READ_SECONDS:g} seconds") from None
    return b"".join(chunks)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these alone"
    told = GatewayError(ErrorKind.NOT_FOUND, f"there is nothing to {request.method} at {request.url.path}")
    return _json(_wire_of(request).write_error(told), error.status_code)


async def _failed(request: Request, error: Exception) -> Response:
    told = GatewayError(ErrorKind.FAILED, f"the gateway failed: {type(error).__name__}")
    return _json(_wire_of(request).write_error(told), told.status)


def _wire_of(request: Request) -> Wire:
    """The API that a path belongs to."""
    return ANTHROPIC if "/messages" in request.url.path else OPENAI


def _key(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


def _json(content: Mapping[str, Json], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def _pay(session: Session, data: Mapping[str, Json]) -> None:
    name = data.get("name", "reward")
    if not isinstance(name, str) or not name:
        raise GatewayError(ErrorKind.INVALID, "name: give a text", param="name")
    session.pay(name, _number(data, "reward"))


def _end(session: Session, data: Mapping[str, Json]) -> None:
    metrics = data.get("metrics") or {}
    if not isinstance(metrics, Mapping):
        raise GatewayError(ErrorKind.INVALID, "metrics: give numbers by name", param="metrics")
    measured = {str(name): _number(metrics, name) for name in metrics}
    if "reward" in data:
        _pay(session, data)
    session.end(Ended(metrics=measured))


def _fail(session: Session, data: Mapping[str, Json]) -> None:
    session.end(Ended(failure=str(data.get("reason") or "the program reported a failure")))


def _number(data: Mapping[str, Json], name: str) -> float:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise GatewayError(ErrorKind.INVALID, f"{name}: give a finite number", param=name)
    return float(value)
