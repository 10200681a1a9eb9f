"""A page that follows a run, without a browser: it asks the server what the page's scripts ask, when they ask it.

Invariant: the curves it asks for and how long it rests are read from the scripts themselves; as it draws nothing, it
rests shorter than a browser, and costs the server more.
"""

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import Final
from urllib.parse import urlencode, urlsplit

_STATIC: Final = files("turnwise.studio") / "static"
_HEADERS: Final = {
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36",
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate, br, zstd",
    "Accept-Language": "en-GB,en;q=0.9",
    "Sec-Fetch-Site": "same-origin",
    "Sec-Fetch-Mode": "cors",
    "Sec-Fetch-Dest": "empty",
}
"""A browser's, which the server has to parse."""


def key_curves() -> list[str]:
    """The metrics that the page draws at first."""
    return list(dict.fromkeys(re.findall(r'"(\w+/\w+)"', (_STATIC / "curves.js").read_text(encoding="utf-8"))))


def rests() -> tuple[float, float, float]:
    """The least and the most seconds between two requests, and how much longer than an answer takes."""
    found = re.search(r"LEAST_WAIT = (\d+), MOST_WAIT = (\d+), RESTS = (\d+)", (_STATIC / "api.js").read_text())
    assert found is not None, "api.js says how long a page rests"
    return int(found[1]) / 1000, int(found[2]) / 1000, float(found[3])


class Page:
    """The curves of one run, kept up to date until it is closed."""

    def __init__(self, url: str, token: str, run_id: str) -> None:
        self._address = urlsplit(url).netloc
        self._headers = {**_HEADERS, "Authorization": f"Bearer {token}"}
        self._path = f"/api/runs/{run_id}"
        self._mark, self.refreshes = "", 0
        self._changed, self._closed = threading.Event(), threading.Event()
        self._asking = http.client.HTTPConnection(self._address, timeout=60)
        self._events = http.client.HTTPConnection(self._address, timeout=60)
        self._events.request("GET", f"/api/events?run={run_id}", headers=self._headers)
        self._stream = self._events.getresponse()
        known = {metric["name"] for metric in json.loads(self._get(self._path))["metrics"]}
        self._names = [name for name in key_curves() if name in known]
        self._refresh()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._listen, self._follow)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closed.set()
        self._changed.set()
        with suppress(OSError):
            assert self._events.sock is not None
            self._events.sock.shutdown(2)
        for thread in self._threads:
            thread.join()
        self._events.close()
        self._asking.close()

    def _listen(self) -> None:
        with suppress(OSError, http.client.HTTPException):
            while line := self._stream.readline():
                if line.startswith(b"event:"):
                    self._changed.set()

    def _follow(self) -> None:
        least, most, times = rests()
        wait = least
        while True:
            self._changed.wait()
            self._changed.clear()
            if self._closed.wait(wait):
                return
            wait = min(most, max(least, times * self._refresh()))

    def _refresh(self) -> float:
        began = time.perf_counter()
        query = urlencode([*(("name", name) for name in self._names), ("since", self._mark)])
        self._mark = json.loads(self._get(f"{self._path}/series?{query}"))["mark"]
        self.refreshes += 1
        return time.perf_counter() - began

    def _get(self, path: str) -> bytes:
        try:
            self._asking.request("GET", path, headers=self._headers)
            answer = self._asking.getresponse()
        except ConnectionError:  # the server closes what was silent for some seconds; a browser connects again, too
            self._asking.close()
            self._asking.request("GET", path, headers=self._headers)
            answer = self._asking.getresponse()
        body = answer.read()
        assert answer.status == 200, (path, answer.status, body[:200])
        return body


@contextmanager
def following(url: str, token: str, run_id: str) -> Iterator[Page]:
    page = Page(url, token, run_id)
    try:
        yield page
    finally:
        page.close()
