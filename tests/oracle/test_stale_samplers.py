"""Corrections for a stale sampler: their mean over all that older weights can sample, a change within a turn included.

Episodes are sampled by one policy up to some token and by a second one from there on, and learnt from by a third: what
asynchronous training does. The claims are those of losses/tis.py and losses/masked_is.py, written out over histories h,
with m(h) how often the samplers reach h and Q(h, a) what they earn from there on:

    no bound reached    Σ m(h) Σ_a ∇π(a|h) Q(h, a)                        the policy gradient where the samplers go
    tis_cap             Σ m(h) Σ_a min(π(a|h), cap · β(a|h)) ∇log π(a|h) Q(h, a)
    mis_cap, icepop     Σ m(h) Σ_{a: low ≤ π/β ≤ high} ∇π(a|h) Q(h, a)
"""

import dataclasses
from collections import defaultdict
from functools import cache

import pytest
import torch

from claims import assert_same
from turnwise.compute.score import score
from turnwise.credit.settings import CreditSettings
from turnwise.learner.batch import Batch
from turnwise.learner.forward_runner import ForwardRunner
from turnwise.learner.loss_inputs import choose_old_policy, prepare_loss_inputs
from turnwise.learner.objective import policy_objective
from turnwise.losses.settings import LossSettings
from turnwise.oracle import TEMPERATURE, WORLDS, TableCritic, consult
from turnwise.types import Group

CREDIT = CreditSettings(estimator="gae", whiten=False)
"""With a critic that is 0 everywhere, a token's advantage is what the episode earns from there on."""
CHANGES = [1, 2, 99]
"""After how many tokens the second sampler takes over: within the first turn or after it, later, never."""
BOUNDS = {
    "none": ({"tis_cap": 1e6}, 0.0, 1e6),
    "tis": ({"tis_cap": 1.5}, 0.0, 1.5),
    "mis": ({"mis_cap": 1.5}, 0.0, 1.5),
    "icepop": ({"icepop_band": (0.4, 2.5)}, 0.4, 2.5),
}
CLOSE = 2e-5
"""Behaviour logprobs are kept in float32."""


@cache
def sampled(world, change):
    """Every episode with the samplers' logprobs, token by token, and its probability under them."""
    older, newer = consult(WORLDS[world], seed=1), consult(WORLDS[world], seed=2)
    episodes, probability = [], []
    for one, other, chance in zip(older.trajectories, newer.trajectories, older.chance.tolist(), strict=True):
        turns, before = [], 0
        for old_turn, new_turn in zip(one.turns, other.turns, strict=True):
            cut = min(max(change - before, 0), len(old_turn.action_ids))
            versions = tuple(span for span in ((0, 4), (cut, 5)) if span[0] < len(old_turn.action_ids))
            turns.append(
                dataclasses.replace(
                    old_turn,
                    logprobs=(*old_turn.logprobs[:cut], *new_turn.logprobs[cut:]),
                    version=4 if cut else 5,
                    versions=versions if cut else (),
                )
            )
            before += len(old_turn.action_ids)
        episodes.append(dataclasses.replace(one, turns=tuple(turns)))
        probability.append(chance * torch.tensor([p for turn in turns for p in turn.logprobs]).double().sum().exp())
    return episodes, torch.stack(probability)


def estimated(world, change, loss, *, forget=False):
    """The mean of what the learner's own code makes of the samplers' episodes; uphill [P]."""
    oracle = consult(WORLDS[world])
    episodes, probability = sampled(world, change)
    if forget:
        episodes = [_as_if_the_first_weights_had_sampled_all(world, place) for place in range(len(episodes))]
    batch = Batch.of([Group(task=episodes[0].task, trajectories=tuple(episodes))])
    runner = ForwardRunner(device=torch.device("cpu"), autocast=None, temperature=TEMPERATURE, token_budget=100_000)
    old_policy = choose_old_policy(loss, dtype=torch.double, stale=batch.oldest_version < 6, single_step=True)
    inputs, metrics = prepare_loss_inputs(
        batch,
        model=oracle.policy,
        critic=TableCritic({}),
        reference=None,
        runner=runner,
        credit=CREDIT,
        loss=loss,
        old_policy=old_policy,
    )
    total = torch.zeros((), dtype=torch.double)
    for micro in runner.micro_batches(batch):
        scores = score(oracle.policy, micro, TEMPERATURE)
        each, _ = policy_objective(scores, inputs.at(micro.token), loss)
        total = total - (probability[batch.trajectory[micro.token]] * each).sum()
    return _gradient(oracle, total), metrics


def _as_if_the_first_weights_had_sampled_all(world, place):
    return sampled(world, 99)[0][place]


def claimed(world, change, low, high, *, masks):
    """The same from the probabilities themselves: no batch, no mask, no estimator, no ratio of sampled tokens."""
    oracle = consult(WORLDS[world])
    episodes, probability = sampled(world, change)
    reached, earned, samplers, place = defaultdict(float), defaultdict(float), {}, {}
    for episode, chance, choice in zip(episodes, probability.tolist(), oracle.choice, strict=True):
        history, to_come, token = (), episode.reward, 0
        for turn in episode.turns:
            history = (*history, turn.context_ids)
            for action, logprob in zip(turn.action_ids, turn.logprobs, strict=True):
                key = (history, action)
                reached[key] += chance
                earned[key] += chance * to_come
                samplers[key] = logprob
                place[key] = int(choice[token])
                history, token = (*history, action), token + 1
            to_come -= turn.reward
    visits = defaultdict(float)
    for (history, _), mass in reached.items():
        visits[history] += mass
    keys = list(reached)
    table = oracle._table(list(oracle._place))
    logprob = table[torch.tensor([place[key] for key in keys])]
    beta = torch.tensor([samplers[key] for key in keys], dtype=torch.double).exp()
    payoff = torch.tensor([visits[key[0]] * earned[key] / reached[key] for key in keys], dtype=torch.double)
    ratio = logprob.detach().exp() / beta
    if masks:
        kept = (ratio >= low) & (ratio <= high)
        return _gradient(oracle, (kept * payoff * logprob.exp()).sum())
    held = torch.minimum(logprob.detach().exp(), high * beta)
    return _gradient(oracle, (held * payoff * logprob).sum())


def _gradient(oracle, total):
    return torch.cat([part.flatten() for part in torch.autograd.grad(total, list(oracle.policy.parameters()))])


def distance(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("bounds", BOUNDS)
def test_a_correction_means_what_it_claims_of_a_stale_sampler(bounds, world, change):
    settings, low, high = BOUNDS[bounds]
    found, metrics = estimated(world, change, LossSettings(**settings))
    assert distance(found, claimed(world, change, low, high, masks=bounds in ("mis", "icepop"))) < CLOSE
    if bounds == "tis":
        assert metrics["policy/tis_capped"] > 0.05, "or the claim says nothing of the cap"
    elif bounds != "none":
        assert metrics["policy/is_masked"] > 0.05


@pytest.mark.parametrize("world", WORLDS)
def test_a_bound_that_is_reached_costs_what_is_beyond_it(world):
    whole = claimed(world, 1, 0.0, 1e6, masks=False)
    for bounds in ("tis", "mis", "icepop"):
        settings, *_ = BOUNDS[bounds]
        assert distance(estimated(world, 1, LossSettings(**settings))[0], whole) > 1e-2


@pytest.mark.parametrize("world", WORLDS)
def test_ratios_to_the_samplers_logprobs_are_a_correction_too_while_none_is_clipped(world):
    """What `old_logprobs: sampler` does, and runs whose samples are older (`updates_per_rollout`)."""
    loss = LossSettings(clip_low=0.999999, clip_high=1e6, dual_clip=None)
    found, _ = estimated(world, 1, loss)
    assert distance(found, claimed(world, 1, 0.0, 1e6, masks=False)) < CLOSE


@pytest.mark.parametrize("world", ["search", "notebook"])
def test_one_version_for_a_turn_of_two_is_not_enough(world):
    """As if a turn's tokens had all been sampled by the weights that it began with: the claim fails."""
    loss = LossSettings(tis_cap=1e6)
    exact = claimed(world, 1, 0.0, 1e6, masks=False)
    assert distance(estimated(world, 1, loss)[0], exact) < CLOSE
    assert distance(estimated(world, 1, loss, forget=True)[0], exact) > 0.1


@pytest.mark.parametrize("world", WORLDS)
def test_without_a_correction_stale_samples_mislead(world):
    """Treated as the learner's own they give another gradient; so what is corrected matters here."""
    uncorrected, _ = estimated(world, 99, LossSettings(old_logprobs="learner"))
    assert distance(uncorrected, claimed(world, 99, 0.0, 1e6, masks=False)) > 0.1


@pytest.mark.parametrize("world", WORLDS)
def test_samples_of_the_learners_own_weights_need_no_correction(world):
    oracle = consult(WORLDS[world])
    batch = Batch.of([Group(task=oracle.trajectories[0].task, trajectories=tuple(oracle.trajectories))])
    runner = ForwardRunner(device=torch.device("cpu"), autocast=None, temperature=TEMPERATURE, token_budget=100_000)
    inputs, metrics = prepare_loss_inputs(
        batch,
        model=oracle.policy,
        critic=TableCritic({}),
        reference=None,
        runner=runner,
        credit=CREDIT,
        loss=LossSettings(tis_cap=2.0),
        old_policy="learner",
    )
    assert metrics["policy/tis_capped"] == 0
    assert_same(inputs.sampler_weight, torch.ones_like(inputs.sampler_weight), "weights", tolerance=1e-5)
