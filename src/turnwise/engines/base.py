"""The engine protocol: token ids in, sampled ids with their logprobs out.

Invariant: logprobs are those of the distribution actually sampled from, after temperature, top-k and top-p;
and every id of a completion was sampled: an engine never appends a forced token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Protocol

from turnwise.types import Finish, Versions, fill_versions

if TYPE_CHECKING:
    import torch


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
    """One sampled turn: `Completion(ids=(91, 4, 2), logprobs=(-.1, -.7, -.02), finish=Finish.STOP, version=3)`."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    version: int
    """Of the weights that sampled the first token."""
    versions: Versions = ()
    """(first token, version) of each span that one version of the weights sampled; by default, `version` all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", fill_versions(self.versions, self.version, len(self.ids)))

    def cut(self, length: int, finish: Finish) -> "Completion":
        """Its first tokens, as if sampling had ended there."""
        return replace(
            self,
            ids=self.ids[:length],
            logprobs=self.logprobs[:length],
            versions=tuple(span for span in self.versions if span[0] < length),
            finish=finish,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """An engine's work since it was made; an engine that does not measure a field leaves it 0."""

    prefill_tokens: int = 0
    """Prompt tokens computed."""
    reused_tokens: int = 0
    """Prompt tokens taken from a KV cache: the session's own, or one with the same prefix."""
    prefill_padding: int = 0
    """Padding computed by prefills, to align rows or to fit the size of a CUDA graph."""
    decode_tokens: int = 0
    """Tokens sampled by decode steps; each turn's first token comes from its prefill."""
    decode_steps: int = 0
    slot_steps: int = 0
    """Slots computed, summed over decode steps, whether or not they had a turn to sample."""
    idle_slot_steps: int = 0
    """Those without a turn to sample: gaps between slots in use, and steps launched past a turn's end."""
    evictions: int = 0
    """Idle sessions that lost their KV cache to another session and will be prefilled again."""
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    def since(self, earlier: "EngineStats") -> "EngineStats":
        """The work between two readings: `engine.stats.since(before)`."""
        return EngineStats(
            **{field.name: getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)}
        )

    def plus(self, other: "EngineStats") -> "EngineStats":
        """The work of two engines."""
        return EngineStats(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        )


class Engine(Protocol):
    """Anything that samples tokens: the local engine, a script, a server."""

    @property
    def context_limit(self) -> int:
        """The most tokens, prompt and completion together, that one conversation may hold."""
        ...

    @property
    def stats(self) -> EngineStats:
        """The work done so far."""
        ...

    async def generate(self, session: str, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Samples one turn after `prompt_ids`, the conversation so far in full.

        The session lets an engine keep the conversation's KV cache between turns and compute only what is
        new; an engine compares the prompt with its cache, so a rewritten conversation is never stale.
        """
        ...

    async def end(self, session: str) -> None:
        """Forgets a conversation and frees its cache."""
        ...

    async def load(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        """Loads new weights, drops every cache computed with old ones, and stamps tokens with `version`.

        A turn that is being sampled goes on with the new weights; its completion tells which tokens are whose.
        """
        ...
