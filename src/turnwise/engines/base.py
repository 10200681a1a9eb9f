"""The engine's contract: token ids in, sampled ids with their logprobs out.

Invariant: logprobs are those of the distribution actually sampled from, after temperature, top-k and top-p;
and what a completion holds was sampled, every id of it: an engine never appends a forced token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from turnwise.types import Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample one turn."""

    max_tokens: int
    stop_ids: tuple[int, ...]
    """Sampling any of these ends the turn; the id is part of the completion."""
    temperature: float = 1.0
    """0 is greedy: the logprob reported is then that of the untempered distribution."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    seed: int = 0
    """Fixes this turn's randomness whatever else shares its batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What was sampled: `Completion(ids=(91, 4, 2), logprobs=(-.1, -.7, -.02), finish=Finish.STOP, version=3)`."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    version: int


class Engine(Protocol):
    """Anything that samples tokens: the local engine, a script, a server."""

    @property
    def context_limit(self) -> int:
        """The most tokens, prompt and completion together, that one conversation may hold."""
        ...

    async def generate(self, session: str, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Samples one turn after `prompt_ids`, the conversation so far in full.

        The session lets an engine keep the conversation's KV cache between turns and pay only for what is
        new; an engine compares the prompt with what it holds, so a rewritten conversation is never stale.
        """
        ...

    async def end(self, session: str) -> None:
        """Forgets a conversation and frees what it held."""
        ...

    async def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Takes new weights, drops every cache computed from old ones, and stamps completions with `version`."""
        ...
