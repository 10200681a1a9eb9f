"""`turnwise serve-search`: an index behind HTTP, with the requests that public search-agent recipes make.

    POST /retrieve  {"queries": ["..."], "topk": 5, "return_scores": true}
    GET  /health

Invariant: every request is answered in JSON, mistakes with `{"error": "..."}`; requests that wait together are searched
together; on shutdown, those in flight are answered first.
"""

import json
import logging
import queue
import signal
import socketserver
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import FrameType

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnwise.errors import RunError
from turnwise.tools.search.retrieval import Hit, Index, write_contents

_logger = logging.getLogger(__name__)
_MOST_BYTES = 16 * 2**20
_MOST_QUERIES = 4096
_MOST_HITS = 1000
_IDLE_SECONDS = 30.0


class _Request(BaseModel):
    """Keys that are not listed are passed over: clients of other services send some of their own."""

    model_config = ConfigDict(strict=True, frozen=True)

    queries: list[str] = Field(max_length=_MOST_QUERIES)
    topk: int | None = Field(default=None, ge=1, le=_MOST_HITS)
    return_scores: bool = False


class _RefusedError(Exception):
    """A request that cannot be answered as it is."""

    def __init__(self, status: HTTPStatus, words: str) -> None:
        super().__init__(words)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Asked:
    queries: Sequence[str]
    k: int
    found: Future[list[list[Hit]]] = field(default_factory=Future)


class _Desk:
    """One thread that takes all that waits and asks the index once for each number of hits wanted."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="turnwise-search", daemon=True)
        self._thread.start()

    def find(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        asked = _Asked(queries=queries, k=k)
        self._asked.put(asked)
        return asked.found.result()

    def close(self) -> None:
        """Answers what was asked before, then ends."""
        self._asked.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._asked.get()) is not None:
            by_k: dict[int, list[_Asked]] = {first.k: [first]}
            ending = False
            while not self._asked.empty() and not ending:
                asked = self._asked.get()
                ending = asked is None
                if asked is not None:
                    by_k.setdefault(asked.k, []).append(asked)
            for k, together in by_k.items():
                self._answer(together, k)
            if ending:
                return

    def _answer(self, together: Sequence[_Asked], k: int) -> None:
        try:
            hits = iter(self._index.query([query for asked in together for query in asked.queries], k))
            for asked in together:
                asked.found.set_result([next(hits) for _ in asked.queries])
        except Exception as error:  # noqa: BLE001 - it goes to those who asked; the next ones may fare better
            for asked in together:
                if not asked.found.done():
                    asked.found.set_exception(error)


class SearchServer(socketserver.ThreadingTCPServer):
    """`with SearchServer(index, port=8000) as server: server.serve_forever()`; port 0 takes any free one."""

    allow_reuse_address = True
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, index: Index, *, host: str = "127.0.0.1", port: int = 8000, topk: int = 3) -> None:
        """Listens, but answers nothing until `serve_forever`; `topk` is for requests that do not say."""
        self.topk = topk
        self.passages = len(index.passages)
        self.desk = _Desk(index)
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            said = getattr(error, "strerror", None) or error
            raise RunError(f"cannot listen at {host}:{port} ({said}); choose another by --host and --port") from None

    @property
    def url(self) -> str:
        """Where it listens: `http://127.0.0.1:8000`."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def server_close(self) -> None:
        super().server_close()  # waits for the threads of requests in flight
        self.desk.close()

    def handle_error(self, request: object, client_address: object) -> None:
        _logger.info("the connection of %s broke", client_address, exc_info=True)


def serve_search(server: SearchServer, ready: Callable[[str], None]) -> None:
    """Serves until interrupted or terminated, then answers what is in flight; `ready` is told the address."""

    def stop(number: int, frame: FrameType | None) -> None:
        # shutdown waits for serve_forever, which this very thread is in.
        threading.Thread(target=server.shutdown, daemon=True).start()

    handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with server:
            ready(server.url)
            server.serve_forever(poll_interval=0.1)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _Handler(BaseHTTPRequestHandler):
    server: SearchServer
    server_version = "turnwise"
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS

    def do_POST(self) -> None:
        self._answer(self._retrieve)

    def do_GET(self) -> None:
        self._answer(self._tell)

    def _answer(self, work: Callable[[], Mapping[str, object]]) -> None:
        status = HTTPStatus.OK
        try:
            answer = work()
        except _RefusedError as error:
            status, answer = error.status, {"error": str(error)}
        self._send(status, answer)

    def _tell(self) -> Mapping[str, object]:
        if self.path.partition("?")[0] == "/health":
            return {"status": "ok", "passages": self.server.passages}
        raise _lost(self.path)

    def _retrieve(self) -> Mapping[str, object]:
        body = self._read_body()
        if self.path.partition("?")[0].rstrip("/") != "/retrieve":
            raise _lost(self.path)
        request = _read_request(body)
        try:
            found = self.server.desk.find(request.queries, request.topk or self.server.topk)
        except Exception as error:  # the boundary: whatever an index raises is told to the client
            _logger.warning("a search failed", exc_info=True)
            raise _RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, f"the search failed: {error}") from None
        show = _with_score if request.return_scores else _document
        return {"result": [[show(hit) for hit in hits] for hits in found]}

    def _read_body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, "the request does not say its Content-Length")
        if int(length) > _MOST_BYTES:
            words = f"the request has {length} bytes; at most {_MOST_BYTES} are read: send fewer queries at once"
            raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, words)
        return self.rfile.read(int(length))

    def _send(self, status: HTTPStatus, answer: Mapping[str, object]) -> None:
        body = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class finds wrong with a request, in JSON as well."""
        status = HTTPStatus(code)
        self._send(status, {"error": message or status.phrase})

    def log_message(self, format: str, *args: object) -> None:
        _logger.debug(format, *args)


def _read_request(body: bytes) -> _Request:
    try:
        return _Request.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the request"
        example = '{"queries": ["..."], "topk": 3, "return_scores": true}'
        raise _RefusedError(HTTPStatus.BAD_REQUEST, f"{where}: {first['msg']}; send {example}") from None


def _lost(path: str) -> _RefusedError:
    return _RefusedError(HTTPStatus.NOT_FOUND, f"there is nothing at {path}; POST to /retrieve, or GET /health")


def _document(hit: Hit) -> dict[str, object]:
    return {"id": hit.passage.id, "contents": write_contents(hit.passage)}


def _with_score(hit: Hit) -> dict[str, object]:
    return {"document": _document(hit), "score": hit.score}
