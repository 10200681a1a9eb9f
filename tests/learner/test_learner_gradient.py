"""The gradient itself: exactly nothing from context under the loss mask, and the same however rows are packed."""

import pytest
import torch

from episodes_by_hand import LogitTable, episode, group, tiny_llama, turn, with_exact_logprobs
from turnwise.compute.score import score
from turnwise.credit.estimate import CreditSettings
from turnwise.learner.batch import Batch
from turnwise.learner.learner import Learner
from turnwise.learner.loss_inputs import LossInputs
from turnwise.learner.objective import policy_objective
from turnwise.learner.optimizer import OptimizerSettings
from turnwise.learner.settings import LearnerSettings
from turnwise.learner.sft import sft_loss
from turnwise.losses.settings import LossSettings

TWO_TURNS = episode(turn([1, 2], [3, 4], opens=True), turn([5, 6], [7], reward=1.0))
GROUPS = [
    group(TWO_TURNS, episode(turn([1, 2], [9], opens=True)), episode(turn([1, 2], [8, 8, 8, 8], opens=True))),
    group(
        episode(turn([4], [2, 3], opens=True, reward=0.5), turn([9, 8], [7], opens=True, reward=1.0)),
        episode(turn([4], [6, 6], opens=True), turn([1, 1, 1], [2, 2])),
    ),
]


@pytest.mark.parametrize(
    ("action_mask", "reached"),
    [(True, [False, True, True, False, False, True, False]), (False, [False, True, True, True, True, True, False])],
)
def test_which_logits_the_policy_loss_reaches(action_mask, reached):
    """prompt 1 2 · action 3 4 · observation 5 6 · action 7: position t predicts token t + 1."""
    batch = Batch.of([group(TWO_TURNS)], action_mask=action_mask)
    model = LogitTable(rows=1, width=7)
    (micro,) = batch.micro_batches(100)
    inputs = LossInputs(
        sampled=batch.action,
        old_logprob=batch.logprob,
        advantage=torch.ones(7),
        reference_logprob=batch.logprob,
    )
    settings = LossSettings(clip_high=100.0, entropy_coef=0.1, kl_coef=0.1, action_mask=action_mask)
    loss, _ = policy_objective(score(model, micro, 1.0), inputs.at(micro.token), settings)
    (batch.weights([0], "token")[micro.token] * loss).sum().backward()
    assert (model.logits.grad[0].abs().amax(-1) > 0).tolist() == reached
    assert model.logits.grad[0][~torch.tensor(reached)].abs().max() == 0.0


def test_the_gradient_with_respect_to_logits_is_the_textbook_one():
    """At ratio 1: d loss / d logits = −weight · A · (onehot − softmax)."""
    batch = Batch.of([group(TWO_TURNS)])
    model = LogitTable(rows=1, width=7)
    (micro,) = batch.micro_batches(100)
    with torch.no_grad():
        old = torch.zeros(7, dtype=torch.double)
        old[micro.token] = score(model, micro, 1.0).logprob
    inputs = LossInputs(sampled=batch.action, old_logprob=old, advantage=torch.tensor([0, 0, 2.0, -1.0, 0, 0, 3.0]))
    loss, measures = policy_objective(score(model, micro, 1.0), inputs.at(micro.token), LossSettings())
    (batch.weights([0], "token")[micro.token] * loss).sum().backward()
    probability = model.logits.detach()[0].softmax(-1)
    expected = torch.zeros_like(probability)
    for position, token, advantage in ((1, 3, 2.0), (2, 4, -1.0), (5, 7, 3.0)):
        onehot = torch.nn.functional.one_hot(torch.tensor(token), 17)
        expected[position] = -advantage / 3 * (onehot - probability[position])
    torch.testing.assert_close(model.logits.grad[0], expected, atol=1e-7, rtol=1e-6)
    assert measures["policy/approx_kl"].abs().max() < 1e-12


def _gradients(groups, *, budget, aggregation, action_mask=True, estimator="grpo"):
    """The gradients an update lays down, caught before the optimizer uses them."""
    model = tiny_llama()
    learner = Learner(
        model,
        settings=LearnerSettings(tokens_per_microbatch=budget, optimizer=OptimizerSettings(max_grad_norm=None)),
        credit=CreditSettings(estimator=estimator),
        loss=LossSettings(aggregation=aggregation, entropy_coef=0.05, kl_coef=0.1, action_mask=action_mask),
        temperature=0.9,
        total_steps=1,
        device=torch.device("cpu"),
    )
    caught = {}

    def catch(optimizer, *_):
        caught.update({name: p.grad.clone() for name, p in model.named_parameters()})

    learner.optimizer._adam.register_step_pre_hook(catch)
    learner.update(groups, seed=0)
    return caught


@pytest.mark.parametrize("aggregation", ["token", "trajectory"])
@pytest.mark.parametrize("action_mask", [True, False])
def test_micro_batches_and_padding_do_not_change_the_gradient(aggregation, action_mask):
    whole = _gradients(GROUPS, budget=1000, aggregation=aggregation, action_mask=action_mask)
    for budget in (1, 14):
        split = _gradients(GROUPS, budget=budget, aggregation=aggregation, action_mask=action_mask)
        for name, gradient in whole.items():
            torch.testing.assert_close(split[name], gradient, atol=1e-7, rtol=1e-6, msg=name)


def test_the_loss_mask_changes_the_gradient():
    on = _gradients(GROUPS, budget=1000, aggregation="token")
    off = _gradients(GROUPS, budget=1000, aggregation="token", action_mask=False)
    assert max(float((on[name] - off[name]).abs().max()) for name in on) > 1e-3


def test_an_update_equals_the_loss_written_out():
    """GRPO, token mean, no clipping at ratio 1: −1/M Σ A · log π has the same gradient."""
    model = tiny_llama()
    groups = with_exact_logprobs(model, GROUPS)
    learner = Learner(
        model,
        settings=LearnerSettings(optimizer=OptimizerSettings(max_grad_norm=None)),
        credit=CreditSettings(estimator="rloo"),
        loss=LossSettings(),
        temperature=1.0,
        total_steps=1,
        device=torch.device("cpu"),
    )
    caught = {}
    learner.optimizer._adam.register_step_pre_hook(
        lambda *_: caught.update({name: p.grad.clone() for name, p in model.named_parameters()})
    )
    fresh = tiny_llama()
    # Returns 1, 0, 0 and 1.5, 0: each less the mean of the others in its group.
    advantages = [[1.0, -0.5, -0.5], [1.5, -1.5]]
    total, count = torch.zeros((), dtype=torch.double), 0
    for g, members in zip(groups, advantages, strict=True):
        for trajectory, advantage in zip(g.trajectories, members, strict=True):
            for row in trajectory.rows():
                ids = torch.from_numpy(row.ids)
                logprob = fresh(ids[None]).logits[0].log_softmax(-1)[:-1].gather(-1, ids[1:, None])[:, 0]
                mask = torch.from_numpy(row.action_mask)[1:]
                total = total - advantage * logprob[mask].sum()
                count += int(mask.sum())
    (total / count).backward()
    update = learner.update(groups, seed=0)
    for name, parameter in fresh.named_parameters():
        torch.testing.assert_close(caught[name], parameter.grad, atol=1e-6, rtol=1e-5, msg=name)
    assert update.advantages[3] == ((1.5, 1.5), (1.5,)), "both rows of the rewritten trajectory"


def test_imitation_is_the_mean_negative_logprob_of_actions():
    model = tiny_llama()
    batch = Batch.of(GROUPS)
    weights = batch.weights(range(batch.rows), "token")
    loss = sum(sft_loss(model, micro, weights) for micro in batch.micro_batches(14))
    said = []
    for trajectory in (t for g in with_exact_logprobs(model, GROUPS) for t in g.trajectories):
        said += [logprob for move in trajectory.turns for logprob in move.logprobs]
    assert float(loss.detach()) == pytest.approx(-sum(said) / len(said), rel=1e-5)
