"""The client of a search service: it waits, asks again, gives up in bounded time, and says so to the agent."""

import asyncio
import json
import logging
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from turnwise.errors import ToolError
from turnwise.tools.search.http_index import HttpIndex
from turnwise.tools.search.retrieval import Hit, Index, Passage, SearchDownError
from turnwise.tools.search.tool import SEARCH_DOWN, search_tool

OSLO = {"document": {"id": "p3", "contents": '"Oslo"\nThe capital — ø.'}, "score": 2.5}
OSLO_HIT = Hit(passage=Passage(id="p3", title="Oslo", text="The capital — ø."), score=2.5)


def result(*hits_of_queries):
    return 200, json.dumps({"result": list(hits_of_queries)})


@contextmanager
def service(*answers):
    """A service that gives these answers in turn, the last one for ever; yields its address and what it was asked."""
    asked = []
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, body))
            answer = left.pop(0) if len(left) > 1 else left[0]
            status, text = answer(body) if callable(answer) else answer
            raw = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def impatient(url, **options):
    return HttpIndex(url, **{"timeout": 0.3, "attempts": 3, "backoff": 0.01, **options})


def test_it_asks_as_public_recipes_do_and_reads_their_answers():
    with service(result([OSLO, OSLO], [])) as (url, asked):
        index = HttpIndex(url)
        assert isinstance(index, Index)
        assert index.query(["Oslo ø", "x"], 1) == [[OSLO_HIT], []]
        assert asked == [("/retrieve", {"queries": ["Oslo ø", "x"], "topk": 1, "return_scores": True})]
        assert asyncio.run(HttpIndex(f"{url}/v1/find?a=b").aquery(["a", "b"], 2))[0] == [OSLO_HIT, OSLO_HIT]
        assert asked[1][0] == "/v1/find?a=b"
        assert HttpIndex(url).query([], 3) == []
        assert len(asked) == 2


@pytest.mark.parametrize(
    ("entry", "passage", "score"),
    [
        ({"id": 3, "contents": "Oslo\nA city."}, Passage(id="3", title="Oslo", text="A city."), 1.0),
        ({"document": {"title": "Oslo", "text": "A city."}}, Passage(id="", title="Oslo", text="A city."), 1.0),
        ({"document": "Oslo\nA city.", "score": 3}, Passage(id="", title="Oslo", text="A city."), 3.0),
        ({"id": "3", "contents": "A city."}, Passage(id="3", title="A city.", text="A city."), 1.0),
        ({"id": "3", "text": "A city.", "score": None}, Passage(id="3", title="A city.", text="A city."), 1.0),
    ],
)
def test_answers_of_other_shapes_are_read_too(entry, passage, score):
    with service(result([entry])) as (url, _):
        assert HttpIndex(url).query(["x"], 5) == [[Hit(passage=passage, score=score)]]


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_a_service_that_stumbles_is_asked_again(status):
    with service((status, "busy"), (status, ""), result([OSLO])) as (url, asked):
        index = impatient(url)
        assert index.query(["x"], 5) == [[OSLO_HIT]]
        assert (len(asked), index.requests, index.failures) == (3, 3, 0)


def test_the_waits_between_attempts_double(monkeypatch):
    waits = []

    async def note(seconds):
        waits.append(seconds)

    # In this module alone: servers of other tests may sleep in threads of theirs.
    monkeypatch.setattr("turnwise.http.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": note}))
    monkeypatch.setattr("turnwise.http._jitter.uniform", lambda low, high: high)
    index = HttpIndex(f"http://127.0.0.1:{free_port()}", attempts=7, backoff=0.5, timeout=1)
    with pytest.raises(SearchDownError, match="refused"):
        index.query(["x"], 5)
    assert waits == [0.5, 1, 2, 4, 8, 8]
    assert index.max_seconds == 7 * 1 + sum(waits) + 1


def test_a_dead_service_is_counted_told_once_and_asked_once_until_it_is_back(caplog):
    port = free_port()
    index = impatient(f"http://127.0.0.1:{port}")
    with caplog.at_level(logging.WARNING):
        for requests in (3, 4, 5):
            with pytest.raises(SearchDownError):
                index.query(["x", "y"], 5)
            assert index.requests == requests
    assert index.failures == 6
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        f"http://127.0.0.1:{port}/retrieve does not answer"
    ]
    with service((500, ""), result([OSLO])) as (url, _):
        index._client.url = impatient(url)._client.url
        with pytest.raises(SearchDownError):
            index.query(["x"], 5)
        assert index.query(["x"], 5) == [[OSLO_HIT]]
        assert "answers again" in caplog.text
        assert index.failures == 7


def test_a_slow_service_is_given_up():
    release = threading.Event()

    def late(body):
        release.wait(20)
        return result([OSLO])

    with service(late) as (url, asked):
        index = impatient(url, timeout=0.1)
        start = time.monotonic()
        with pytest.raises(SearchDownError, match=r"no answer in 0\.1 seconds"):
            asyncio.run(index.aquery(["x"], 5))
        assert time.monotonic() - start < index.max_seconds + 5
        assert index.failures == 1
        assert len(asked) == 3
        release.set()


@pytest.mark.parametrize("head", ["HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", "HTTP/1.0 200 OK\r\n\r\n"])
def test_a_service_that_drips_for_ever_is_given_up(head):
    """Each byte comes in time; the whole does not."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip():
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(head.encode())
                while not stop.wait(0.02):
                    try:
                        connection.sendall(b" ")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        index = impatient(f"http://127.0.0.1:{listener.getsockname()[1]}", attempts=1)
        with pytest.raises(SearchDownError, match=r"its answer was incomplete after 0\.3 seconds"):
            index.query(["x"], 5)
        stop.set()
        thread.join()


def test_an_answer_cut_off_is_asked_for_again():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def half():
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"result": [')

        thread = threading.Thread(target=half)
        thread.start()
        index = impatient(f"http://127.0.0.1:{listener.getsockname()[1]}", attempts=2)
        with pytest.raises(SearchDownError, match="before its answer was complete"):
            index.query(["x"], 5)
        thread.join()
        assert index.requests == 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((404, '{"error": "nothing here"}'), 'status 404: {"error": "nothing here"}'),
        ((200, "<html>"), "its answer is not JSON: <html>"),
        ((200, "[]"), "no 'result' with a list for each of the 1 queries"),
        ((200, '{"result": {}}'), "no 'result' with a list"),
        ((200, '{"result": []}'), "no 'result' with a list"),
        ((200, '{"result": [null]}'), "no 'result' with a list"),
        (result([{"document": {"id": 1}}]), "without 'contents' or 'text'"),
        (result([7]), "without 'contents' or 'text'"),
        (result([{"title": 7, "text": "x"}]), "without 'contents' or 'text'"),
        (result([{"text": "x", "score": "high"}]), "a score that is not a number"),
        ((200, '{"result": [[{"text": "x", "score": NaN}]]}'), "a score that is not a number"),
    ],
)
def test_an_answer_that_cannot_be_read_is_not_asked_for_again(answer, words):
    with service(answer) as (url, asked):
        index = impatient(url)
        with pytest.raises(SearchDownError) as raised:
            index.query(["x"], 5)
        assert words in str(raised.value)
        assert (len(asked), index.failures) == (1, 1)


def call(tool, *queries):
    async def main():
        return await asyncio.gather(*(tool.call(json.dumps({"query": query})) for query in queries))

    return asyncio.run(main())


def test_the_tool_asks_once_for_all_that_search_at_the_same_moment():
    def echo(body):
        return result(*([{"id": query, "contents": f"{query}\ntext"}] for query in body["queries"]))

    with service(echo) as (url, asked):
        tool = search_tool(HttpIndex(url), k=2)
        results = call(tool, "a", "b", "ø")
        assert [result.content for result in results] == ["[1] a: text", "[1] b: text", "[1] ø: text"]
        assert [body["queries"] for _, body in asked] == [["a", "b", "ø"]]
        assert len(call(tool, *map(str, range(100)))) == 100
        assert sorted(len(body["queries"]) for _, body in asked[1:]) == [36, 64]


def test_a_dead_service_is_an_observation_to_each_who_searched():
    index = impatient(f"http://127.0.0.1:{free_port()}")
    tool = search_tool(index, k=2)
    results = call(tool, "a", "b")
    assert [(result.content, result.ok) for result in results] == [(SEARCH_DOWN, False)] * 2
    assert index.failures == 2
    assert tool.timeout > index.max_seconds, "the tool does not give up before the index has"


def test_a_search_that_waits_holds_up_nothing_else():
    with service((500, "")) as (url, _):
        tool = search_tool(impatient(url, attempts=2, backoff=0.3), k=2)

        async def main():
            searching = asyncio.ensure_future(tool.call('{"query": "x"}'))
            ticks = 0
            while not searching.done():
                await asyncio.sleep(0.01)
                ticks += 1
            return ticks

        assert asyncio.run(main()) > 5


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://x:y", "http://x:99999", ""])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ToolError, match=r"is not the address of a search service; write e\.g\. http://127"):
        HttpIndex(url)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"attempts": 0}, {"backoff": -1}])
def test_impossible_patience_is_refused(options):
    with pytest.raises(ToolError, match="a search needs time"):
        HttpIndex("http://x", **options)


def test_asking_for_nothing_is_refused():
    with pytest.raises(ToolError, match="k is 0"):
        HttpIndex("http://127.0.0.1:1").query(["x"], 0)
