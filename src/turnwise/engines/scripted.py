"""An engine that answers from a script: for tests, and for experts that act.

Invariant: its completions obey the engine's contract, limits included, though no model is behind them.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from turnwise.engines.base import Completion, EngineStats, Sampling
from turnwise.errors import ModelError
from turnwise.types import Finish

if TYPE_CHECKING:
    import torch

Reply: TypeAlias = Callable[[str, Sequence[int]], str | Sequence[int] | Awaitable[str | Sequence[int]]]
"""The answer of a session to a prompt, at once or awaited: text, or token ids."""


class ScriptedEngine:
    """Answers with `reply(session, prompt_ids)`; text becomes ids by `encode`, such as a render's `encode_action`."""

    def __init__(self, reply: Reply, encode: Callable[[str], Sequence[int]], *, context_limit: int = 1_000_000) -> None:
        self._reply = reply
        self._encode = encode
        self._context_limit = context_limit
        self._version = 0

    @property
    def context_limit(self) -> int:
        """The most tokens, prompt and completion together, that one conversation may hold."""
        return self._context_limit

    @property
    def stats(self) -> EngineStats:
        """No model runs, so there is no work to count."""
        return EngineStats()

    async def generate(self, session: str, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """The reply up to its first stop id or to the token limit, each id with a logprob of 0."""
        room = min(sampling.max_tokens, self._context_limit - len(prompt_ids))
        if room < 1:
            raise ModelError(
                f"session '{session}': a prompt of {len(prompt_ids)} tokens leaves no room to answer in a context of "
                f"{self._context_limit}; shorten it or raise the context limit"
            )
        answer = self._reply(session, prompt_ids)
        reply = await answer if inspect.isawaitable(answer) else answer
        ids = tuple(self._encode(reply) if isinstance(reply, str) else reply)
        if not ids:
            raise ModelError(
                f"session '{session}': the script returned an empty reply; a turn needs at least one token"
            )
        stop = next((index for index, token in enumerate(ids) if token in sampling.stop_ids), len(ids))
        ids = ids[: min(stop + 1, room)]
        finish = Finish.STOP if ids[-1] in sampling.stop_ids else Finish.LENGTH
        return Completion(ids=ids, logprobs=(0.0,) * len(ids), finish=finish, version=self._version)

    async def end(self, session: str) -> None:
        """A script keeps no state per session."""

    async def load(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        """Stamps completions with `version`; a script has no weights."""
        self._version = version
