"""What is said to a server: turns, the logprobs of a text, and new weights.

Invariant: token ids go in and come out; no text is tokenised or decoded on the way. A reply that lacks what training
needs is an EngineError that names what is missing.

    POST /inference/v1/generate  {"token_ids": [...], "sampling_params": {...}}        vLLM's tokens in, tokens out
    POST /v1/completions         {"prompt": [...], "return_token_ids": true, ...}      OpenAI's, with vLLM's additions
    POST /pause, /collective_rpc, /reset_prefix_cache, /update_weight_version, /resume     new weights: developer mode
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from turnwise.engines.base import Sampling
from turnwise.engines.vllm.sampling import probe_fields, sampling_fields
from turnwise.errors import EngineError
from turnwise.http import HttpClient, RetryPolicy, StatusError, quote

_MAX_BYTES: Final = 64 * 2**20
_START: Final = (
    "start it by: VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs"
)
_LACKS: Final = "completes no prompt of token ids with ids and logprobs, which training needs"
_INSTEAD: Final = "evaluate its model by `turnwise eval`, or train with engine.kind=vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One turn as a server gives it."""

    ids: list[int]
    logprobs: list[float]
    reason: str | None
    versions: tuple[tuple[int, str], ...] = ()
    """(first token, version) of each span; empty where the server does not know the versions of its weights."""
    cached: int = 0
    """Prompt tokens that its prefix cache had."""


class TokenServer(Protocol):
    """One server. Every call raises HttpError where it is gone or busy, and EngineError where it cannot do this."""

    url: str

    async def complete(self, prompt_ids: Sequence[int], sampling: Sampling, *, room: int) -> Reply: ...

    async def score(self, ids: Sequence[int]) -> list[float]:
        """The logprobs of all tokens of a text but the first."""
        ...

    async def load(self, folder: Path, version: int) -> None:
        """Replaces the weights by those of a folder; turns under way go on with them, and no older cache is read."""
        ...


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")  # servers say more than we read


class _Span(_Part):
    version: str
    start: int


class _Token(_Part):
    logprob: float


class _Details(_Part):
    cached_tokens: int | None = None


class _Usage(_Part):
    prompt_tokens_details: _Details | None = None


class _PromptLogprobs(_Part):
    prompt_logprobs: list[dict[str, _Token] | None] | None = None

    def of(self, ids: Sequence[int]) -> list[float]:
        """From `[null, {"21": {"logprob": -5.7}}, ...]`, the logprobs of these ids but the first."""
        given = self.prompt_logprobs or []
        if len(given) != len(ids) or not all(
            one and str(token) in one for one, token in zip(given[1:], ids[1:], strict=True)
        ):
            raise EngineError("a reply without the logprobs of its prompt, by which new weights are checked")
        return [one[str(token)].logprob for one, token in zip(given, ids, strict=True) if one]


class _Content(_Part):
    content: list[_Token]


class _Turn(_Part):
    token_ids: list[int]
    logprobs: _Content
    finish_reason: str | None = None
    weight_versions: list[_Span] | None = None


class _Generated(_PromptLogprobs):
    choices: tuple[_Turn]
    usage: _Usage | None = None


class _Scored(_PromptLogprobs):
    choices: tuple[_Part]


class _TokenLogprobs(_Part):
    token_logprobs: list[float]


class _CompletedTurn(_Part):
    token_ids: list[int]
    logprobs: _TokenLogprobs
    finish_reason: str | None = None


class _Completed(_Part):
    choices: tuple[_CompletedTurn]
    usage: _Usage | None = None


class _ScoredCompletion(_Part):
    choices: tuple[_PromptLogprobs]


R = TypeVar("R", bound=_Part)


class VLLMServer:
    """A vLLM server, by its native interface of tokens."""

    lacks: str = f"answers not as vLLM's tokens in, tokens out; {_START}"

    def __init__(self, url: str, *, timeout: float, key_env: str | None = None) -> None:
        self.url = url
        self._policy = RetryPolicy(timeout=timeout, attempts=1, backoff=0.0)  # who retries knows the other servers
        self._key_env = key_env
        self._clients: dict[str, HttpClient] = {}

    async def complete(self, prompt_ids: Sequence[int], sampling: Sampling, *, room: int) -> Reply:
        reply = await self._generate(prompt_ids, sampling_fields(sampling, room=room), _Generated)
        (turn,) = reply.choices
        return Reply(
            ids=turn.token_ids,
            logprobs=[token.logprob for token in turn.logprobs.content],
            reason=turn.finish_reason,
            versions=tuple((span.start, span.version) for span in turn.weight_versions or ()),
            cached=_cached(reply.usage),
        )

    async def score(self, ids: Sequence[int]) -> list[float]:
        return (await self._generate(ids, probe_fields(), _Scored)).of(ids)

    async def load(self, folder: Path, version: int) -> None:
        try:
            await self._post("/pause?mode=keep")
            try:
                await self._post("/collective_rpc", method="reload_weights", kwargs={"weights_path": str(folder)})
                await self._post("/reset_prefix_cache?reset_running_requests=true")
                await self._post("/update_weight_version", new_version=str(version))
            finally:
                await self._post("/resume")
        except StatusError as error:
            if error.status in (404, 405):
                raise EngineError(
                    f"{self.url}: cannot load weights ({error}), which training needs; {_START}"
                ) from error
            raise EngineError(f"{self.url}: did not load the weights in {folder} ({error}); see its log") from error

    async def _generate(self, prompt_ids: Sequence[int], fields: Mapping[str, object], reply: type[R]) -> R:
        return await self._ask("/inference/v1/generate", reply, token_ids=list(prompt_ids), sampling_params=fields)

    async def _ask(self, path: str, reply: type[R], **fields: object) -> R:
        try:
            body = await self._post(path, **fields)
            return reply.model_validate_json(body)
        except StatusError as error:
            if error.temporary:
                raise
            raise EngineError(f"{self.url}: {self.lacks} ({error})") from error
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"]))
            raise EngineError(f"{self.url}: {self.lacks} (no {place} in its reply{quote(body)})") from error

    async def _post(self, path: str, **fields: object) -> bytes:
        if path not in self._clients:
            url = self.url + path
            self._clients[path] = HttpClient(url, self._policy, max_bytes=_MAX_BYTES, key_env=self._key_env)
        return await self._clients[path].post(fields, bytes)


class OpenAIServer(VLLMServer):
    """Any server with OpenAI's completions that takes a prompt of token ids and returns ids and logprobs."""

    lacks = f"{_LACKS}; {_INSTEAD}"

    def __init__(self, url: str, *, model: str, timeout: float, key_env: str | None = None) -> None:
        """`url` ends with the API's version; weights are loaded beside it, as vLLM does."""
        super().__init__(url.removesuffix("/v1"), timeout=timeout, key_env=key_env)
        self._completions = url.removeprefix(self.url) + "/completions"
        self._model = model

    async def complete(self, prompt_ids: Sequence[int], sampling: Sampling, *, room: int) -> Reply:
        reply = await self._complete(prompt_ids, sampling_fields(sampling, room=room), _Completed)
        (turn,) = reply.choices
        return Reply(
            ids=turn.token_ids,
            logprobs=turn.logprobs.token_logprobs,
            reason=turn.finish_reason,
            cached=_cached(reply.usage),
        )

    async def score(self, ids: Sequence[int]) -> list[float]:
        (choice,) = (await self._complete(ids, probe_fields(), _ScoredCompletion)).choices
        return choice.of(ids)

    async def _complete(self, prompt_ids: Sequence[int], fields: Mapping[str, object], reply: type[R]) -> R:
        known = {name: value for name, value in fields.items() if name != "detokenize"}
        return await self._ask(
            self._completions, reply, model=self._model, prompt=list(prompt_ids), return_token_ids=True, **known
        )


def _cached(usage: _Usage | None) -> int:
    details = usage.prompt_tokens_details if usage else None
    return (details.cached_tokens or 0) if details else 0
