"""The mask proof: no gradient from what the agent read, and no advantage that depends on how long it was."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mask_proofs import (
    Shape,
    batches,
    prove_loss_mask,
    prove_text_changes_nothing,
    prove_worked_example,
    worked_example,
)
from turnwise.credit.settings import ESTIMATORS, CreditSettings
from turnwise.losses.settings import LossSettings

QUICK = settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
LOSSES = [
    {"entropy_coef": 0.05},
    {"entropy_coef": 0.05, "kl_coef": 0.1, "aggregation": "trajectory"},
    {"entropy_coef": 0.05, "kl_coef": 0.1, "kl_in": "reward", "aggregation": "fixed", "fixed_length": 7},
    {"entropy_coef": 0.05, "form": "gspo", "ratio": "turn"},
    {"entropy_coef": 0.05, "form": "gspo", "ratio": "trajectory"},
    {"entropy_coef": 0.05, "form": "cispo", "tis_cap": 2.0},
]
"""The entropy bonus sees to it that no trained token's gradient is zero by chance."""


@pytest.mark.parametrize("action_mask", [True, False])
@QUICK
@given(
    batch=batches,
    estimator=st.sampled_from(list(ESTIMATORS)),
    loss=st.sampled_from(LOSSES),
    packing=st.booleans(),
    tokens=st.sampled_from([1, 30, 10_000]),
)
def test_a_loss_reaches_the_predictions_of_what_it_sees_and_no_other(
    action_mask, batch, estimator, loss, packing, tokens
):
    """On: of the agent's own tokens alone, and exactly zero elsewhere. Off: of all that follows a prompt."""
    prove_loss_mask(
        batch, estimator, loss_settings=loss, action_mask=action_mask, packing=packing, tokens_per_microbatch=tokens
    )


@QUICK
@given(
    batch=batches,
    estimator=st.sampled_from(list(ESTIMATORS)),
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=7),
    kl=st.booleans(),
)
def test_text_between_turns_changes_no_advantage(batch, estimator, lengths, kl):
    """Inserted, deleted or lengthened; also when a divergence is taken off the rewards, and under every discount."""
    credit = CreditSettings(estimator=estimator, gamma=0.9, lam=0.8, turn_gamma=0.95, turn_lam=0.7)
    loss = LossSettings(kl_coef=0.2, kl_in="reward") if kl else LossSettings()
    prove_text_changes_nothing(batch, credit, lengths, loss=loss)


@pytest.mark.parametrize("estimator", ["gae", "bilevel-gae", "reinforce++"])
def test_without_the_mask_text_does_change_advantages(estimator):
    asked = ([Shape(1, 2, 0.0, True, None), Shape(1, 1, 1.0, False, None)], 0)
    at_once = ([Shape(1, 1, 0.5, True, None)], 0)
    credit = CreditSettings(estimator=estimator, gamma=0.9, lam=0.8, advantage_mask=False)
    with pytest.raises(AssertionError):
        prove_text_changes_nothing([[asked, asked], [at_once, at_once]], credit, [3, 1, 2])


def test_the_worked_example():
    """.364 with the advantage mask; .100 without, when values bootstrap through what was read."""
    prove_worked_example()
    assert worked_example(True) == pytest.approx(0.9 * 0.6 - 0.5 + 0.81 * 0.4)
