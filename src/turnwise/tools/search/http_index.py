"""`HttpIndex`: passages from a search service, asked as public search-agent recipes ask theirs.

    POST /retrieve  {"queries": ["..."], "topk": 5, "return_scores": true}
    {"result": [[{"document": {"id": "7", "contents": "Title\\ntext"}, "score": 12.3}, ...], ...]}

Invariant: every query gets its hits, or SearchDownError after a bounded time: nothing else is raised and nothing hangs.
"""

import functools
import http.client
import json
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import cast
from urllib.parse import SplitResult

from turnwise.errors import ToolError
from turnwise.tools.http import Reply, TooLongError, post, read_address
from turnwise.tools.running import TimedOutError, run_in_thread
from turnwise.tools.search.retrieval import Hit, Passage, SearchDownError, check_k, read_contents, title_from

_logger = logging.getLogger(__name__)
_LONGEST_WAIT = 8.0
_MOST_BYTES = 64 * 2**20


class _NoAnswerError(Exception):
    """Nothing came after all attempts, or something that would be the same however often one asks."""


class HttpIndex:
    """`HttpIndex("http://127.0.0.1:8000")`; connects directly, past any proxy of the environment."""

    def __init__(self, url: str, *, timeout: float = 10.0, attempts: int = 4, backoff: float = 0.5) -> None:
        """Asks nothing yet: a service may start after the run that needs it.

        Args:
            url: Of the service; without a path, `/retrieve` is added.
            timeout: Seconds until an attempt is given up.
            attempts: How often a request is made, in all. While the service is known to be down, once.
            backoff: Seconds before the second attempt; each further wait is twice as long, up to 8 seconds.
        """
        self._url = _read_url(url)
        if not (timeout > 0 and attempts >= 1 and backoff >= 0):
            given = f"timeout={timeout}, attempts={attempts}, backoff={backoff}"
            raise ToolError(f"{given}: a search needs time, at least 1 attempt, and waits of 0 seconds or more")
        self._timeout = timeout
        waits = [min(backoff * 2**i, _LONGEST_WAIT) for i in range(attempts - 1)]
        self._waits = (*waits, None)
        self._lock = threading.Lock()
        self._down = False
        self.passages: tuple[Passage, ...] = ()
        self.requests = 0
        """How many were made, repeated ones included."""
        self.failures = 0
        """How many queries got no answer in the end."""
        self.patience = attempts * timeout + sum(waits) + 1.0
        """The seconds after which a query surely has its hits or its error."""

    async def aquery(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best `k` passages for each query, without holding up the event loop."""
        try:
            return cast(list[list[Hit]], await run_in_thread(functools.partial(self._find, queries, k), self.patience))
        except TimedOutError:
            raise self._fail(len(queries), f"no answer in {self.patience:g} seconds") from None
        except _NoAnswerError as error:
            raise self._fail(len(queries), str(error)) from None

    def query(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best `k` passages for each query, waiting for the service where it is slow or down."""
        try:
            return self._find(queries, k)
        except _NoAnswerError as error:
            raise self._fail(len(queries), str(error)) from None

    def _find(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        check_k(k)
        if not queries:
            return []
        for wait in (None,) if self._down else self._waits:
            try:
                found = self._ask(queries, k)
            except (OSError, http.client.HTTPException) as error:
                if wait is None:
                    raise _NoAnswerError(str(error) or type(error).__name__) from error
                time.sleep(wait)
            else:
                self._note_answer()
                return found
        raise AssertionError("the last attempt returns or raises")

    def _ask(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        with self._lock:
            self.requests += 1
        body = json.dumps({"queries": list(queries), "topk": k, "return_scores": True}).encode("utf-8", "replace")
        try:
            reply = post(self._url, body, timeout=self._timeout, most_bytes=_MOST_BYTES)
        except TooLongError as error:
            raise _NoAnswerError(str(error)) from error
        if reply.may_pass:
            raise ConnectionError(f"it answered with status {reply.status}{reply.quote()}")
        if reply.status != 200:
            raise _NoAnswerError(f"it answered with status {reply.status}{reply.quote()}")
        return _read_answer(reply, len(queries), k)

    def _note_answer(self) -> None:
        if self._down:
            self._down = False
            _logger.warning("%s answers again", self._url.geturl())

    def _fail(self, queries: int, problem: str) -> SearchDownError:
        with self._lock:
            self.failures += queries
            told, self._down = self._down, True
        if not told:
            _logger.warning("%s does not answer (%s); searches fail until it does", self._url.geturl(), problem)
        return SearchDownError(f"{self._url.geturl()}: {problem}")


def _read_url(url: str) -> SplitResult:
    parts = read_address(url)
    if parts is None:
        raise ToolError(f"'{url}' is not the address of a search service; write e.g. http://127.0.0.1:8000")
    return parts if parts.path.strip("/") else parts._replace(path="/retrieve")


def _read_answer(reply: Reply, queries: int, k: int) -> list[list[Hit]]:
    try:
        data = json.loads(reply.body)
    except ValueError:
        raise _NoAnswerError(f"its answer is not JSON{reply.quote()}") from None
    result = data.get("result") if isinstance(data, Mapping) else None
    if not isinstance(result, list) or len(result) != queries or not all(isinstance(hits, list) for hits in result):
        raise _NoAnswerError(f"its answer has no 'result' with a list for each of the {queries} queries")
    return [[_read_hit(entry, rank) for rank, entry in enumerate(hits[:k], 1)] for hits in result]


def _read_hit(entry: object, rank: int) -> Hit:
    """Services differ: with scores or without, `contents` or `title` and `text`."""
    outer = entry if isinstance(entry, Mapping) else {}
    inner = outer.get("document", outer)
    document = inner if isinstance(inner, Mapping) else {"contents": inner}
    contents, title, text = document.get("contents"), document.get("title") or "", document.get("text")
    if isinstance(contents, str):
        title, text = read_contents(contents)
    if not isinstance(text, str) or not isinstance(title, str):
        raise _NoAnswerError(f"it found something without 'contents' or 'text': {json.dumps(entry)[:120]}")
    score = outer.get("score")
    if score is None:
        score = 1.0 / rank
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise _NoAnswerError(f"it gave a score that is not a number: {json.dumps(score)[:40]}")
    passage = Passage(id=str(document.get("id", "")), title=title or title_from(text), text=text)
    return Hit(passage=passage, score=float(score))
