"""The test of sampled tokens against their distribution: its rate of false alarms, and what it can see."""

import math

import numpy as np
import pytest

from turnwise.checks.parity import FLOAT32_TOLERANCE, HALF_TOLERANCE, check_parity, tolerate
from turnwise.checks.sampling import SIGMAS, calibration, check_sampling
from turnwise.checks.tokens import TokenScores
from turnwise.doctor.parity_probe import Comparison

POLICIES = {
    "even": lambda random: np.full((1, 50), 1 / 50),
    "sure, with rare exceptions": lambda random: np.array([[1 - 1e-3, 5e-4, 5e-4]]),
    "sure to different degrees": lambda random: random.dirichlet([0.02] * 20, size=64),
    "a long tail": lambda random: (1 / np.arange(1, 400) ** 1.1 / (1 / np.arange(1, 400) ** 1.1).sum())[None],
}


def draw(policy, count: int, random: np.random.Generator, power: float = 1.0) -> TokenScores:
    """Tokens of a policy (drawn at another temperature if `power` is not 1), with the numbers that are recorded."""
    logits = np.log(np.clip(policy, 1e-300, None))
    drawn = np.exp(logits * power)
    drawn /= drawn.sum(1, keepdims=True)
    states = random.integers(len(policy), size=count)
    cumulative = drawn.cumsum(1)
    tokens = (cumulative[states] < random.random(count)[:, None]).sum(1).clip(max=policy.shape[1] - 1)
    entropies = -(policy * logits).sum(1)
    logprobs = logits[states, tokens]
    return TokenScores(sampler=logprobs, learner=logprobs, entropy=entropies[states])


@pytest.mark.parametrize("name", POLICIES)
def test_sound_sampling_raises_no_alarm(name):
    random = np.random.default_rng(0)
    worst = 0.0
    for _ in range(200):
        policy = POLICIES[name](random)
        scores = draw(policy, int(random.integers(256, 2500)), random)
        fit = calibration(scores.learner, scores.entropy)
        worst = max(worst, abs(fit or 0.0))
        assert check_sampling(scores) == []
    assert worst < SIGMAS, "200 looks"


@pytest.mark.parametrize("name", ["sure to different degrees", "a long tail"])
@pytest.mark.parametrize("power", [0.7, 1.5])
def test_another_temperature_is_seen(name, power):
    random = np.random.default_rng(1)
    scores = draw(POLICIES[name](random), 16_384, random, power)  # as many as a step looks at
    (diagnosis,) = check_sampling(scores)
    assert diagnosis.kind == "sampling_distribution"
    assert ("likelier" in diagnosis.cause) == (power > 1)


def test_unlikely_tokens_may_happen_not_to_come_up():
    """As in a step of a bandit of SmolLM2's: 64 replies, each with a token of .93 beside thousands of others. That none
    of these comes up has a chance of .01, and leaves nothing by which the tokens could show how they scatter."""
    choices = np.full(64, -np.log(0.93))
    entropies = np.full(64, -0.93 * np.log(0.93) - 0.07 * np.log(0.07 / 3000))
    logprobs = -np.concatenate([choices, np.zeros(1800)])
    scores = TokenScores(sampler=logprobs, learner=logprobs, entropy=np.concatenate([entropies, np.full(1800, 1e-3)]))
    fit = calibration(scores.learner, scores.entropy)
    assert -3 < fit < -2
    assert check_sampling(scores) == []


def test_who_is_wrong_is_told_by_the_tokens():
    random = np.random.default_rng(2)
    right = draw(POLICIES["sure to different degrees"](random), 4000, random)
    raw = TokenScores(sampler=right.learner * 1.6, learner=right.learner, entropy=right.entropy)
    assert [one.kind for one in check_parity(raw, tolerance=FLOAT32_TOLERANCE)] == ["raw_logprobs"]
    wrong = TokenScores(sampler=right.learner, learner=right.learner * 1.6, entropy=right.entropy)
    assert [one.kind for one in check_parity(wrong, tolerance=FLOAT32_TOLERANCE)] == ["sampler_learner_gap"]
    assert check_parity(right, tolerance=FLOAT32_TOLERANCE) == []


def test_the_probes_of_the_doctor_allow_for_unlikely_tokens_too():
    """Its changed weights make most tokens unlikely: SmolLM2 under autocast on a CPU was named, at .042 nats."""
    one, other = np.array([-5.0, -7.0, np.nan]), np.array([-4.0, -4.0, -9.0])
    assert tolerate(0.02, one, other) == pytest.approx(0.02 * 17 / 3), "by the side that holds them likelier"
    assert tolerate(0.02, np.array([-0.5]), np.array([-9.0])) == 0.02, "a side that is wrong does not excuse itself"
    close, far = Comparison(gap=0.1, tolerance=0.11), Comparison(gap=0.12, tolerance=0.11)
    assert (close.agrees, close.differs, far.agrees, far.differs) == (True, False, False, True)
    unknown = Comparison(gap=math.nan, tolerance=0.11)
    assert (unknown.agrees, unknown.differs) == (False, False)


@pytest.mark.parametrize(("surprisal", "gap", "told"), [(0.1, 0.03, True), (5.8, 0.035, False), (5.8, 0.2, True)])
def test_rounding_is_more_for_unlikely_tokens(surprisal, gap, told):
    """An untrained SmolLM2 on a CPU in bfloat16 has ten times the gap that sure policies had on a GPU."""
    learner = np.full(1000, -surprisal)
    scores = TokenScores(sampler=learner + np.resize([gap, -gap], 1000), learner=learner, entropy=-learner)
    assert bool(check_parity(scores, tolerance=HALF_TOLERANCE)) is told


def test_few_tokens_and_sure_ones_tell_nothing():
    random = np.random.default_rng(3)
    assert calibration(*_arrays(draw(POLICIES["even"](random), 100, random))) is None
    assert calibration(*_arrays(draw(np.array([[1 - 1e-6, 1e-6]]), 3000, random))) is None


def _arrays(scores: TokenScores):
    return scores.learner, scores.entropy
