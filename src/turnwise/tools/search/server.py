"""`turnwise serve-search`: an index behind HTTP, with the requests that public search-agent recipes make.

    POST /retrieve  {"queries": ["..."], "topk": 5, "return_scores": true}
    GET  /health

Invariant: every well-formed request is answered in JSON, mistakes with `{"error": "..."}`; requests that wait together
are searched together; on shutdown, those in flight are answered first, within a bounded time.
"""

import asyncio
import json
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnwise.errors import RunError
from turnwise.http_server import listen, make_server
from turnwise.tools.search.retrieval import Hit, Index, write_contents

try:
    import uvicorn as uvicorn  # which `make_server` needs
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError as missing:
    raise RunError(f"the search server needs {missing.name}: pip install 'turnwise[serve]'") from None

_logger = logging.getLogger(__name__)
_MAX_BYTES: Final = 16 * 2**20
_MAX_QUERIES: Final = 4096
_MAX_HITS: Final = 1000
_MAX_RESULTS: Final = 100_000
"""Queries times hits of one request, and of those that are searched together: some 60 MB."""
_READ_SECONDS: Final = 30.0
"""For a request to arrive whole."""
_DRAIN_SECONDS: Final = 10
"""For requests in flight to be answered after a stop."""
_EXAMPLE: Final = '{"queries": ["..."], "topk": 3, "return_scores": true}'


class _Retrieve(BaseModel):
    """A request; other keys are ignored, since clients of other services send some of their own."""

    model_config = ConfigDict(strict=True, frozen=True)

    queries: list[str] = Field(max_length=_MAX_QUERIES)
    topk: int | None = Field(default=None, ge=1, le=_MAX_HITS)
    return_scores: bool = False


class _Json(Response):
    media_type = "application/json; charset=utf-8"

    def render(self, content: object) -> bytes:
        return json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pending:
    queries: Sequence[str]
    k: int
    found: asyncio.Future[list[list[Hit]]]


class _Batcher:
    """Asks the index once for all requests that wait; those that come meanwhile are the next batch."""

    def __init__(self, index: Index) -> None:
        self.waiting: list[_Pending] = []
        self._index = index
        self._searching = asyncio.Lock()

    async def find(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        pending = _Pending(queries=queries, k=k, found=asyncio.get_running_loop().create_future())
        self.waiting.append(pending)
        async with self._searching:
            if not pending.found.done():
                batch, self.waiting = self.waiting, []
                for k in dict.fromkeys(one.k for one in batch):
                    for share in _shares([one for one in batch if one.k == k]):
                        await self._search(share, k)
        return await pending.found

    async def _search(self, batch: Sequence[_Pending], k: int) -> None:
        queries = [query for one in batch for query in one.queries]
        try:
            hits = await asyncio.to_thread(self._index.query, queries, k)
            assert len(hits) == len(queries), "an index answers every query"
        except Exception as error:  # noqa: BLE001 - raised to each request of the batch; the next may fare better
            for one in batch:
                one.found.set_exception(error)
            return
        for one in batch:
            one.found.set_result(hits[: len(one.queries)])
            hits = hits[len(one.queries) :]


def _shares(batch: Sequence[_Pending]) -> Iterator[list[_Pending]]:
    """The requests in order, as many at a time as memory is meant for."""
    share: list[_Pending] = []
    results = 0
    for one in batch:
        asked = len(one.queries) * one.k
        if share and results + asked > _MAX_RESULTS:
            yield share
            share, results = [], 0
        share.append(one)
        results += asked
    if share:
        yield share


class SearchServer:
    """`SearchServer(index, port=8000).serve()`; port 0 takes any free one."""

    def __init__(self, index: Index, *, host: str = "127.0.0.1", port: int = 8000, topk: int = 3) -> None:
        """Listens, but answers nothing until `serve`; `topk` is for requests that name none."""
        self._socket, self.url = listen(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.batcher = _Batcher(index)
        self._passages = len(index.passages)
        self._topk = topk
        app = Starlette(
            routes=[
                Route("/retrieve", self._retrieve, methods=["POST"]),
                Route("/retrieve/", self._retrieve, methods=["POST"]),
                Route("/health", self._health, methods=["GET"]),
            ],
            exception_handlers={HTTPException: _refuse},
        )
        self._server = make_server(app, drain_seconds=_DRAIN_SECONDS)

    def serve(self) -> None:
        """Answers until `stop` is called or, in the main thread, SIGINT or SIGTERM comes."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Makes `serve` answer what is in flight and return; from any thread."""
        self._server.should_exit = True

    async def _health(self, request: Request) -> Response:
        return _Json({"status": "ok", "passages": self._passages})

    async def _retrieve(self, request: Request) -> Response:
        asked = _parse(await _read_body(request))
        k = asked.topk or self._topk
        if len(asked.queries) * k > _MAX_RESULTS:
            raise HTTPException(
                413, f"{len(asked.queries)} queries x topk {k} are more than {_MAX_RESULTS} results: send fewer at once"
            )
        try:
            found = await self.batcher.find(asked.queries, k)
        except Exception as error:  # the boundary: the client reads what the index raised
            _logger.warning("a search failed", exc_info=True)
            raise HTTPException(500, f"the search failed: {error}") from None
        show = _with_score if asked.return_scores else _document
        return _Json({"result": [[show(hit) for hit in hits] for hits in found]})


def serve_search(server: SearchServer, ready: Callable[[str], None]) -> None:
    """Serves until SIGINT or SIGTERM, then answers what is in flight; `ready` is called with the address."""
    # uvicorn raises the signal again once it has stopped; with no handler the process would die of it.
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ready(server.url)
        server.serve()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


async def _read_body(request: Request) -> bytes:
    body = b""
    too_long = HTTPException(413, f"the request has more than {_MAX_BYTES} bytes: send fewer queries at once")
    if _declared(request) > _MAX_BYTES:
        raise too_long
    try:
        async with asyncio.timeout(_READ_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise too_long
    except TimeoutError:
        raise HTTPException(408, f"the request was incomplete after {_READ_SECONDS:g} seconds") from None
    return body


def _declared(request: Request) -> int:
    """The length that a request claims; any of more digits than Python reads is too long."""
    digits = request.headers.get("Content-Length", "0")
    return int(digits) if len(digits) < 20 and digits.isdecimal() else _MAX_BYTES + 1


def _parse(body: bytes) -> _Retrieve:
    try:
        return _Retrieve.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the request"
        raise HTTPException(400, f"{where}: {first['msg']}; send {_EXAMPLE}") from None


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these alone"
    message = error.detail
    if error.status_code == 404:
        message = f"there is nothing at {request.url.path}; POST to /retrieve, or GET /health"
    elif error.status_code == 405:
        message = f"Unsupported method {request.method}: POST to /retrieve, or GET /health"
    return _Json({"error": message}, status_code=error.status_code, headers=error.headers)


def _document(hit: Hit) -> dict[str, object]:
    return {"id": hit.passage.id, "contents": write_contents(hit.passage)}


def _with_score(hit: Hit) -> dict[str, object]:
    return {"document": _document(hit), "score": hit.score}
