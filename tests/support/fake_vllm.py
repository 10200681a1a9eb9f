"""A server that speaks vLLM's and OpenAI's wire: with a real model behind it in a thread, or as a program without one.

python -m fake_vllm --host 127.0.0.1 --port 8000 --model FOLDER ...        what it does not know, it ignores
"""

import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import takewhile
from pathlib import Path
from urllib.parse import urlsplit

Handle = Callable[[dict], dict]


class FakeVLLM:
    """Answers at `url` until `close`; its attributes are what a test changes and looks at."""

    def __init__(self, model=None, *, port: int = 0) -> None:
        self.model = model
        """A causal language model whose head is not tied, or None: then every token is the prompt's last plus one."""
        self.version = "default"
        self.paused = False
        self.requests: list[tuple[str, dict]] = []
        self.cache: set[tuple[int, ...]] = set()
        """The prompts that were read since the cache was reset."""
        self.keeps_head = False
        """Whether new weights leave the head as it was: what vLLM does where the head of a tied model is not sent."""
        self.missing: set[str] = set()
        """Paths that it does not know."""
        self.without_ids = False
        """Whether completions come without token ids, as most servers' do."""
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def prompts(self) -> list[list[int]]:
        """Of all turns so far; probes and checks ask for one token."""
        turns = [body for path, body in self.requests if path.endswith("generate")]
        return [body["token_ids"] for body in turns if body["sampling_params"]["max_tokens"] > 1]

    def handle(self, path: str, body: dict) -> tuple[int, dict]:
        name = urlsplit(path).path
        self.requests.append((path, body))
        if name in self.missing:
            return 404, {"error": {"message": "Not Found"}}
        if name == "/inference/v1/generate":
            return 200, self._generate(body["token_ids"], body["sampling_params"])
        if name == "/v1/completions":
            return 200, self._complete(body)
        return 200, self._command(name, path, body)

    def _command(self, name: str, path: str, body: dict) -> dict:
        match name:
            case "/pause":
                assert path.endswith("mode=keep")
                self.paused = True
            case "/resume":
                self.paused = False
            case "/collective_rpc":
                assert self.paused
                assert body["method"] == "reload_weights"
                self._load(Path(body["kwargs"]["weights_path"]))
            case "/reset_prefix_cache":
                assert path.endswith("reset_running_requests=true")
                self.cache.clear()
            case "/update_weight_version":
                self.version = body["new_version"]
            case _:
                raise AssertionError(path)
        return {}

    def _load(self, folder: Path) -> None:
        assert (folder / "config.json").is_file()
        if self.model is None:
            return
        from safetensors.torch import load_file

        weights = load_file(folder / "model.safetensors")
        if self.keeps_head:
            del weights["lm_head.weight"]
        missing, unknown = self.model.load_state_dict(weights, strict=False)
        assert not unknown
        assert missing == (["lm_head.weight"] if self.keeps_head else [])

    def _generate(self, prompt: list[int], sampling: dict) -> dict:
        ids, logprobs, reason = self._sample(prompt, sampling)
        shared = [takewhile(lambda pair: pair[0] == pair[1], zip(one, prompt, strict=False)) for one in self.cache]
        cached = max((len(list(pairs)) for pairs in shared), default=0)
        self.cache.add((*prompt, *ids))
        return {
            "choices": [
                {
                    "token_ids": ids,
                    "logprobs": {
                        "content": [{"token_id": i, "logprob": x} for i, x in zip(ids, logprobs, strict=True)]
                    },
                    "finish_reason": reason,
                    "weight_versions": [{"version": self.version, "start": 0, "end": len(ids)}],
                }
            ],
            "prompt_logprobs": self._score(prompt) if "prompt_logprobs" in sampling else None,
            "usage": {"prompt_tokens_details": {"cached_tokens": cached}},
        }

    def _complete(self, body: dict) -> dict:
        ids, logprobs, reason = self._sample(body["prompt"], body)
        choice = {"text": "", "finish_reason": reason, "logprobs": {"token_logprobs": logprobs}, "token_ids": ids}
        if "prompt_logprobs" in body:
            choice["prompt_logprobs"] = self._score(body["prompt"])
        if self.without_ids:
            del choice["token_ids"]
        return {"choices": [choice]}

    def _sample(self, prompt: list[int], sampling: dict) -> tuple[list[int], list[float], str]:
        ids: list[int] = []
        logprobs: list[float] = []
        while len(ids) < sampling["max_tokens"]:
            token, logprob = self._next([*prompt, *ids], sampling)
            ids.append(token)
            logprobs.append(logprob)
            if token in sampling.get("stop_token_ids", ()):
                return ids, logprobs, "stop"
        return ids, logprobs, "length"

    def _next(self, ids: list[int], sampling: dict) -> tuple[int, float]:
        if self.model is None:
            return ids[-1] + 1, -1.0
        import torch

        logprobs = self._logits(ids)[-1].log_softmax(-1)
        draw = torch.Generator().manual_seed(hash((sampling.get("seed", 0), len(ids))) % 2**63)
        chosen = (
            logprobs.argmax() if not sampling["temperature"] else torch.multinomial(logprobs.exp(), 1, generator=draw)
        )
        return int(chosen), float(logprobs[int(chosen)])

    def _score(self, ids: list[int]) -> list[dict | None]:
        if self.model is None:
            return [None, *({str(token): {"logprob": -1.0}} for token in ids[1:])]
        logprobs = self._logits(ids).log_softmax(-1)
        after = zip(logprobs[:-1], ids[1:], strict=True)
        return [None, *({str(token): {"logprob": float(row[token])}} for row, token in after)]

    def _logits(self, ids: list[int]):
        import torch

        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0]


def _handler(fake: FakeVLLM) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            status, reply = fake.handle(self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            content = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None: ...

    return Handler


if __name__ == "__main__":
    given = dict(zip(sys.argv[1::1], sys.argv[2::1], strict=False))
    if "--fails" in sys.argv:
        sys.exit("ValueError: no such model")
    FakeVLLM(port=int(given["--port"]))
    sys.stdin.read()
