"""`JudgeClient`: questions to a language model that judges, through an OpenAI-compatible endpoint, and what they cost.

    POST {url}/chat/completions  {"model": "...", "messages": [{"role": "user", "content": prompt}], ...}
    {"choices": [{"message": {"content": "It fits. Score: 7"}}], "usage": {"prompt_tokens": 412, ...}}

    score = N / 10 for the last `Score: N` of the reply, N from 0 to 10

Invariant: a question ends in a score or in an HttpError after a bounded time, never in a score that nobody gave. With a
cache, the same question to the same model is paid once, across processes; only scores are kept.
"""

import asyncio
import hashlib
import json
import os
import re
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from pydantic import Field, JsonValue

from turnwise.endpoints import CHAT_PATH, ChatEndpointSettings
from turnwise.errors import RewardError
from turnwise.http import HttpClient, HttpError, RetryPolicy

_MAX_BYTES: Final = 2**20
_SCORE: Final = re.compile(r"score[\s:=*_]*([0-9]+(?:\.[0-9]+)?)", re.IGNORECASE)
_BEST: Final = 10.0


class JudgeEndpointSettings(ChatEndpointSettings):
    """The endpoint, the model, and what may be spent on them."""

    timeout: float = Field(default=20.0, gt=0)
    """Seconds for one attempt."""
    attempts: int = Field(default=3, ge=1)
    """The most attempts for one question; a single one while the endpoint is known to be down."""
    backoff: float = Field(default=0.5, ge=0)
    """Seconds before the second attempt; each further wait is twice as long, or what the server
    asks for, up to 8 seconds."""
    options: dict[str, JsonValue] = Field(default={"temperature": 0, "max_tokens": 256})
    """Further fields of the request."""
    concurrency: int = Field(default=16, ge=1)
    """Questions under way at once."""
    cache: str | None = None
    """The folder in which scores are kept, by question; null asks every time."""
    max_calls: int | None = Field(default=None, ge=1)
    """Questions that may be sent, those answered from the cache aside; the next one ends the run. Null: any number."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens that may be spent, prompts and replies together, as the endpoint counts them. Null: any number."""


@dataclass(slots=True)
class Costs:
    """What a judge was asked and what it took."""

    calls: int = 0
    """Questions that were sent."""
    cached: int = 0
    """Questions that a cache answered, or another question under way with the same words."""
    failed: int = 0
    """Questions without a score."""
    prompt_tokens: int = 0
    reply_tokens: int = 0
    wait_seconds: float = 0.0
    """From question to answer, summed over questions, which overlap."""

    def add(self, name: str, amount: float) -> None:
        setattr(self, name, getattr(self, name) + amount)


_ALL_COSTS = Costs()
"""Of all judges of this process, those that are gone included."""


class NoVerdictError(HttpError):
    """The endpoint answered, and would answer the same again, but not with a score."""

    def __init__(self, message: str) -> None:
        super().__init__(message, temporary=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A score from 0 to 1, the model's own words, and the tokens they took."""

    score: float
    reply: str
    prompt_tokens: int = 0
    reply_tokens: int = 0


class JudgeClient:
    """`JudgeClient(JudgeEndpointSettings(url=..., model="judge"))`; one serves all episodes of a process."""

    def __init__(self, settings: JudgeEndpointSettings) -> None:
        if settings.key_env and not os.environ.get(settings.key_env):
            raise RewardError(f"judge.key_env is {settings.key_env}, but no such environment variable is set")
        self.settings = settings
        self.costs = Costs()
        policy = RetryPolicy(timeout=settings.timeout, attempts=settings.attempts, backoff=settings.backoff)
        self.max_seconds = policy.max_seconds
        self._client = HttpClient(f"{settings.url}{CHAT_PATH}", policy, max_bytes=_MAX_BYTES, key_env=settings.key_env)
        self._gates: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._gates = weakref.WeakKeyDictionary()
        self._under_way: dict[str, asyncio.Task[float]] = {}

    async def score(self, prompt: str, *, attempts: int | None = None) -> float:
        """The score of a question; an HttpError without one, a RewardError where the budget is spent."""
        request: dict[str, JsonValue] = {
            "model": self.settings.model,
            "messages": [{"role": "user", "content": prompt}],
            **self.settings.options,
        }
        if self.settings.cache is None:
            return await self._ask(request, None, attempts)
        key = hashlib.sha256(json.dumps([self.settings.url, request], sort_keys=True).encode()).hexdigest()
        file = Path(self.settings.cache).expanduser() / key[:2] / f"{key}.json"
        if (known := _read_score(file)) is not None:
            self._charge("cached", 1)
            return known
        asking = self._under_way.get(key)
        if asking is None or asking.get_loop() is not asyncio.get_running_loop():
            asking = asyncio.create_task(self._ask(request, file, attempts))
            self._under_way[key] = asking
            asking.add_done_callback(lambda done: self._under_way.pop(key, None))
        else:
            self._charge("cached", 1)
        # One episode that is cancelled must not take the answer from the others.
        return await asyncio.shield(asking)

    async def _ask(self, request: Mapping[str, JsonValue], file: Path | None, attempts: int | None) -> float:
        loop = asyncio.get_running_loop()
        gate = self._gates.setdefault(loop, asyncio.Semaphore(self.settings.concurrency))
        async with gate:
            self._check_budget()
            self._charge("calls", 1)
            began = time.monotonic()
            try:
                verdict = await self._client.post(request, read_verdict, attempts=attempts)
            except HttpError:
                self._charge("failed", 1)
                raise
            finally:
                self._charge("wait_seconds", time.monotonic() - began)
        self._charge("prompt_tokens", verdict.prompt_tokens)
        self._charge("reply_tokens", verdict.reply_tokens)
        if file is not None:
            _write_score(file, request, verdict)
        return verdict.score

    def _charge(self, name: str, amount: float) -> None:
        for costs in (self.costs, _ALL_COSTS):
            costs.add(name, amount)

    def _check_budget(self) -> None:
        calls, tokens = self.costs.calls, self.costs.prompt_tokens + self.costs.reply_tokens
        for name, spent, most in (
            ("max_calls", calls, self.settings.max_calls),
            ("max_tokens", tokens, self.settings.max_tokens),
        ):
            if most is not None and spent >= most:
                raise RewardError(
                    f"the judge's budget is spent: {name}={most}, after {calls} calls and {tokens} tokens; raise it "
                    "and go on with --resume"
                )


class CostMeter:
    """What the judges of this process cost since it was last read: `{"judge/calls": 128.0, ...}`."""

    def __init__(self) -> None:
        self._before = replace(_ALL_COSTS)

    def read(self) -> dict[str, float]:
        """By metric; empty where no judge was asked."""
        before, self._before = self._before, replace(_ALL_COSTS)
        spent = {
            f"judge/{one.name}": getattr(_ALL_COSTS, one.name) - getattr(before, one.name) for one in fields(Costs)
        }
        return spent if any(spent.values()) else {}


def add_costs(costs: Mapping[str, float]) -> None:
    """Adds what judges cost in another process: `add_costs({"judge/calls": 3.0})`, as its `CostMeter` read it."""
    for one in fields(Costs):
        _ALL_COSTS.add(one.name, costs.get(f"judge/{one.name}", 0.0))


def read_verdict(reply: bytes) -> Verdict:
    """The score in an endpoint's reply: `b'{"choices": [{"message": {"content": "Good. Score: 7"}}]}'` is .7."""
    try:
        data = json.loads(reply)
        content = data["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise NoVerdictError("its reply is not a chat completion") from None
    scores = _SCORE.findall(content) if isinstance(content, str) else []
    if not scores or float(scores[-1]) > _BEST:
        raise NoVerdictError("its reply has no line 'Score: N', N from 0 to 10")
    usage = data.get("usage")
    tokens = usage if isinstance(usage, Mapping) else {}
    return Verdict(
        score=float(scores[-1]) / _BEST,
        reply=content,
        prompt_tokens=_count(tokens.get("prompt_tokens")),
        reply_tokens=_count(tokens.get("completion_tokens")),
    )


def quote_untrusted(text: str, most: int) -> str:
    """Text of an agent as it may stand in a prompt: without angle brackets it cannot close the tags it stands in."""
    return text[:most].encode("utf-8", "replace").decode().replace("<", "‹").replace(">", "›")


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _read_score(file: Path) -> float | None:
    """A score that was kept; None where there is none, or a file that was damaged."""
    try:
        score = json.loads(file.read_text(encoding="utf-8"))["score"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return float(score) if isinstance(score, int | float) and 0 <= score <= 1 else None


def _write_score(file: Path, request: Mapping[str, JsonValue], verdict: Verdict) -> None:
    """Keeps a score with its question and the judge's words, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    kept = {"score": verdict.score, "reply": verdict.reply, "request": request}
    temporary.write_text(json.dumps(kept, ensure_ascii=True), encoding="utf-8")
    os.replace(temporary, file)
