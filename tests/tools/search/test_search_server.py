"""`turnwise serve-search`: a real server on a free port, asked as clients ask it, and as they should not."""

import asyncio
import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from search_servers import serving
from turnwise.cli.main import main
from turnwise.errors import RunError
from turnwise.tools.search.bm25 import Bm25Index
from turnwise.tools.search.http_index import HttpIndex
from turnwise.tools.search.retrieval import Hit, Passage
from turnwise.tools.search.server import SearchServer
from turnwise.tools.search.tool import search_tool

PASSAGES = [
    Passage(id="a", title="Lumen", text="A company founded\nby Ada Brandt."),
    Passage(id="b", title="Ada Brandt", text="A chemist born in Oslo."),
    Passage(id="c", title="東京 Ærø", text="En ø i Østersøen."),
]


@pytest.fixture(scope="module")
def server():
    with serving(Bm25Index(PASSAGES)) as server:
        yield server


def send(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request(method, path, raw, headers or {})
    response = connection.getresponse()
    assert response.headers["Content-Type"] == "application/json; charset=utf-8"
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def test_the_answer_has_the_shape_that_recipes_read(server):
    asked = {"queries": ["chemist Ada Brandt", "zebra"], "topk": 1, "return_scores": True}
    (expected,) = Bm25Index(PASSAGES).query(["chemist Ada Brandt"], 1)[0]
    document = {"id": "b", "contents": "Ada Brandt\nA chemist born in Oslo."}
    assert send(server, "POST", "/retrieve", asked) == (
        200,
        {"result": [[{"document": document, "score": expected.score}], []]},
    )
    plain = {**asked, "return_scores": False, "something": "else"}
    assert send(server, "POST", "/retrieve/", plain) == (200, {"result": [[document], []]})


def test_what_is_left_out_has_a_default():
    passages = [Passage(id=str(i), title="twin", text="alike") for i in range(5)]
    with serving(Bm25Index(passages), topk=2) as server:
        _, answer = send(server, "POST", "/retrieve", {"queries": ["twin"]})
        assert [document["id"] for document in answer["result"][0]] == ["0", "1"]
        assert send(server, "POST", "/retrieve", {"queries": ["twin"], "topk": None})[1] == answer
        assert send(server, "POST", "/retrieve", {"queries": []}) == (200, {"result": []})


def test_the_client_and_the_server_understand_each_other(server):
    index = Bm25Index(PASSAGES)
    queries = ["Ada Brandt Oslo", "ærø 東京", "", "zebra"]
    assert HttpIndex(server.url).query(queries, 3) == index.query(queries, 3)
    found = asyncio.run(search_tool(HttpIndex(server.url), k=1).call('{"query": "østersøen"}'))
    assert found.content == "[1] 東京 Ærø: En ø i Østersøen."


def test_health_says_how_much_there_is_to_find(server):
    assert send(server, "GET", "/health") == (200, {"status": "ok", "passages": 3})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "the request: Invalid JSON"),
        (b"\xff", "the request: Invalid JSON"),
        ([], "the request: Input should be an object"),
        ({}, "queries: Field required"),
        ({"queries": "Oslo"}, "queries: Input should be a valid array"),
        ({"queries": ["a", 3]}, "queries.1: Input should be a valid string"),
        ({"queries": ["a"], "topk": 0}, "topk: Input should be greater than or equal to 1"),
        ({"queries": ["a"], "topk": 10**6}, "topk: Input should be less than or equal to 1000"),
        ({"queries": ["a"], "topk": "3"}, "topk: Input should be a valid integer"),
        ({"queries": ["a"] * 5000}, "queries: List should have at most 4096 items"),
    ],
)
def test_a_bad_request_is_told_what_to_send(server, body, words):
    status, answer = send(server, "POST", "/retrieve", body)
    assert status == 400
    assert words in answer["error"]
    assert 'send {"queries": ["..."], "topk": 3, "return_scores": true}' in answer["error"]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "words"),
    [
        ("POST", "/find", {"queries": ["a"]}, {}, 404, "there is nothing at /find; POST to /retrieve"),
        ("GET", "/retrieve", None, {}, 405, "POST to /retrieve"),
        ("PUT", "/retrieve", {"queries": ["a"]}, {}, 405, "Unsupported method"),
        ("POST", "/retrieve", None, {"Content-Length": str(2**30)}, 413, "send fewer queries at once"),
    ],
)
def test_a_lost_request_is_answered_in_json(server, method, path, body, headers, status, words):
    got, answer = send(server, method, path, body, headers)
    assert got == status
    assert words in answer["error"]


def converse(server, *parts, seconds=20):
    """Sends raw bytes and returns all that comes back until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        for part in parts:
            connection.sendall(part)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("length", [b"-1", b"9" * 5000, b"\xc2\xb2", b"1, 2"])
def test_a_length_that_is_no_length_is_refused(server, length):
    request = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: %b\r\n\r\n" % length
    assert converse(server, request).startswith(b"HTTP/1.1 400 ")
    assert send(server, "GET", "/health")[0] == 200


def test_a_request_in_chunks_is_read_and_its_size_is_limited(server, monkeypatch):
    def chunked(body):
        return b"%x\r\n%b\r\n" % (len(body), body)

    head = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = converse(server, head, chunked(b'{"queries": '), chunked(b'["Oslo"]}'), b"0\r\n\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["result"][0][0]["id"] == "b"
    monkeypatch.setattr("turnwise.tools.search.server._MAX_BYTES", 100)
    assert converse(server, head, chunked(b" " * 100), chunked(b" ")).startswith(b"HTTP/1.1 413 ")


def test_clients_that_never_finish_hold_up_nobody(monkeypatch):
    """Half a request on 300 connections: others are served, and the server stops in time."""
    monkeypatch.setattr("turnwise.tools.search.server._DRAIN_SECONDS", 1)
    threads = threading.active_count()
    with contextlib.ExitStack() as stack:
        with serving(Bm25Index(PASSAGES)) as server:
            for half in (b"POST /retr", b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"):
                for _ in range(150):
                    connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
                    connection.sendall(half)
            assert send(server, "POST", "/retrieve", {"queries": ["Oslo"]})[0] == 200
            assert threading.active_count() < threads + 10
            stopping = time.monotonic()
        assert time.monotonic() - stopping < 1 + 10


def test_a_request_that_drips_is_given_up(monkeypatch):
    monkeypatch.setattr("turnwise.tools.search.server._READ_SECONDS", 0.2)
    with serving(Bm25Index(PASSAGES)) as server:
        head = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 99\r\n\r\n{"
        answer = converse(server, head)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the request was incomplete after 0.2 seconds" in answer


def test_without_its_libraries_the_server_says_what_to_install():
    code = "import sys; sys.modules['uvicorn'] = None; import turnwise.tools.search.server"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "RunError: the search server needs uvicorn: pip install 'turnwise[serve]'" in result.stderr


class Gate:
    """An index that waits until it is let go, and remembers what it was asked."""

    passages = PASSAGES

    def __init__(self):
        self.batches = []
        self.entered, self.go = threading.Event(), threading.Event()

    def query(self, queries, k):
        self.batches.append((list(queries), k))
        self.entered.set()
        assert self.go.wait(20)
        if "boom" in queries:
            raise RuntimeError("the index is broken")
        return [[Hit(passage=PASSAGES[0], score=float(len(query)))][:k] for query in queries]


def ask_in_thread(server, answers, number, *queries, topk=1):
    body = {"queries": list(queries), "topk": topk, "return_scores": True}
    thread = threading.Thread(target=lambda: answers.update({number: send(server, "POST", "/retrieve", body)}))
    thread.start()
    return thread


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_requests_that_wait_together_are_searched_together():
    index, answers = Gate(), {}
    with serving(index) as server:
        threads = [ask_in_thread(server, answers, 0, "a")]
        assert index.entered.wait(20)
        threads.append(ask_in_thread(server, answers, 1, "bb", "ccc"))
        wait_for(lambda: len(server.batcher.waiting) == 1)
        threads.append(ask_in_thread(server, answers, 2, "dddd"))
        wait_for(lambda: len(server.batcher.waiting) == 2)
        threads.append(ask_in_thread(server, answers, 3, "e", topk=2))
        wait_for(lambda: len(server.batcher.waiting) == 3)
        index.go.set()
        for thread in threads:
            thread.join()
    assert index.batches == [(["a"], 1), (["bb", "ccc", "dddd"], 1), (["e"], 2)]
    scores = {number: [hits[0]["score"] for hits in answer["result"]] for number, (_, answer) in answers.items()}
    assert scores == {0: [1.0], 1: [2.0, 3.0], 2: [4.0], 3: [1.0]}


def test_an_index_that_fails_is_told_to_the_client_and_the_next_is_served():
    index = Gate()
    index.go.set()
    with serving(index) as server:
        status, answer = send(server, "POST", "/retrieve", {"queries": ["boom"]})
        assert (status, answer) == (500, {"error": "the search failed: the index is broken"})
        assert send(server, "POST", "/retrieve", {"queries": ["fine"]})[0] == 200


def test_a_shutdown_answers_what_is_in_flight():
    index, answers = Gate(), {}
    with serving(index) as server:
        thread = ask_in_thread(server, answers, 0, "a")
        assert index.entered.wait(20)
        threading.Timer(0.1, index.go.set).start()
    thread.join()
    assert answers[0][0] == 200
    with pytest.raises(ConnectionRefusedError):
        send(server, "GET", "/health")


def test_a_port_that_is_taken_is_said_to_be_so(server):
    port = server.port
    with pytest.raises(RunError, match=f"cannot listen at 127.0.0.1:{port} .*; choose another"):
        SearchServer(Bm25Index(PASSAGES), port=port)
    with pytest.raises(RunError, match=r"cannot listen at 127\.0\.0\.1:99999"):
        SearchServer(Bm25Index(PASSAGES), port=99999)


def test_the_command_serves_a_corpus_until_it_is_told_to_stop(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "lumen.md").write_text("# Lumen\n\nFounded by Ada Brandt.")
    command = [sys.executable, "-m", "turnwise", "serve-search", "notes", "--port", "0", "--cache", "kept"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = process.stdout.readline()
            found = re.match(r"1 passages at (http://127\.0\.0\.1:\d+)/retrieve", said)
            assert found, said + process.stderr.read()
            (hits,) = HttpIndex(found[1]).query(["who founded lumen"], 3)
            assert [hit.passage.title for hit in hits] == ["Lumen"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()
    assert [path.name.split("-")[0] for path in (tmp_path / "kept").iterdir()] == ["bm25"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl: there is no such corpus"),
        (["empty.jsonl"], "empty.jsonl: this corpus is empty"),
        (["good.jsonl", "--index", "dense"], "give one, such as intfloat/e5-base-v2"),
        (["good.jsonl", "--query-prefix", "query: "], "this one is bm25; leave it out"),
        (["good.jsonl", "--topk", "0"], "k is 0"),
        (["good.jsonl", "seed=1"], "unexpected argument 'seed=1': expected one corpus"),
        (["good.jsonl", "--host", "256.0.0.1"], "cannot listen at 256.0.0.1:8000"),
    ],
)
def test_a_command_that_cannot_serve_says_why_in_a_line(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "good.jsonl").write_text('{"title": "a", "text": "b"}\n')
    assert main(["serve-search", *arguments, "--cache", "off"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
