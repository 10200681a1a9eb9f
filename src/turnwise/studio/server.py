"""The studio's HTTP server: JSON for the page, the page's own files, and events.

Invariant: every answer is either what was asked for or one line that says why not; a run that is damaged answers with
what can be read of it.
"""

import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Final

from turnwise.errors import ConfigError, RunError, TurnwiseError

try:
    import uvicorn as uvicorn  # which `make_server` needs
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import FileResponse, Response, StreamingResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
    from starlette.types import ASGIApp
except ImportError as missing:
    raise RunError(f"the studio needs {missing.name}: pip install 'turnwise[studio]'") from None

from turnwise.http_server import listen, make_server
from turnwise.runs.files import finite
from turnwise.studio.answers import Answers
from turnwise.studio.events import watch
from turnwise.studio.guard import Guard
from turnwise.studio.library import Library
from turnwise.studio.shelf import Shelf

_STATIC: Final = Path(str(files("turnwise.studio") / "static"))
_MAX_BODY: Final = 2**20
_DRAIN_SECONDS: Final = 3


def make_app(
    library: Library, *, token: str | None, host: str, port: int, stopping: Callable[[], bool] = lambda: False
) -> ASGIApp:
    """The studio of a library as an ASGI app, guarded."""
    answers = Answers(Shelf(library))

    async def events(request: Request) -> Response:
        ids = request.query_params.getlist("run")
        stream: AsyncIterator[bytes] = watch(library, ids, stopping)
        return StreamingResponse(stream, media_type="text/event-stream")

    routes: list[Route | Mount] = [
        Route("/", lambda request: FileResponse(_STATIC / "index.html")),
        Route("/favicon.ico", lambda request: FileResponse(_STATIC / "icon.svg", media_type="image/svg+xml")),
        Mount("/static", StaticFiles(directory=_STATIC)),
        Route("/api/events", events),
        Route("/api/runs", partial(_answer, lambda request: answers.runs())),
    ]
    asked: Mapping[str, Callable[[Request], object]] = {
        "": lambda request: answers.run(_id(request)),
        "/series": lambda request: answers.series(
            _id(request), request.query_params.getlist("name"), request.query_params.get("since", "")
        ),
        "/ledger": lambda request: answers.ledger(_id(request)),
        "/health": lambda request: answers.health(_id(request)),
        "/trajectories": lambda request: answers.trajectories(_id(request), dict(request.query_params)),
        "/trajectory/{name:path}": lambda request: answers.trajectory(_id(request), request.path_params["name"]),
        "/compare": lambda request: answers.compare(_id(request), request.query_params.getlist("name")),
    }
    routes += [Route(f"/api/runs/{{run}}{path}", partial(_answer, ask)) for path, ask in asked.items()]

    async def branch(request: Request) -> Response:
        body = await request.body()
        return await run_in_threadpool(_answer, lambda request: answers.branch(_id(request), _read(body)), request)

    routes += [
        Route("/api/runs/{run}/branch", branch, methods=["POST"]),
        Route("/api/branches/{branch}", partial(_answer, lambda r: answers.branched(str(r.path_params["branch"])))),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _not_found, Exception: _failed})
    return Guard(app, token=token, host=host, port=port)


def _read(body: bytes) -> Mapping[str, object]:
    if len(body) > _MAX_BODY:
        raise ConfigError(f"the request has more than {_MAX_BODY} bytes")
    try:
        data = json.loads(body)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise ConfigError("the body is not a JSON object")
    return data


def _id(request: Request) -> str:
    return str(request.path_params["run"])


def _answer(ask: Callable[[Request], object], request: Request) -> Response:
    """Runs in a thread, as Starlette does with plain functions."""
    try:
        return _json(ask(request))
    except TurnwiseError as error:
        return _json({"error": str(error)}, 404 if isinstance(error, RunError) else 400)


def _json(content: object, status: int = 200) -> Response:
    try:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    except ValueError:  # NaN or infinity somewhere: rare, and a walk through all of it finds where
        text = json.dumps(finite(content), ensure_ascii=False, allow_nan=False)
    body = text.encode("utf-8", "replace")
    return Response(body, status_code=status, media_type="application/json")


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these alone"
    return _json({"error": f"there is nothing to {request.method} at {request.url.path[:200]}"}, error.status_code)


async def _failed(request: Request, error: Exception) -> Response:
    return _json({"error": f"the studio failed: {type(error).__name__}: {error}"}, 500)


class Studio:
    """`Studio([Path("runs")], port=0)`: listens at once, and answers while it runs; port 0 takes any free one."""

    def __init__(
        self, folders: Sequence[Path], *, host: str = "127.0.0.1", port: int = 0, token: str | None = None
    ) -> None:
        library = Library(folders)
        self._socket, _ = listen(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.token = token
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}/"
        app = make_app(library, token=token, host=host, port=self.port, stopping=lambda: self._server.should_exit)
        self._server = make_server(app, drain_seconds=_DRAIN_SECONDS)

    @property
    def address(self) -> str:
        """Where to open it, with the token."""
        return f"{self.url}?token={self.token}" if self.token else self.url

    def run(self) -> None:
        """Serves until it is interrupted or stopped."""
        with suppress(KeyboardInterrupt):
            self._server.run([self._socket])

    def stop(self) -> None:
        """Ends `run`; from any thread."""
        self._server.should_exit = True

    @property
    def started(self) -> bool:
        return self._server.started


def make_token() -> str:
    """A token that none can guess."""
    return secrets.token_urlsafe(24)
