"""`HttpIndex`: passages from a search service, asked as public search-agent recipes ask theirs.

    POST /retrieve  {"queries": ["..."], "topk": 5, "return_scores": true}
    {"result": [[{"document": {"id": "7", "contents": "Title\\ntext"}, "score": 12.3}, ...], ...]}

Invariant: every query gets its hits, or SearchDownError after a bounded time: nothing else is raised and nothing hangs.
"""

import asyncio
import json
import logging
import math
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from turnwise.errors import ToolError
from turnwise.http import HttpClient, HttpError, RetryPolicy, parse_address, quote
from turnwise.tools.search.retrieval import Hit, Passage, SearchDownError, check_k, read_contents, title_from

_logger = logging.getLogger(__name__)
_MAX_BYTES = 64 * 2**20


class HttpIndex:
    """`HttpIndex("http://127.0.0.1:8000")`; proxies of the environment are used, except on this machine."""

    def __init__(self, url: str, *, timeout: float = 10.0, attempts: int = 4, backoff: float = 0.5) -> None:
        """Sends nothing yet: a service may start after the run that needs it.

        Args:
            url: Of the service; without a path, `/retrieve` is added.
            timeout: Seconds for one attempt.
            attempts: The most attempts for one request; a single one while the service is known to be down.
            backoff: Seconds before the second attempt; each further wait is twice as long, up to 8 seconds.
        """
        if not (timeout > 0 and attempts >= 1 and backoff >= 0):
            given = f"timeout={timeout}, attempts={attempts}, backoff={backoff}"
            raise ToolError(f"{given}: a search needs time, at least 1 attempt, and waits of 0 seconds or more")
        policy = RetryPolicy(timeout=timeout, attempts=attempts, backoff=backoff)
        self._client = HttpClient(_read_url(url), policy, max_bytes=_MAX_BYTES)
        self._lock = threading.Lock()
        self._down = False
        self.passages: tuple[Passage, ...] = ()
        self.failures = 0
        """Queries that got no answer in the end."""
        self.max_seconds = policy.max_seconds + 1.0
        """Seconds after which a query has its hits or its error."""

    @property
    def requests(self) -> int:
        """HTTP requests made, retries included."""
        return self._client.requests

    async def aquery(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best `k` passages for each query, retrying while the service is slow or down."""
        check_k(k)
        if not queries:
            return []
        request = {"queries": list(queries), "topk": k, "return_scores": True}
        try:
            async with asyncio.timeout(self.max_seconds):
                found = await self._client.post(
                    request, lambda body: _read_answer(body, len(queries), k), attempts=1 if self._down else None
                )
        except TimeoutError:
            raise self._fail(len(queries), f"no answer in {self.max_seconds:g} seconds") from None
        except HttpError as error:
            raise self._fail(len(queries), str(error)) from None
        if self._down:
            self._down = False
            _logger.warning("%s answers again", self._client.url)
        return found

    def query(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """`aquery` for callers that block: other threads, scripts."""
        with ThreadPoolExecutor(max_workers=1) as thread:  # this one's event loop, if it has one, is running
            return thread.submit(asyncio.run, self.aquery(queries, k)).result()

    def _fail(self, queries: int, problem: str) -> SearchDownError:
        with self._lock:
            self.failures += queries
            known, self._down = self._down, True
        if not known:
            _logger.warning("%s does not answer (%s); searches fail until it does", self._client.url, problem)
        return SearchDownError(f"{self._client.url}: {problem}")


class _UnreadableError(HttpError):
    """A reply in the wrong shape: the service would send the same again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, temporary=False)


def _read_url(url: str) -> str:
    parts = parse_address(url)
    if parts is None:
        raise ToolError(f"'{url}' is not the address of a search service; write e.g. http://127.0.0.1:8000")
    return (parts if parts.path.strip("/") else parts._replace(path="/retrieve")).geturl()


def _read_answer(body: bytes, queries: int, k: int) -> list[list[Hit]]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise _UnreadableError(f"its answer is not JSON{quote(body)}") from None
    result = data.get("result") if isinstance(data, Mapping) else None
    if not isinstance(result, list) or len(result) != queries or not all(isinstance(hits, list) for hits in result):
        raise _UnreadableError(f"its answer has no 'result' with a list for each of the {queries} queries")
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
        raise _UnreadableError(f"it found something without 'contents' or 'text': {json.dumps(entry)[:120]}")
    score = outer.get("score")
    if score is None:
        score = 1.0 / rank
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise _UnreadableError(f"it gave a score that is not a number: {json.dumps(score)[:40]}")
    passage = Passage(id=str(document.get("id", "")), title=title or title_from(text), text=text)
    return Hit(passage=passage, score=float(score))
