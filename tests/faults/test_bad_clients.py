"""Clients of the search server and of the gateway that send too much, too slowly, or what no server expects."""

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time

import pytest

from search_servers import serving
from turnwise import http_limits
from turnwise.gateway.server import Gateway
from turnwise.tools.search import server as search
from turnwise.tools.search.bm25 import Bm25Index
from turnwise.tools.search.retrieval import Hit, Passage

PASSAGES = [Passage(id=str(number), title=f"Title {number}", text="word " * 5) for number in range(3)]


def ask(port: int, body: object) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/retrieve", json.dumps(body))
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def say(port: int, text: bytes) -> bytes:
    """Sends bytes as they are and reads until the server hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(text)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := client.recv(65536):
            answer += chunk
    return answer


HEADS = {
    "5,000 digits": b"Content-Length: " + b"9" * 5000,
    "negative": b"Content-Length: -1",
    "two lengths": b"Content-Length: 1\r\nContent-Length: 2",
    "no number": b"Content-Length: many",
    "other digits": "Content-Length: ٣".encode(),
    "too long": b"Content-Length: 99999999999",
}


@pytest.mark.parametrize("head", HEADS)
def test_a_length_that_cannot_be_is_refused(head):
    with serving(Bm25Index(PASSAGES)) as server:
        answer = say(server.port, b"POST /retrieve HTTP/1.1\r\nHost: x\r\n" + HEADS[head] + b"\r\n\r\n{}")
        assert answer.split(b" ")[1] in (b"400", b"413"), answer
        assert b"Traceback" not in answer
        assert ask(server.port, {"queries": ["word"]})[0] == 200


class Counting:
    """An index that counts how many hits it was asked for at once."""

    passages = PASSAGES

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.may_go = threading.Event()
        self.busy = threading.Event()

    def query(self, queries, k):
        self.asked.append(len(queries) * k)
        self.busy.set()
        self.may_go.wait(20)
        hit = Hit(passage=PASSAGES[0], score=1.0)
        return [[hit] * min(k, 3) for _ in queries]


def test_no_request_asks_for_more_than_memory_is_meant_for():
    index = Counting()
    index.may_go.set()
    with serving(index) as server:
        status, answer = ask(server.port, {"queries": ["q"] * 4096, "topk": 1000})
        assert status == 413
        assert answer == {"error": "4096 queries x topk 1000 are more than 100000 results: send fewer at once"}
        assert ask(server.port, {"queries": ["q"] * 100, "topk": 1000})[0] == 200
    assert max(index.asked) <= search._MAX_RESULTS


def test_requests_that_wait_together_are_searched_in_shares():
    """Each is within the limit, all together are not."""
    index = Counting()
    with serving(index) as server:
        clients = [
            threading.Thread(target=ask, args=(server.port, {"queries": ["q"] * 60, "topk": 1000})) for _ in range(6)
        ]
        clients[0].start()
        index.busy.wait(20)
        for client in clients[1:]:
            client.start()
        while len(server.batcher.waiting) < 5:
            time.sleep(0.01)
        index.may_go.set()
        for client in clients:
            client.join()
    assert index.asked == [60_000] * 6


def test_clients_that_never_finish_a_request_are_hung_up_on(monkeypatch):
    """Slow-loris: a few bytes of a head, and one more now and then; others are served meanwhile and afterwards."""
    monkeypatch.setattr(http_limits, "HEAD_SECONDS", 1.0)
    with serving(Bm25Index(PASSAGES)) as server:
        start = time.monotonic()
        slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
        for client in slow:
            client.sendall(b"POST /retrieve HTTP/1.1\r\nX-A: ")
        assert ask(server.port, {"queries": ["word"]})[0] == 200
        open_ones = list(slow)
        while open_ones and time.monotonic() - start < 15:
            time.sleep(0.1)
            for client in list(open_ones):
                try:
                    client.sendall(b"a")
                    client.setblocking(False)
                    if client.recv(1) == b"":
                        open_ones.remove(client)
                except BlockingIOError:
                    pass
                except OSError:
                    open_ones.remove(client)
                finally:
                    client.setblocking(True)
        assert not open_ones
        for client in slow:
            client.close()
        assert ask(server.port, {"queries": ["word"]})[0] == 200


def test_a_connection_that_is_used_again_may_pause_and_a_long_search_is_not_cut(monkeypatch):
    monkeypatch.setattr(http_limits, "HEAD_SECONDS", 0.5)
    index = Counting()
    with serving(index) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        for wait in (1.0, 0.0, 0.0):
            threading.Timer(wait, index.may_go.set).start()
            connection.request("POST", "/retrieve", json.dumps({"queries": ["q"]}))
            assert json.loads(connection.getresponse().read())["result"]
            time.sleep(0.7)
        connection.close()


def test_the_gateway_hangs_up_on_slow_heads_too(monkeypatch):
    monkeypatch.setattr(http_limits, "HEAD_SECONDS", 0.5)
    with Gateway().running() as gateway, socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nX-A: ")
        assert client.recv(1) == b""


DRIP = """
import signal, sys
from turnwise.tools.search import server
from turnwise.tools.search.bm25 import Bm25Index
from turnwise.tools.search.retrieval import Passage
server._DRAIN_SECONDS = 1
one = server.SearchServer(Bm25Index([Passage(id="a", title="a", text="a")]), port=0)
server.serve_search(one, lambda url: print(one.port, flush=True))
"""


def test_a_client_that_drips_does_not_keep_the_server_from_ending():
    with subprocess.Popen([sys.executable, "-c", DRIP], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{")
            stop = threading.Event()

            def drip() -> None:
                with contextlib.suppress(OSError):
                    while not stop.wait(0.1):
                        client.sendall(b" ")

            dripping = threading.Thread(target=drip)
            dripping.start()
            time.sleep(0.3)
            start = time.monotonic()
            process.terminate()
            try:
                assert process.wait(20) == 0
            finally:
                stop.set()
                dripping.join()
                process.kill()
            assert time.monotonic() - start < 8
