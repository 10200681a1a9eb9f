"""Every episode of a world laid out once, to be dealt into as many batches as an expectation needs.

Invariant: a dealt batch equals what `Batch.of` and `Batch.credited_tokens` make of the same groups; only faster.
Shapes: n episodes of the world; D batches of G groups of M members; N credited tokens dealt, T trajectories;
C·V the oracle's choices.
"""

from collections.abc import Iterator
from itertools import combinations_with_replacement
from math import factorial, prod

import torch

from turnwise.credit.base import TokenBatch
from turnwise.credit.estimate import estimate
from turnwise.credit.settings import CreditSettings
from turnwise.learner.batch import Batch
from turnwise.learner.forward_runner import ForwardRunner
from turnwise.oracle.critic import TableCritic
from turnwise.oracle.exact import TEMPERATURE, Oracle, Values
from turnwise.types import Group

_AT_ONCE = 2**19
"""About how many tokens are dealt at a time."""


class Deck:
    """The credited tokens of every episode, each with its choice, and critic values where there is a critic."""

    def __init__(self, oracle: Oracle, values: Values | None = None) -> None:
        self.oracle = oracle
        batch = Batch.of([Group(task=oracle.trajectories[0].task, trajectories=tuple(oracle.trajectories))])
        runner = ForwardRunner(device=torch.device("cpu"), autocast=None, temperature=TEMPERATURE, token_budget=4096)
        state_value = None if values is None else runner.state_values(TableCritic(values), batch)
        self.episodes = batch.credited_tokens(batch.reward, state_value)
        self._length = torch.bincount(self.episodes.trajectory)  # [n]
        self._first = self._length.cumsum(0) - self._length  # [n]
        self._choice = torch.cat(oracle.choice)

    def push(self, members: torch.Tensor, credit: CreditSettings) -> torch.Tensor:
        """The summed advantage of each choice [D, C·V] in batches of members [D, G, M], each the number of an episode.

        The mean over the batch's trajectories of their tokens' advantages: the gradient of `loss.aggregation: fixed` by
        fixed_length 1 is this times the Jacobian.
        """
        size = max(1, _AT_ONCE // int(members[0].numel() * self._length.max()))
        if spans_the_batch(credit):
            size = 1
        return torch.cat([self._push(some, credit) for some in torch.split(members, size)])

    def _push(self, members: torch.Tensor, credit: CreditSettings) -> torch.Tensor:
        episodes, choice, batch = self.deal(members)
        advantage = estimate(episodes, credit).advantage  # [N]
        choices = len(self.oracle.jacobian)
        pushed = torch.zeros(len(members) * choices, dtype=torch.double)
        pushed.index_add_(0, batch * choices + choice, advantage)
        return pushed.view(len(members), choices) / members[0].numel()

    def deal(self, members: torch.Tensor) -> tuple[TokenBatch, torch.Tensor, torch.Tensor]:
        """Batches [D, G, M] as one, with the choice [N] and the batch [N] of every credited token."""
        batches, groups, size = members.shape
        member = members.flatten()  # [T]
        length = self._length[member]  # [T]
        trajectory = torch.arange(len(member)).repeat_interleave(length)  # [N]
        start = self._first[member] - (length.cumsum(0) - length)  # [T]
        token = torch.arange(len(trajectory)) + start[trajectory]  # [N]: in the deck
        group = torch.arange(batches * groups).repeat_interleave(size)  # [T]
        whole = self.episodes
        state = None
        if whole.state is not None:
            named = whole.state[token]  # [N]
            state = torch.where(named < 0, named, named + group[trajectory] * (int(whole.state.max()) + 1))
        episodes = TokenBatch(
            reward=whole.reward[token],
            trajectory=trajectory,
            turn=whole.turn[token],
            group=group,
            truncated=whole.truncated[member],
            value=None if whole.value is None else whole.value[token],
            final_value=None if whole.final_value is None else whole.final_value[member],
            state=state,
        )
        return episodes, self._choice[token], trajectory // (groups * size)


def spans_the_batch(credit: CreditSettings) -> bool:
    """Whether a group's advantages depend on what else is in the batch."""
    return credit.estimator in ("reinforce++", "reinforce++-baseline") or (credit.needs_critic and credit.whiten)


def expected_gradient(deck: Deck, credit: CreditSettings, *, group_size: int) -> torch.Tensor:
    """[P]: the mean estimate over all groups of `group_size` episodes that can be drawn, each a batch of its own."""
    oracle = deck.oracle
    groups = list(combinations_with_replacement(range(len(oracle.trajectories)), group_size))
    chance = oracle.probability[torch.tensor(groups)].prod(-1)  # [D]
    orders = torch.tensor([_orders(group) for group in groups], dtype=torch.double)  # [D]
    return (chance * orders) @ deck.push(torch.tensor(groups)[:, None], credit) @ oracle.jacobian


def _orders(group: tuple[int, ...]) -> int:
    """In how many orders its members can be drawn: 3 for (4, 4, 7)."""
    return factorial(len(group)) // prod(map(factorial, _counts(group)))


def _counts(group: tuple[int, ...]) -> Iterator[int]:
    return (group.count(member) for member in set(group))
