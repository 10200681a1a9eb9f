"""A chat completions endpoint on this machine that answers by a script, and remembers what it was asked."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from turnwise.agents import EndpointSettings


class Answer(NamedTuple):
    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0


def says(content: str | None = None, *calls: tuple[str, str], **fields: object) -> Answer:
    """A completion: what the model says, and the tools it calls by name and raw arguments."""
    message: dict[str, object] = {"role": "assistant", "content": content, **fields}
    if calls:
        message["tool_calls"] = [
            {"id": f"id_{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for place, (name, arguments) in enumerate(calls)
        ]
    return Answer(body=json.dumps({"choices": [{"message": message}]}).encode())


class Stub:
    """`play(body, number)` answers the `number`-th request, counted from 0."""

    def __init__(self, play: Callable[[dict, int], Answer]) -> None:
        self.play = play
        self.asked: list[tuple[str, dict[str, str], dict]] = []
        self.url = ""

    @property
    def bodies(self) -> list[dict]:
        return [body for _, _, body in self.asked]

    def settings(self, **changed: object) -> EndpointSettings:
        quick = {"attempts": 3, "backoff": 0.01, "timeout": 5.0}
        return EndpointSettings(**{"url": self.url, "model": "m", **quick, **changed})


@contextlib.contextmanager
def serve(play: Callable[[dict, int], Answer]) -> Iterator[Stub]:
    stub, lock = Stub(play), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(stub.asked)
                stub.asked.append((self.path, dict(self.headers), body))
            answer = stub.play(body, number)
            time.sleep(answer.delay)
            with contextlib.suppress(OSError):
                self.send_response(answer.status)
                for name, value in (("Content-Length", str(len(answer.body))), *answer.headers):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
