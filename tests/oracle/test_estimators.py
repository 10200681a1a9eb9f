"""The proof of every estimator: its mean over all that can happen is what `claims.CLAIMS` says it is."""

import pytest
import torch

from claims import CLAIMS, Unbiased, assert_same, prove
from credit_reference import FORMULAS
from turnwise.credit.estimate import estimate
from turnwise.credit.settings import ESTIMATORS, CreditSettings
from turnwise.learner.batch import Batch
from turnwise.learner.forward_runner import ForwardRunner
from turnwise.oracle import (
    TEMPERATURE,
    WORLDS,
    Deck,
    TableCritic,
    consult,
    expected_gradient,
    spans_the_batch,
    wrong_values,
)
from turnwise.types import Group


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_its_mean_is_what_is_claimed(estimator, world):
    assert estimator in CLAIMS, "an estimator needs a claim, and so a proof: see claims.py"
    assert estimator in FORMULAS, "and its formula by hand: see credit_reference.py"
    for claim in CLAIMS[estimator]:
        assert claim.credit.estimator == estimator
        prove(claim, world)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_what_is_called_biased_is(estimator):
    """Or else the claim should be the stronger one."""
    for claim in CLAIMS[estimator]:
        if isinstance(claim, Unbiased):
            continue
        oracle = consult(WORLDS["corridor" if spans_the_batch(claim.credit) else "search"])
        values = {(): None, ("any",): wrong_values(oracle)}.get(claim.critics, oracle.values)
        found = expected_gradient(Deck(oracle, values), claim.credit, group_size=2)
        exact = oracle.gradient(oracle.payoff(values))
        half = found * 2  # a group of two with the pair's own mean for a baseline is half the gradient
        assert min(float((one - exact).norm() / exact.norm()) for one in (found, half)) > 1e-3, claim


def test_grpo_of_two_climbs_the_rank_and_not_the_return():
    """With two responses A = ±1/√2, so its mean is E[∇log p(τ) · (P(R < R_τ) − P(R > R_τ))] / √2."""
    oracle = consult(WORLDS["search"])
    returns = oracle.payoff(None)
    ahead = (returns[:, None] > returns + 1e-9).double() - (returns[:, None] < returns - 1e-9).double()  # [n, n]
    rank = ahead @ oracle.probability / 2**0.5
    score = torch.stack([oracle.jacobian[choice].sum(0) for choice in oracle.choice])
    found = expected_gradient(Deck(oracle), CreditSettings(estimator="grpo"), group_size=2)
    assert_same(found, (oracle.probability * rank) @ score, "grpo of two")


def test_truncation_costs_estimators_without_a_critic_what_was_still_to_come():
    oracle = consult(WORLDS["corridor"])
    to_come = oracle.gradient(oracle.payoff(oracle.values)) - oracle.gradient(oracle.payoff(None))
    found = expected_gradient(Deck(oracle), CreditSettings(estimator="rloo"), group_size=2)
    assert_same(oracle.gradient(oracle.payoff(oracle.values)) - found, to_come, "rloo under a limit")
    assert float(to_come.norm()) > 0.1


@pytest.mark.parametrize("world", WORLDS)
def test_what_a_deck_deals_is_what_the_learner_would_see(world):
    oracle = consult(WORLDS[world])
    members = torch.randint(len(oracle.trajectories), (2, 2, 3), generator=torch.Generator().manual_seed(5))
    groups = [
        Group(task=oracle.trajectories[0].task, trajectories=tuple(oracle.trajectories[i] for i in group))
        for batch in members.tolist()
        for group in batch
    ]
    batch = Batch.of(groups)
    runner = ForwardRunner(device=torch.device("cpu"), autocast=None, temperature=TEMPERATURE, token_budget=40)
    made = batch.credited_tokens(batch.reward, runner.state_values(TableCritic(oracle.values), batch))
    dealt, choice, of_batch = Deck(oracle, oracle.values).deal(members)
    for name in ("reward", "trajectory", "turn", "group", "truncated", "value", "final_value"):
        assert torch.equal(getattr(dealt, name), getattr(made, name)), name
    assert _partition(dealt.state) == _partition(made.state)
    assert torch.equal(choice, torch.cat([oracle.choice[i] for i in members.flatten().tolist()]))
    assert of_batch.tolist() == [int(t) // 6 for t in made.trajectory]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_groups_are_dealt_together_only_to_estimators_that_look_no_further(estimator):
    """`spans_the_batch` decides how an expectation is computed; here it is put to the test."""
    oracle = consult(WORLDS["rooms"])
    members = torch.tensor([[[0, 9, 20]], [[3, 30, 11]]])
    for whiten in (False, True):
        credit = CreditSettings(estimator=estimator, whiten=whiten)
        deck = Deck(oracle, oracle.values if credit.needs_critic else None)
        together = estimate(deck.deal(members)[0], credit).advantage
        alone = torch.cat([estimate(deck.deal(one[None])[0], credit).advantage for one in members])
        assert torch.allclose(together, alone, atol=1e-12) is not spans_the_batch(credit)


def _partition(numbers):
    first = {}
    return [-1 if n < 0 else first.setdefault(n, len(first)) for n in numbers.tolist()]
