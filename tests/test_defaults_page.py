"""docs/defaults.md says what our defaults are: its second column is held to the settings themselves."""

from pathlib import Path

import pytest

from turnwise.config import Config

PAGE = Path(__file__).parents[1] / "docs" / "defaults.md"
DEFAULTS = Config.model_validate({"env": {"name": "bandit"}})


def _short(number):
    """As the page writes it: .2"""
    return f"{number:g}".lstrip("0")


CLAIMS = {
    "estimator": f"`{DEFAULTS.credit.estimator}`",
    "responses per task": f"{DEFAULTS.rollout.group_size}",
    "γ, λ of GAE": f"{DEFAULTS.credit.gamma:g}, {DEFAULTS.credit.lam:g}",
    "clip": f"{_short(DEFAULTS.loss.clip_low)} below, {_short(DEFAULTS.loss.clip_high)} above",
    "dual clip": f"{DEFAULTS.loss.dual_clip}",
    "aggregation": f"`{DEFAULTS.loss.aggregation}`",
    "KL to the reference": f"off (`loss.kl_coef: {DEFAULTS.loss.kl_coef:g}`)",
    "place of the KL": f"`{DEFAULTS.loss.kl_in}`",
    "form of the KL": f"{DEFAULTS.loss.kl_form} in the loss",
    "entropy bonus": f"{DEFAULTS.loss.entropy_coef:g}",
    "gradient norm": f"{DEFAULTS.learner.optimizer.max_grad_norm}",
    "weight decay": f"{DEFAULTS.learner.optimizer.weight_decay:g}",
    "learning rate, policy / critic": "1e-6 / 1e-5",
    "epochs over a batch": f"{DEFAULTS.learner.epochs}",
    "optimizer steps per epoch": f"{DEFAULTS.learner.minibatches} ",
    "temperature of rollouts": f"{DEFAULTS.rollout.temperature:g}, no top-p, no top-k",
}


@pytest.mark.parametrize("what", CLAIMS)
def test_the_page_has_our_default(what):
    assert _rows()[what][1].startswith(CLAIMS[what])


def test_what_is_off_by_default_is():
    loss, learner = DEFAULTS.loss, DEFAULTS.learner
    assert (loss.tis_cap, loss.value_clip, loss.old_logprobs) == (None, None, None)
    assert (learner.optimizer.lr, learner.critic.optimizer.lr) == (1e-6, 1e-5)
    assert (DEFAULTS.rollout.top_p, DEFAULTS.rollout.top_k, learner.dropout) == (1.0, 0, False)
    assert DEFAULTS.loss.model_copy(update={"kl_in": "reward"}).kl_form == "k1"
    assert DEFAULTS.credit.divide_by_std
    assert DEFAULTS.credit.whiten
    assert DEFAULTS.stability.starpo_s.clip_high == 0.28


def test_every_row_has_every_column():
    assert {len(cells) for cells in _rows().values()} == {5}


def _rows():
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|") and not line.startswith("|--")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {cells[0]: cells for cells in rows if cells[0] != "what"}
