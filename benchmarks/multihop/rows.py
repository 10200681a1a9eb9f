"""The rows of Agent-R1's table: without agency, untrained, after SFT, after RL, and after RL without the masks.

Invariant: an ablation differs from the row it is an ablation of by its masks alone. Beside the table stand ceilings:
what reading alone allows, and what exploration from the cold start does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Play: TypeAlias = Literal["agent", "closed-book", "naive-rag", "one-search", "given-passages"]
"""How a question is asked: with tools; alone; with as many passages of one search for it as the agent can read in all
its searches, or as it reads in one of them; or with those that support the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    key: str
    """In the names of jobs and results."""
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline(Row):
    """A row without reinforcement learning: `Baseline(key="tools", label=..., play="agent", sft=False)`."""

    play: Play
    sft: bool
    """After SFT on as many demonstrations, in its own format, as the agent's cold start has; else untrained."""
    samples: int = 1
    """Episodes per question. With several, they are sampled, and pass@k is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method(Row):
    """A row that starts from the seed's cold start: `Method(key="ppo-no-masks", ..., masked="ppo")`."""

    algorithm: str
    """As the presets of `turnwise.algorithms` call it: `reinforce++`."""
    overrides: tuple[str, ...] = ()
    masked: str = ""
    """The row that this one is an ablation of; empty for one that is none."""
    without: str = ""
    """What an ablation leaves out: `no loss mask`."""


NAIVE_RAG, UNTRAINED, SFT = "naive-rag", "tools", "cold-start"
BASELINES: Sequence[Baseline] = (
    Baseline(key="closed-book", label="closed book, as the model comes", play="closed-book", sft=False),
    Baseline(key="closed-book-shown", label="closed book, with demonstrations", play="closed-book", sft=True),
    Baseline(key=NAIVE_RAG, label="naive RAG, as the model comes", play="naive-rag", sft=False),
    Baseline(key="naive-rag-shown", label="naive RAG, with demonstrations", play="naive-rag", sft=True),
    Baseline(key=UNTRAINED, label="tool calls, untrained", play="agent", sft=False),
    Baseline(key=SFT, label="tool calls, cold start only", play="agent", sft=True),
)
ONE_SEARCH = Baseline(
    key="naive-rag-one-shown",
    label="naive RAG with the passages of one of the agent's searches, with demonstrations",
    play="one-search",
    sft=True,
)
"""Naive RAG as it is mostly published, whose prompt is shorter than the agent's; over a recipe alone."""
READING = Baseline(
    key="given-passages-shown",
    label="supporting passages given, with demonstrations",
    play="given-passages",
    sft=True,
)
EXPLORING = Baseline(
    key="cold-start-pass", label="tool calls, cold start, 16 samples", play="agent", sft=True, samples=16
)
CEILINGS: Sequence[Baseline] = (READING, EXPLORING)
"""What no method can be expected to exceed by reading better, or by finding what it never samples."""

_NO_ADVANTAGE_MASK = ("credit.advantage_mask=false",)
_NO_LOSS_MASK = ("loss.action_mask=false",)
_NO_MASKS = (*_NO_ADVANTAGE_MASK, *_NO_LOSS_MASK)

METHODS: Sequence[Method] = (
    Method(key="ppo", label="PPO", algorithm="ppo"),
    Method(key="grpo", label="GRPO", algorithm="grpo"),
    Method(key="rloo", label="RLOO", algorithm="rloo"),
    Method(key="reinforce-pp", label="REINFORCE++", algorithm="reinforce++"),
    Method(key="reinforce-pp-baseline", label="REINFORCE++-baseline", algorithm="reinforce++-baseline"),
)


def _ablate(whole: Method, suffix: str, without: str, overrides: tuple[str, ...]) -> Method:
    return Method(
        key=f"{whole.key}-{suffix}",
        label=f"{whole.label}, {without}",
        algorithm=whole.algorithm,
        overrides=overrides,
        masked=whole.key,
        without=without,
    )


_PPO, _GRPO = METHODS[0], METHODS[1]
ABLATIONS: Sequence[Method] = (
    _ablate(_PPO, "no-advantage-mask", "no advantage mask", _NO_ADVANTAGE_MASK),
    _ablate(_PPO, "no-masks", "neither mask", _NO_MASKS),
    _ablate(_GRPO, "no-loss-mask", "no loss mask", _NO_LOSS_MASK),
)
