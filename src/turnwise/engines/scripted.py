"""An engine that says what it is told: for tests, and for experts that play.

Invariant: its completions obey the engine's contract, limits included, though no model is behind them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from turnwise.engines.base import Completion, Sampling
from turnwise.errors import ModelError
from turnwise.types import Finish

Reply: TypeAlias = Callable[[str, Sequence[int]], str | Sequence[int]]
"""What to say in a session after a prompt: text, or the ids themselves."""


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

    async def generate(self, session: str, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """The reply up to its first stop id or to the token limit, each id with a logprob of 0."""
        room = min(sampling.max_tokens, self._context_limit - len(prompt_ids))
        if room < 1:
            raise ModelError(
                f"session '{session}': a prompt of {len(prompt_ids)} tokens leaves no room to answer in a context of "
                f"{self._context_limit}; shorten it or raise the context limit"
            )
        said = self._reply(session, prompt_ids)
        ids = tuple(self._encode(said) if isinstance(said, str) else said)
        if not ids:
            raise ModelError(f"session '{session}': the script said nothing; a turn needs at least one token")
        stop = next((index for index, token in enumerate(ids) if token in sampling.stop_ids), len(ids))
        ids = ids[: min(stop + 1, room)]
        finish = Finish.STOP if ids[-1] in sampling.stop_ids else Finish.LENGTH
        return Completion(ids=ids, logprobs=(0.0,) * len(ids), finish=finish, version=self._version)

    async def end(self, session: str) -> None:
        """Nothing is held for a session."""

    async def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Stamps completions with `version`; there is nothing to load into."""
        self._version = version
