"""What the trainer hands to the learner, and the learner to its optimizers and metrics, proved by hand."""

import math
import tempfile
from pathlib import Path

import pytest
import torch

from episodes_by_hand import episode, group, tiny_llama, turn, with_exact_logprobs
from tiny_runs import records, run_tiny
from turnwise.credit.estimate import CreditSettings
from turnwise.learner.learner import Learner
from turnwise.learner.settings import CriticSettings, LearnerSettings, OptimizerSettings
from turnwise.losses.settings import LossSettings

GROUPS = [
    group(
        episode(turn([1, 2], [3, 4], opens=True), turn([5, 6], [7], reward=1.0)),
        episode(turn([1, 2], [3, 8], opens=True), turn([5, 6], [9])),
    )
]


def _learner(model, *, settings=None, estimator="gae", **loss):
    return Learner(
        model,
        settings=settings or LearnerSettings(),
        credit=CreditSettings(estimator=estimator),
        loss=LossSettings(**loss),
        temperature=1.0,
        total_steps=4,
        device=torch.device("cpu"),
    )


def prove_schedules():
    """Fails unless both schedules begin with their first rate, and go one step on with every update, not mini-batch."""
    policy = OptimizerSettings(lr=4e-5, schedule="linear")
    critic = OptimizerSettings(lr=8e-5, schedule="linear", warmup_steps=2, final_lr_share=0.5)
    settings = LearnerSettings(minibatches=2, optimizer=policy, critic=CriticSettings(optimizer=critic))
    learner = _learner(tiny_llama(), settings=settings)
    used = []
    for seed in range(4):
        metrics = learner.update(GROUPS, seed=seed).metrics
        rates = [o._adam.param_groups[0]["lr"] for o in (learner.optimizer, learner.critic_optimizer)]
        assert rates == [metrics["optim/lr"], metrics["critic/lr"]], "what is reported is what was used"
        used.append(rates)
    assert [rates[0] for rates in used] == pytest.approx([4e-5, 3e-5, 2e-5, 1e-5])
    assert [rates[1] for rates in used] == pytest.approx([4e-5, 8e-5, 8e-5, 6e-5])


def prove_kl_to_reference():
    """Fails unless `policy/kl_to_reference` is the mean of k3 with d = log π − log π_ref, on tokens of π."""
    model = tiny_llama()
    learner = _learner(model, estimator="grpo", kl_coef=0.1)
    before = with_exact_logprobs(model, GROUPS)
    with torch.no_grad():
        model.lm_head.weight.add_(torch.randn(model.lm_head.weight.shape, dtype=torch.double) * 0.3)
    now = with_exact_logprobs(model, GROUPS)
    difference = [new - old for new, old in zip(_logprobs(now), _logprobs(before), strict=True)]
    k3 = sum(math.exp(-d) - 1 + d for d in difference) / len(difference)
    swapped = sum(math.exp(d) - 1 - d for d in difference) / len(difference)
    assert abs(k3 - swapped) > 0.05 * k3, "the world tells the two apart"
    assert learner.update(now, seed=0).metrics["policy/kl_to_reference"] == pytest.approx(k3, rel=1e-4)


def _logprobs(groups):
    return [p for one in groups for trajectory in one.trajectories for move in trajectory.turns for p in move.logprobs]


def prove_the_learner_has_the_samplers_temperature():
    """Fails unless a run's learner scores its samples as they were sampled, whatever evaluation's temperature is."""
    rollout = {"temperature": 0.7, "groups_per_step": 2, "group_size": 2, "turn_tokens": 4, "max_turns": 3}
    with tempfile.TemporaryDirectory() as folder:
        run = run_tiny(Path(folder) / "run", rollout=rollout, evaluate={"tasks": 1, "temperature": 0.4})
        (record,) = records(run, "train")
    assert record["policy/sampler_gap_max"] < 1e-4
