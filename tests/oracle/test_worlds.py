"""The oracle itself: probabilities, values and gradients that agree with each other, and moments with the truth."""

import dataclasses
import math

import pytest
import torch

from claims import assert_same
from turnwise.credit.estimate import CreditSettings
from turnwise.oracle import WORLDS, Oracle, consult, draw_policy, measure, wrong_values
from turnwise.oracle.exact import choices, last_context
from turnwise.types import StopReason


def test_together_the_worlds_have_what_gradients_have_been_got_wrong_over():
    episodes = {name: consult(world).trajectories for name, world in WORLDS.items()}
    everything = [t for some in episodes.values() for t in some]
    assert {len(t.turns) for t in everything} == {1, 2, 3}
    assert any(t.turns[0].reward and t.turns[-1].reward for t in everything), "paid on the way and at the end"
    assert any(len({turn.state_key for turn in t.turns}) < len(t.turns) for t in episodes["rooms"]), "a state met again"
    assert max(len(t.rows()) for t in episodes["notebook"]) == 3
    assert {t.stop for t in episodes["corridor"]} == {StopReason.DONE, StopReason.MAX_TURNS}
    assert all(t.tail_ids for t in episodes["corridor"] if t.stop.truncated)
    assert {len(t.tail_ids) for t in episodes["corridor"]} == {0, 1, 2, 3}
    assert any(turn.state_key is None for t in episodes["notebook"] for turn in t.turns)
    same_tokens = [t for t in episodes["search"] if [turn.action_ids for turn in t.turns] == [(1, 0), (2, 0)]]
    assert len(same_tokens) == 2, "one move, two answers of the tool"


@pytest.mark.parametrize("world", WORLDS)
def test_probabilities_sum_to_one_and_scores_to_nothing(world):
    oracle = consult(WORLDS[world])
    assert float(oracle.probability.sum()) == pytest.approx(1, abs=1e-12)
    score = torch.stack([oracle.jacobian[choice].sum(0) for choice in oracle.choice])  # [n, P]
    assert float((oracle.probability @ score).abs().max()) < 1e-12
    assert_same((oracle.probability * oracle.payoff(None)) @ score, oracle.gradient(oracle.payoff(None)), "REINFORCE")
    for trajectory, probability, chance in zip(oracle.trajectories, oracle.probability, oracle.chance, strict=True):
        said = sum(logprob for turn in trajectory.turns for logprob in turn.logprobs)
        assert float(chance) * math.exp(said) == pytest.approx(float(probability), rel=1e-9)


def test_the_gradient_is_that_of_finite_differences():
    oracle = consult(WORLDS["search"])
    gradient = oracle.gradient(oracle.payoff(None))
    step, place = 1e-5, 0
    for name, parameter in oracle.policy.named_parameters():
        moved = draw_policy(0)
        around = []
        for sign in (1, -1):
            with torch.no_grad():
                moved.get_parameter(name).view(-1)[0] += sign * step
            there = Oracle(oracle.world, moved)
            around.append(there.objective(there.payoff(None)))
            with torch.no_grad():
                moved.get_parameter(name).view(-1)[0] -= sign * step
        assert (around[0] - around[1]) / (2 * step) == pytest.approx(float(gradient[place]), abs=1e-8)
        place += parameter.numel()


@pytest.mark.parametrize("world", WORLDS)
def test_values_look_one_choice_ahead(world):
    """V(context) = Σ π(token) Q(context, token), with Q from the values of what may come of it."""
    endless = Oracle(dataclasses.replace(WORLDS[world], max_turns=None), consult(WORLDS[world]).policy)
    values = consult(WORLDS[world]).values
    assert values[WORLDS[world].prompt] == pytest.approx(endless.objective(endless.payoff(None)), abs=1e-12)
    earned, mass = {}, {}
    for trajectory, probability in zip(endless.trajectories, endless.probability.tolist(), strict=True):
        contexts = list(choices(trajectory))
        rewards = [r for turn in trajectory.turns for r in [0.0] * (len(turn.action_ids) - 1) + [turn.reward]]
        for place, (context, _) in enumerate(contexts):
            after = values[contexts[place + 1][0]] if place + 1 < len(contexts) else 0.0
            earned[context] = earned.get(context, 0.0) + probability * (rewards[place] + after)
            mass[context] = mass.get(context, 0.0) + probability
    for context, total in earned.items():
        assert total / mass[context] == pytest.approx(values[context], abs=1e-9)


def test_every_context_that_is_cut_off_has_a_value():
    oracle = consult(WORLDS["corridor"])
    cut = [t for t in oracle.trajectories if t.stop.truncated]
    assert len({last_context(t) for t in cut} & set(oracle.values)) == len({last_context(t) for t in cut}) > 3
    wrong = wrong_values(oracle)
    assert min(abs(wrong[last_context(t)] - oracle.values[last_context(t)]) for t in cut) > 1e-3


@pytest.mark.parametrize(
    ("estimator", "scale"), [("rloo", 1.0), ("dr-grpo", 0.75), ("reward-to-go", 1.0), ("gae", 1.0), ("turn-gae", 1.0)]
)
def test_measured_moments_of_the_unbiased(estimator, scale):
    credit = CreditSettings(estimator=estimator, whiten=False)
    found = measure(WORLDS["rooms"], credit, groups=2, group_size=4, samples=4000, seed=1)
    assert found.scale == pytest.approx(scale, abs=0.04)
    assert found.bias == pytest.approx(1 - scale, abs=0.05)
    assert found.cosine == pytest.approx(1, abs=0.01)
    assert found.snr == pytest.approx(found.scale * math.sqrt(8 / found.variance), rel=1e-6)


def test_measured_moments_tell_a_limit_and_a_wrong_critic():
    budget = {"groups": 2, "group_size": 4, "samples": 4000, "seed": 1}
    gae = CreditSettings(estimator="gae", lam=0.5, whiten=False)
    right = measure(WORLDS["corridor"], gae, **budget)
    wrong = measure(WORLDS["corridor"], gae, **budget, critic="wrong")
    blind = measure(WORLDS["corridor"], CreditSettings(estimator="rloo"), **budget)
    assert right.bias < 0.05 < min(wrong.bias, blind.bias)
    oracle = consult(WORLDS["corridor"])
    truth, paid = oracle.gradient(oracle.payoff(oracle.values)), oracle.gradient(oracle.payoff(None))
    assert blind.bias == pytest.approx(float((paid - truth).norm() / truth.norm()), abs=0.05)
    assert right.variance < blind.variance * 1.2
