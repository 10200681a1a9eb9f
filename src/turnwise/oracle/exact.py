"""The exact probabilities, values and gradient of a policy in a world.

Invariant: nothing here goes through batches, masks or estimators. The gradient is that of Σ p(τ)·payoff(τ) written
out over every episode τ, in double, with p from the model's plain logits: no score-function identity, no baseline.
Shapes: n episodes, C contexts in which the agent acts, V vocabulary, P parameters.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import TypeAlias

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise.oracle.world import VOCABULARY, World
from turnwise.types import Trajectory, Turn

Context: TypeAlias = tuple[int, ...]
"""What the model reads before it samples a token: the row so far."""
Values: TypeAlias = Mapping[Context, float]
"""Critic values by context."""

TEMPERATURE = 0.8
"""The sampler's; off 1, so that code which ignores it fails."""
_WIDTH = 8


class Oracle:
    """Exact quantities of a policy in a world."""

    def __init__(self, world: World, policy: LlamaForCausalLM) -> None:
        self.world = world
        self.policy = policy
        branches = world.branches()
        played = [branch.trajectory for branch in branches]
        self._place = {context: c for c, context in enumerate(dict.fromkeys(c for t in played for c, _ in choices(t)))}
        self.choice = [
            torch.tensor([self._place[context] * VOCABULARY + token for context, token in choices(trajectory)])
            for trajectory in played
        ]
        """n times [tokens]: each action token as an index into what `jacobian` has rows for."""
        self.chance = torch.tensor([branch.chance for branch in branches], dtype=torch.double)  # [n]
        table = self._table(list(self._place)).detach()  # [C·V]
        self.probability = self._probability(table)  # [n]
        """The probability of each episode."""
        self.trajectories = [
            _with_logprobs(trajectory, table[choice].tolist())
            for trajectory, choice in zip(played, self.choice, strict=True)
        ]
        """Every episode, with the policy's logprobs."""

    @cached_property
    def jacobian(self) -> torch.Tensor:
        """[C·V, P]: the gradient of the logprob of every token in every context."""
        table = self._table(list(self._place))  # [C·V]
        each = torch.eye(len(table), dtype=torch.double)
        parts = torch.autograd.grad(table, list(self.policy.parameters()), grad_outputs=each, is_grads_batched=True)
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    @cached_property
    def values(self) -> Values:
        """The expected return after each context, in the world without `max_turns`."""
        endless = Oracle(dataclasses.replace(self.world, max_turns=None), self.policy)
        mass: dict[Context, float] = defaultdict(float)
        earned: dict[Context, float] = defaultdict(float)
        for probability, trajectory in zip(endless.probability.tolist(), endless.trajectories, strict=True):
            for context, to_come in _rewards_to_come(trajectory):
                mass[context] += probability
                earned[context] += probability * to_come
        return {context: earned[context] / mass[context] for context in mass}

    def payoff(self, bootstrap: Values | None) -> torch.Tensor:
        """[n]: the return of each episode, plus the `bootstrap` value where `max_turns` truncated it."""
        return torch.tensor(
            [
                trajectory.reward
                + (bootstrap[last_context(trajectory)] if bootstrap and trajectory.stop.truncated else 0)
                for trajectory in self.trajectories
            ],
            dtype=torch.double,
        )

    def objective(self, payoff: torch.Tensor) -> float:
        return float(self.probability @ payoff)

    def gradient(self, payoff: torch.Tensor) -> torch.Tensor:
        """[P]: of the expected payoff [n], with the payoff held fixed."""
        expected = self._probability(self._table(list(self._place))) @ payoff
        return torch.cat([part.flatten() for part in torch.autograd.grad(expected, list(self.policy.parameters()))])

    def _probability(self, table: torch.Tensor) -> torch.Tensor:
        return self.chance * torch.stack([table[choice].sum() for choice in self.choice]).exp()  # [n]

    def _table(self, contexts: Sequence[Context]) -> torch.Tensor:
        """[C·V]: logprobs of every token in every context, from unpadded rows of one length at a time."""
        found: dict[Context, torch.Tensor] = {}
        for length in {len(context) for context in contexts}:
            alike = [context for context in contexts if len(context) == length]
            logits = self.policy(torch.tensor(alike)).logits[:, -1]  # [alike, V]
            found |= zip(alike, (logits / TEMPERATURE).log_softmax(-1), strict=True)
        return torch.cat([found[context] for context in contexts])


@cache
def consult(world: World, *, seed: int = 0) -> Oracle:
    """The oracle of a world under the policy drawn from this seed; cached."""
    return Oracle(world, draw_policy(seed))


def draw_policy(seed: int) -> LlamaForCausalLM:
    """A tiny causal transformer in double, with probabilities far from uniform."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=_WIDTH,
        intermediate_size=_WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = LlamaForCausalLM(config)
    # Llama's own norm computes in float32 whatever the weights are.
    policy.model.norm = _norm()
    for layer in policy.model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = _norm(), _norm()
    return policy.double().eval()


def _norm() -> nn.RMSNorm:
    return nn.RMSNorm(_WIDTH, eps=1e-6)


def choices(trajectory: Trajectory) -> Iterator[tuple[Context, int]]:
    """Every action token with its context: all tokens before it in its row."""
    row: Context = ()
    for turn in trajectory.turns:
        row = (*(() if turn.opens_row else row), *turn.context_ids)
        for token in turn.action_ids:
            yield row, token
            row = (*row, token)


def last_context(trajectory: Trajectory) -> Context:
    """The context after the last token, tail included."""
    context, token = list(choices(trajectory))[-1]
    return (*context, token, *trajectory.tail_ids)


def _rewards_to_come(trajectory: Trajectory) -> Iterator[tuple[Context, float]]:
    """After each token, context or action: the return from then on."""
    row: Context = ()
    to_come = trajectory.reward
    for turn in trajectory.turns:
        row = () if turn.opens_row else row
        for place, token in enumerate((*turn.context_ids, *turn.action_ids), 1):
            row = (*row, token)
            if place == len(turn.context_ids) + len(turn.action_ids):
                to_come -= turn.reward
            yield row, to_come


def _with_logprobs(trajectory: Trajectory, logprobs: Sequence[float]) -> Trajectory:
    turns: list[Turn] = []
    start = 0
    for turn in trajectory.turns:
        said = tuple(logprobs[start : start + len(turn.action_ids)])
        turns.append(dataclasses.replace(turn, logprobs=said))
        start += len(said)
    return dataclasses.replace(trajectory, turns=tuple(turns))
