"""Loss inputs of a batch under a real, tiny model: whose logprobs count, who shares a ratio, where a critic learns."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise.credit.estimate import CreditSettings
from turnwise.learner.batch import Batch
from turnwise.learner.forward_runner import ForwardRunner
from turnwise.learner.loss_inputs import choose_old_policy, prepare_loss_inputs
from turnwise.losses.settings import LossSettings
from turnwise.models.critic import Critic
from turnwise.models.reference import Reference
from turnwise.types import Group, StopReason, Task, Trajectory, Turn

RUNNER = ForwardRunner(device=torch.device("cpu"), autocast=None, temperature=1.0, token_budget=64)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).double().eval()


def _turn(context, action, *, reward=0.0, opens=False):
    return Turn(
        context_ids=context,
        action_ids=action,
        logprobs=(-1.0,) * len(action),
        rewards={"r": reward},
        opens_row=opens,
    )


def _groups(reward=1.0):
    """Two trajectories: one in a row of two turns, the other rewritten between its turns, so in two rows."""
    merged = (_turn((1, 2), (3, 4), opens=True), _turn((5,), (6, 7, 8), reward=reward))
    rewritten = (_turn((1, 2), (9,), opens=True), _turn((2, 5), (6, 3), opens=True))
    task = Task(id="t")
    both = tuple(Trajectory(task=task, turns=turns, stop=StopReason.DONE) for turns in (merged, rewritten))
    return [Group(task=task, trajectories=both)]


def _prepare(model, *, critic=None, reference=None, credit=None, reward=1.0, **loss):
    credit = credit or CreditSettings()
    action_mask = loss.get("action_mask", True)
    batch = Batch.of(_groups(reward), advantage_mask=credit.advantage_mask, action_mask=action_mask)
    settings = LossSettings(**loss)
    inputs, metrics = prepare_loss_inputs(
        batch,
        model=model,
        critic=critic,
        reference=reference,
        runner=RUNNER,
        credit=credit,
        loss=settings,
        old_policy=choose_old_policy(settings, dtype=torch.float32, stale=False, single_step=False),
    )
    return batch, inputs, metrics


def _exact(model, batch):
    """The model's own logprob of every token but the first of a row, row by row and unpadded."""
    logprob = torch.zeros(len(batch.ids), dtype=torch.double)
    for start, end in zip(batch.row_start, batch.row_start[1:], strict=False):
        ids = batch.ids[start:end]
        with torch.no_grad():
            said = model(ids[None]).logits[0].log_softmax(-1)
        logprob[start + 1 : end] = said[:-1].gather(-1, ids[1:, None]).squeeze(-1)
    return logprob


def test_the_samplers_word_is_taken_unless_it_is_corrected_for(model):
    batch, inputs, metrics = _prepare(model)
    assert inputs.old_logprob[batch.action].tolist() == [-1.0] * 8
    assert inputs.sampler_weight is None
    assert inputs.segment is None
    assert "policy/tis_weight" not in metrics


def test_correcting_takes_the_learners_word_and_weighs_by_their_ratio(model):
    batch, inputs, metrics = _prepare(model, tis_cap=1.5)
    exact = _exact(model, batch)[batch.action]
    weight = (exact + 1.0).exp().clamp(max=1.5)
    assert 0 < (weight == 1.5).double().mean() < 1, "some are capped, some are not"
    assert inputs.old_logprob[batch.action].tolist() == pytest.approx(exact.tolist(), abs=1e-5)
    assert inputs.sampler_weight[batch.action].tolist() == pytest.approx(weight.tolist(), abs=1e-5)
    assert metrics["policy/tis_weight"] == pytest.approx(float(weight.mean()), abs=1e-5)
    assert metrics["policy/tis_capped"] == pytest.approx(float((weight == 1.5).double().mean()))


@pytest.mark.parametrize(
    ("loss", "low", "high"), [({"mis_cap": 1.5}, 0.0, 1.5), ({"icepop_band": (0.4, 1.5)}, 0.4, 1.5)], ids=str
)
def test_masking_leaves_out_what_is_out_of_its_band(model, loss, low, high):
    batch, inputs, metrics = _prepare(model, **loss)
    ratio = (_exact(model, batch)[batch.action] + 1.0).exp()
    kept = (ratio >= low) & (ratio <= high)
    assert 0 < kept.double().mean() < 1, "some are masked, some are not"
    expected = torch.where(kept, ratio, 0.0)
    assert inputs.sampler_weight[batch.action].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert metrics["policy/is_masked"] == pytest.approx(float((~kept).double().mean()))
    assert metrics["policy/is_weight"] == pytest.approx(float(expected.mean()), abs=1e-5)
    assert "policy/tis_weight" not in metrics


def test_a_token_that_no_sampler_drew_counts_once(model):
    batch, inputs, metrics = _prepare(model, tis_cap=1.5, action_mask=False)
    read = batch.trained & ~batch.action
    assert int(read.sum()) == 1, "the tool's answer between the two turns"
    assert inputs.sampler_weight[read].tolist() == [1.0]
    assert inputs.old_logprob[read].tolist() == pytest.approx(_exact(model, batch)[read].tolist(), abs=1e-5)
    sampled = float(inputs.sampler_weight[batch.action].mean())
    assert metrics["policy/tis_weight"] == pytest.approx(sampled, abs=1e-5), "and is no part of the mean"


@pytest.mark.parametrize(("ratio", "expected"), [("turn", [2, 3, 1, 2]), ("trajectory", [5, 3])])
def test_a_turn_or_a_trajectory_shares_its_ratio_whatever_its_rows(model, ratio, expected):
    batch, inputs, _ = _prepare(model, form="gspo", ratio=ratio)
    _, counts = torch.unique_consecutive(inputs.segment[batch.action], return_counts=True)
    assert counts.tolist() == expected
    assert len(inputs.segment[batch.action].unique()) == len(expected)


def test_turn_gae_teaches_the_critic_where_turns_begin(model):
    critic = Critic(model)
    torch.nn.init.constant_(critic.head.bias, 0.25)
    settings = CreditSettings(estimator="turn-gae", whiten=False)
    batch, inputs, metrics = _prepare(model, critic=critic, credit=settings)
    assert batch.ids[inputs.value_mask].tolist() == [3, 6, 9, 6]
    assert inputs.value_target[inputs.value_mask].tolist() == pytest.approx([1.0, 1.0, 0.0, 0.0])
    assert inputs.advantage[batch.action].tolist() == pytest.approx([0.75] * 5 + [-0.25] * 3)
    assert metrics["critic/value_mean"] == pytest.approx(0.25)
    assert metrics["critic/explained_variance"] == pytest.approx(0.0, abs=1e-6)


def test_token_level_gae_teaches_it_everywhere(model):
    _, inputs, _ = _prepare(model, critic=Critic(model), credit=CreditSettings(estimator="gae"))
    assert inputs.value_mask is None


def test_equal_targets_leave_nothing_for_a_critic_to_explain(model):
    """0, and not the NaN of nothing over nothing."""
    settings = CreditSettings(estimator="gae", lam=1.0, whiten=False)
    _, inputs, metrics = _prepare(model, critic=Critic(model), credit=settings, reward=0.0)
    assert set(inputs.value_target.tolist()) == {0.0}
    assert metrics["critic/explained_variance"] == 0.0


@pytest.mark.parametrize("advantage_mask", [True, False])
def test_a_kl_penalty_in_the_reward_is_paid_on_every_credited_token(model, advantage_mask):
    """With the mask off, context tokens between the turns are credited too, and their KL is the policy's own."""
    policy = copy.deepcopy(model)
    reference = Reference(policy)
    with torch.no_grad():
        policy.lm_head.weight.mul_(1.5)
    credit = CreditSettings(estimator="gae", lam=1.0, whiten=False, advantage_mask=advantage_mask)
    kl = {"kl_coef": 0.5, "kl_in": "reward", "kl_estimator": "k1"}
    batch, inputs, _ = _prepare(policy, critic=Critic(model), reference=reference, credit=credit, reward=0.0, **kl)
    old = torch.where(batch.action, batch.logprob.double(), _exact(policy, batch))
    penalty = 0.5 * (old - _exact(model, batch)) * batch.credited  # [L]
    assert (penalty[batch.credited & ~batch.action].abs() > 0.01).tolist() == [True] * (not advantage_mask)
    to_go = [float(penalty[t:][batch.trajectory[t:] == batch.trajectory[t]].sum()) for t in range(len(batch.ids))]
    expected = [-to_go[t] for t in batch.credited.nonzero().flatten().tolist()]
    assert inputs.advantage[batch.credited].tolist() == pytest.approx(expected, abs=1e-5)


def test_a_kl_term_of_the_loss_is_no_part_of_the_reward(model):
    policy = copy.deepcopy(model)
    reference = Reference(policy)
    with torch.no_grad():
        policy.lm_head.weight += 0.3 * torch.randn(policy.lm_head.weight.shape, generator=torch.manual_seed(1))
    credit = CreditSettings(estimator="dr-grpo")
    kl = {"kl_coef": 0.5, "kl_estimator": "k1"}
    _, alone, _ = _prepare(policy, credit=credit)
    _, in_loss, _ = _prepare(policy, credit=credit, reference=reference, kl_in="loss", **kl)
    _, in_reward, _ = _prepare(policy, credit=credit, reference=reference, kl_in="reward", **kl)
    assert torch.equal(in_loss.advantage, alone.advantage)
    assert not torch.equal(in_reward.advantage, alone.advantage), "where it is asked for there"
