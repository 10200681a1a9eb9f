"""Every estimator in every layout: the learner's gradient is the formula's, to a millionth, however rows are laid out.

Together with `test_estimators`, where the formula's mean is compared with the truth, this is the proof of a gradient.
"""

import pytest

from claims import CLAIMS, assert_same
from learner_gradients import (
    LAYOUTS,
    MERGED,
    draw,
    learner_gradient,
    prove_a_seed_is_an_update,
    prove_failures_teach_nothing,
    prove_layouts,
    prove_rounding_teaches_nothing,
    prove_the_head_runs_on_trained_tokens_alone,
)
from turnwise.credit.settings import ESTIMATORS, CreditSettings
from turnwise.losses.settings import LossSettings
from turnwise.oracle import WORLDS, consult, wrong_values


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_learner_gives_the_formula_in_every_layout(estimator, world):
    *others, last = CLAIMS[estimator]
    prove_layouts(last.credit, world)
    for seed, claim in enumerate(others, 1):
        prove_layouts(claim.credit, world, MERGED, seed=seed)


@pytest.mark.parametrize("aggregation", ["token", "trajectory"])
@pytest.mark.parametrize("world", ["corridor", "notebook"])
def test_every_aggregation_in_every_layout(aggregation, world):
    """A trajectory that fills three rows, or three steps, counts once; and rows of two ranks count as one batch."""
    loss = LossSettings(aggregation=aggregation)
    prove_layouts(CreditSettings(estimator="grpo"), world, loss=loss)
    prove_layouts(CreditSettings(estimator="turn-gae", turn_lam=0.9), world, loss=loss)


@pytest.mark.parametrize(
    "form",
    [
        {"form": "cispo"},
        {"form": "gspo", "ratio": "turn"},
        {"form": "gspo", "ratio": "trajectory"},
        {"tis_cap": 2.0},
        {"mis_cap": 2.0},
        {"icepop_band": (0.5, 5.0)},
        {"dual_clip": None, "clip_high": 0.28},
    ],
    ids=str,
)
def test_every_form_of_the_loss_is_the_policy_gradient_where_the_policy_is_the_sampler(form):
    """And where a ratio is shared, so is the advantage: then it does not matter who shares it."""
    loss = LossSettings(aggregation="fixed", fixed_length=1, **form)
    prove_layouts(CreditSettings(estimator="rloo"), "notebook", LAYOUTS, loss)


@pytest.mark.parametrize("world", ["corridor", "notebook"])
def test_layouts_agree_without_the_masks_too(world):
    """But for one row per step: what was said before is then a prompt, which no switch trains on."""
    oracle = consult(WORLDS[world])
    credit = CreditSettings(estimator="bilevel-gae", gamma=0.9, lam=0.8, turn_lam=0.7, advantage_mask=False)
    loss = LossSettings(action_mask=False, entropy_coef=0.1, kl_coef=0.1, aggregation="trajectory")
    groups = [[oracle.trajectories[member] for member in group] for group in draw(oracle, 3, 2, 4)]
    first, *others = [
        learner_gradient(oracle.policy, groups, credit, layout, loss=loss, values=wrong_values(oracle))
        for layout in LAYOUTS.values()
        if not layout.steps
    ]
    for other in others:
        assert_same(other, first, world, 1e-6)


def test_an_episode_that_broke_teaches_nothing():
    prove_failures_teach_nothing()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_rounding_in_a_kl_penalty_teaches_nothing(estimator):
    """Where every reward is equal and the policy is its reference, in every layout."""
    prove_rounding_teaches_nothing(estimator)


def test_logits_are_computed_for_trained_tokens_alone():
    prove_the_head_runs_on_trained_tokens_alone()


def test_the_same_seed_is_the_same_update():
    prove_a_seed_is_an_update()
