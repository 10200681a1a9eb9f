"""A learner that was saved and loaded takes, bit for bit, the step that the other one takes."""

import io

import pytest
import torch

from episodes_by_hand import episode, group, tiny_llama, turn
from turnwise.credit.estimate import CreditSettings
from turnwise.errors import RunError
from turnwise.learner.learner import Learner
from turnwise.learner.optimizer import OptimizerSettings
from turnwise.learner.settings import LearnerSettings
from turnwise.losses.settings import LossSettings

GROUPS = [
    group(
        episode(turn([1, 2], [3, 4], opens=True), turn([5, 6], [7], reward=1.0)),
        episode(turn([1, 2], [8], opens=True)),
        episode(turn([1, 2], [9, 9], opens=True, reward=0.3)),
    )
]


def _learner(estimator="gae", kl=0.1):
    model = tiny_llama(dtype=torch.float32, attention_dropout=0.1)
    return Learner(
        model,
        settings=LearnerSettings(
            epochs=2,
            minibatches=2,
            dropout=True,
            optimizer=OptimizerSettings(lr=0.01, schedule="cosine", warmup_steps=2),
        ),
        credit=CreditSettings(estimator=estimator),
        loss=LossSettings(kl_coef=kl),
        temperature=1.0,
        total_steps=8,
        device=torch.device("cpu"),
    )


def _through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_resume_is_exact():
    first = _learner()
    for step in range(3):
        first.update(GROUPS, seed=step)
    state, weights = _through_a_file(first.state_dict()), _through_a_file(first.model.state_dict())
    second = _learner()
    second.model.load_state_dict(weights)
    second.load_state_dict(state)
    assert second.version == 3
    torch.manual_seed(12345)
    one, other = first.update(GROUPS, seed=3), second.update(GROUPS, seed=3)
    assert one.metrics == other.metrics
    assert one.advantages == other.advantages
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(first.critic.parameters(), second.critic.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_reference_survives_a_resume():
    """It is the policy of the first start, not of the restart."""
    first = _learner("grpo")
    beginning = {name: p.detach().clone() for name, p in first.model.named_parameters()}
    first.update(GROUPS, seed=0)
    second = _learner("grpo")
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(first.state_dict())
    assert all(torch.equal(tensor, beginning[name]) for name, tensor in second.reference.state_dict().items())


def test_two_learners_never_share_state():
    first, second = _learner(), _learner()
    first.update(GROUPS, seed=0)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(first.state_dict())
    third = _learner()
    third.model.load_state_dict(first.model.state_dict())
    third.load_state_dict(first.state_dict())
    second.update(GROUPS, seed=1)
    assert third.update(GROUPS, seed=2).metrics == first.update(GROUPS, seed=2).metrics


def test_a_checkpoint_without_what_is_needed_is_refused():
    with pytest.raises(RunError, match="holds no critic, critic_optimizer, reference"):
        _learner().load_state_dict(_learner("grpo", kl=0.0).state_dict())


def test_the_seed_fixes_the_update():
    one, same, other = _learner("grpo"), _learner("grpo"), _learner("grpo")
    first = one.update(GROUPS, seed=5).metrics
    torch.manual_seed(99)
    assert same.update(GROUPS, seed=5).metrics == first
    assert other.update(GROUPS, seed=6).metrics != first
