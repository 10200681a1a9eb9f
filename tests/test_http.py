"""The HTTP client: addresses, retries, proxies, reused connections, and what each failure is called."""

import asyncio
import contextlib
import gc
import json
import socket
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from turnwise.http import HttpClient, HttpError, RetryPolicy, StatusError, UnreachableError, parse_address, quote


@contextlib.contextmanager
def server(*replies, keep_alive=False):
    """Gives these (status, body, headers) in turn, the last for ever; yields the address and the requests it got."""
    requests, left = [], list(replies)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1" if keep_alive else "HTTP/1.0"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, dict(self.headers), json.loads(body), self.client_address))
            status, reply, headers = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            for name, value in (("Content-Length", str(len(reply))), *headers):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads, request_queue_size = True, 64

    listening = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}/x", requests
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def client_of(url, **options):
    policy = RetryPolicy(**{"timeout": 2.0, "attempts": 3, "backoff": 0.01} | options.pop("policy", {}))
    return HttpClient(url, policy, **{"max_bytes": 1000, **options})


def post(client, **options):
    return asyncio.run(client.post({"a": "ø"}, bytes.decode, **options))


def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://x:y", "http://x:0", "http://[x"])
def test_what_is_no_address(url):
    assert parse_address(url) is None


def test_an_address_in_parts():
    parts = parse_address("https://api.example.com:8443/v1/x?a=b")
    assert parts is not None
    assert (parts.hostname, parts.port, parts.path, parts.query) == ("api.example.com", 8443, "/v1/x", "a=b")


def test_which_statuses_are_temporary():
    temporary = [
        status for status in (302, 400, 401, 404, 408, 422, 425, 429, 500, 503) if StatusError(status, b"").temporary
    ]
    assert temporary == [408, 425, 429, 500, 503]


def test_a_body_is_quoted_in_one_short_line():
    assert quote(b" oh\n\n no ") == ": oh no"
    assert quote(b" \n") == ""
    assert len(quote("ø\n".encode() * 1000)) == 122


def test_a_request_is_json_and_a_reply_is_read():
    with server((200, b"fine", ())) as (url, requests):
        assert post(client_of(url)) == "fine"
    ((path, headers, body, _),) = requests
    assert (path, body, headers["Content-Type"]) == ("/x", {"a": "ø"}, "application/json")
    assert "Authorization" not in headers


def test_retries_stop_at_the_first_reply_that_can_be_read():
    with server((503, b"", ()), (200, b"", ()), (200, b"fine", ())) as (url, requests):
        client, lost = client_of(url), []

        def read(body):
            if not body:
                raise HttpError("empty", temporary=True)
            return body

        assert asyncio.run(client.post({}, read, on_retry=lost.append)) == b"fine"
    assert (len(requests), client.requests, len(lost)) == (3, 3, 2)
    assert all(seconds > 0.007 for seconds in lost), "the wait is part of what was lost"


@pytest.mark.parametrize(
    ("reply", "words", "attempts"),
    [
        ((500, b"oh no", ()), "it answered with status 500: oh no", 3),
        ((404, b"", ()), "it answered with status 404", 1),
        ((302, b"", (("Location", "/y"),)), "it answered with status 302", 1),
        ((200, b"." * 1001, ()), "its answer is longer than 1000 bytes", 1),
    ],
)
def test_only_temporary_errors_are_tried_again(reply, words, attempts):
    with server(reply) as (url, requests), pytest.raises(HttpError) as raised:
        post(client_of(url))
    assert (str(raised.value), len(requests)) == (words, attempts)


def test_one_attempt_can_be_asked_for():
    with server((500, b"", ())) as (url, requests), pytest.raises(StatusError):
        post(client_of(url), attempts=1)
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("host", "words"), [("127.0.0.1:{port}", "Connection refused"), ("no-such-host.invalid", "[Errno -")]
)
def test_a_server_that_is_not_there_is_unreachable(host, words):
    url = f"http://{host.format(port=closed_port())}/x"
    with pytest.raises(UnreachableError) as raised:
        post(client_of(url))
    assert words in str(raised.value)


def test_backoff_doubles_to_its_cap_and_heeds_the_server(monkeypatch):
    policy = RetryPolicy(timeout=1.0, attempts=7, backoff=0.5)
    waits = [policy.wait_after(attempt, 0.0) for attempt in range(1, 7)]
    for wait, longest in zip(waits, (0.5, 1, 2, 4, 8, 8), strict=True):
        assert 0.75 * longest <= wait <= longest
    assert len({policy.wait_after(1, 0.0) for _ in range(5)}) > 1, "clients that failed together spread"
    assert policy.wait_after(1, 5.0) == 5.0
    assert policy.wait_after(1, 500.0) == 8.0
    assert policy.max_seconds == 7 + 23.5


@pytest.mark.parametrize(("header", "waited"), [("3", 3.0), ("99999", 8.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.01)])
def test_retry_after_is_read_in_seconds(header, waited, monkeypatch):
    waits = []

    async def note(seconds):
        waits.append(seconds)

    # In this module alone: servers of other tests may sleep in threads of theirs.
    monkeypatch.setattr("turnwise.http.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": note}))
    monkeypatch.setattr("turnwise.http._jitter.uniform", lambda low, high: high)
    with server((429, b"", (("Retry-After", header),)), (200, b"fine", ())) as (url, _):
        assert post(client_of(url)) == "fine"
    assert waits == [waited]


def test_a_key_is_sent_and_never_quoted(monkeypatch):
    monkeypatch.setenv("SOME_KEY", " not-a-real-key\n")
    with server((401, b"wrong key not-a-real-key", ())) as (url, requests), pytest.raises(StatusError) as raised:
        post(client_of(url, key_env="SOME_KEY"))
    assert requests[0][1]["Authorization"] == "Bearer not-a-real-key"
    assert str(raised.value) == "it answered with status 401: wrong key ***"
    monkeypatch.setenv("SOME_KEY", "not a\nheader")
    with pytest.raises(HttpError, match="the key in SOME_KEY has characters that no header can hold"):
        post(client_of("http://127.0.0.1:1/x", key_env="SOME_KEY"))


def test_a_proxy_of_the_environment_is_used(monkeypatch):
    with server((200, b"by proxy", ())) as (proxy, requests):
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.removesuffix("/x"))
        assert post(client_of("http://search.invalid/find")) == "by proxy"
        assert requests[0][0] == "http://search.invalid/find"
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, "search.invalid")
        with pytest.raises(UnreachableError):
            post(client_of("http://search.invalid/find"))
    assert len(requests) == 1


@pytest.mark.parametrize("proxy", ["gopher://127.0.0.1:1", "socks5://127.0.0.1:1", "http://a:port"])
def test_a_proxy_that_cannot_be_used_is_named_at_once(proxy, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, proxy)
    client = client_of("http://search.invalid/find")
    for _ in range(2):
        with pytest.raises(UnreachableError, match="the proxy of the environment cannot be used"):
            post(client)
    assert client.requests == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_this_machine_is_reached_past_any_proxy(host, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
    with server((200, b"direct", ())) as (url, _):
        assert post(client_of(url.replace("127.0.0.1", host))) == "direct"


def test_connections_are_reused_within_a_loop_and_closed_with_it():
    async def twice(client):
        return [await client.post({}, len) for _ in range(2)]

    with server((200, b"fine", ()), keep_alive=True) as (url, requests), warnings.catch_warnings():
        warnings.simplefilter("error")
        client = client_of(url)
        assert asyncio.run(twice(client)) == [4, 4]
        assert asyncio.run(twice(client)) == [4, 4], "another event loop"
        gc.collect()
    ports = [address[1] for *_, address in requests]
    assert ports[0] == ports[1] != ports[2] == ports[3]


def test_many_requests_share_a_client():
    async def many(client):
        return await asyncio.gather(*(client.post({}, bytes.decode) for _ in range(40)))

    with server((200, b"fine", ())) as (url, requests):
        assert asyncio.run(many(client_of(url, policy={"timeout": 20.0}))) == ["fine"] * 40
    assert len(requests) == 40
