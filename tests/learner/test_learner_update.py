"""Whole updates on a tiny Llama: they learn what is rewarded, report what they did, and do nothing loudly."""

import math
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model

from episodes_by_hand import episode, group, tiny_llama, turn, with_exact_logprobs
from turnwise.credit.estimate import CreditSettings
from turnwise.errors import ConfigError
from turnwise.learner.batch import Batch
from turnwise.learner.learner import Learner
from turnwise.learner.settings import CriticSettings, LearnerSettings, OptimizerSettings, SFTSettings
from turnwise.learner.sft import SFTLearner
from turnwise.losses.settings import LossSettings
from turnwise.types import StopReason

GOOD = episode(turn([1, 2], [3, 4], opens=True), turn([5, 6], [7], reward=1.0))
BAD = episode(turn([1, 2], [3, 8], opens=True), turn([5, 6], [9]))
ESTIMATORS = ["gae", "grpo", "rloo", "reinforce++", "reinforce++-baseline"]


def _learner(model, *, estimator="grpo", lr=0.01, temperature=1.0, credit=None, loss=None, **settings):
    settings.setdefault("critic", CriticSettings(optimizer=OptimizerSettings(lr=0.01)))
    return Learner(
        model,
        settings=LearnerSettings(optimizer=OptimizerSettings(lr=lr), **settings),
        credit=CreditSettings(estimator=estimator, **(credit or {})),
        loss=LossSettings(**(loss or {})),
        temperature=temperature,
        total_steps=10,
        device=torch.device("cpu"),
    )


def _likelihood(model, trajectory):
    (exact,) = with_exact_logprobs(model, [group(trajectory)])
    return sum(sum(move.logprobs) for move in exact.trajectories[0].turns)


def _same(before, model):
    return all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_what_is_rewarded_becomes_likelier(estimator):
    model = tiny_llama(dtype=torch.float32)
    learner = _learner(model, estimator=estimator)
    before = _likelihood(model, GOOD), _likelihood(model, BAD)
    for step in range(3):
        update = learner.update(with_exact_logprobs(model, [group(GOOD, BAD)]), seed=step)
    assert _likelihood(model, GOOD) > before[0] + 0.3
    assert _likelihood(model, BAD) < before[1]
    assert learner.version == 3
    assert all(math.isfinite(value) for value in update.metrics.values())
    assert update.metrics["policy/steps_taken"] == 1


def test_ratios_are_one_on_the_first_pass_when_logprobs_are_exact():
    model = tiny_llama()
    groups = with_exact_logprobs(model, [group(GOOD, BAD)], temperature=0.7)
    metrics = _learner(model, temperature=0.7).update(groups, seed=0).metrics
    assert metrics["policy/sampler_gap_max"] < 1e-5
    assert metrics["policy/approx_kl"] < 1e-9
    assert metrics["policy/clip_fraction"] == 0.0
    assert metrics["policy/surrogate_loss"] == pytest.approx(0.0, abs=1e-5), "advantages ±1 over three tokens each"


def test_a_sampler_that_disagrees_is_seen():
    """Logprobs .1 too high everywhere, as from an engine with other numerics."""
    model = tiny_llama()
    (exact,) = with_exact_logprobs(model, [group(GOOD, BAD)])
    off = group(
        *(
            episode(
                *(
                    turn(
                        m.context_ids,
                        m.action_ids,
                        reward=m.reward,
                        logprobs=[p + 0.1 for p in m.logprobs],
                        opens=m.opens_row,
                    )
                    for m in t.turns
                )
            )
            for t in exact.trajectories
        )
    )
    metrics = _learner(model, epochs=2, minibatches=2, lr=1e-5).update([off], seed=0).metrics
    assert metrics["policy/sampler_gap"] == pytest.approx(0.1, abs=1e-4)
    assert metrics["policy/sampler_gap_max"] == pytest.approx(0.1, abs=1e-4)
    assert metrics["policy/steps_taken"] == 4


def test_a_samplers_gap_is_measured_before_any_step_has_moved_the_policy():
    model = tiny_llama()
    groups = with_exact_logprobs(model, [group(GOOD, BAD)])
    metrics = _learner(model, epochs=3, lr=0.1).update(groups, seed=0).metrics
    assert metrics["policy/approx_kl"] > 1e-2, "later steps are far from the sampler"
    assert metrics["policy/sampler_gap_max"] < 1e-5


def test_advantages_come_back_by_turn_and_in_the_order_given():
    failed = episode(turn([1], [2], opens=True), stop=StopReason.ENV_FAILED)
    update = _learner(tiny_llama(), estimator="rloo").update([group(failed, GOOD, BAD)], seed=0)
    assert update.advantages == ((), ((1.0, 1.0), (1.0,)), ((-1.0, -1.0), (-1.0,)))
    assert update.metrics["batch/failed_trajectories"] == 1


def test_the_learners_own_scores_come_back_by_turn():
    model = tiny_llama()
    (exact,) = with_exact_logprobs(model, [group(GOOD, BAD)])
    update = _learner(model, lr=0.1).update([exact], seed=0)
    for scored, entropies, played in zip(update.logprobs, update.entropies, exact.trajectories, strict=True):
        for logprobs, turn_entropies, move in zip(scored, entropies, played.turns, strict=True):
            assert logprobs == pytest.approx(move.logprobs, abs=1e-5), "before the step, which is a large one"
            assert len(turn_entropies) == len(move.action_ids)
            assert all(entropy > 0 for entropy in turn_entropies)
    every = [entropy for turns in update.entropies for turn in turns for entropy in turn]
    assert sum(every) / len(every) == pytest.approx(update.metrics["policy/entropy"], abs=1e-5)


def test_scores_that_a_step_came_before_are_unknown():
    model = tiny_llama()
    (exact,) = with_exact_logprobs(model, [group(GOOD, BAD)])
    update = _learner(model, lr=0.1, minibatches=2).update([exact], seed=0)
    known = [[not math.isnan(p) for turn in turns for p in turn] for turns in update.logprobs]
    assert sorted(map(all, known)) == [False, True]
    assert sorted(map(any, known)) == [False, True], "one trajectory in the first mini-batch, one in the second"
    (first,) = [place for place, tokens in enumerate(known) if all(tokens)]
    sampled = [p for move in exact.trajectories[first].turns for p in move.logprobs]
    assert [p for turn in update.logprobs[first] for p in turn] == pytest.approx(sampled, abs=1e-5)


def test_scores_of_rows_that_are_not_read_are_unknown():
    model = tiny_llama()
    groups = with_exact_logprobs(model, [group(GOOD, BAD), group(BAD, BAD)])
    update = _learner(model, estimator="rloo", skip_zero_rows=True).update(groups, seed=0)
    known = [{not math.isnan(p) for turn in turns for p in turn} for turns in update.logprobs]
    assert known == [{True}, {True}, {False}, {False}]


def test_scores_are_known_of_all_tokens_where_the_learner_reads_its_own_before_the_update():
    model = tiny_llama()
    (exact,) = with_exact_logprobs(model, [group(GOOD, BAD)])
    update = _learner(model, lr=0.1, minibatches=2, loss={"old_logprobs": "learner"}).update([exact], seed=0)
    scored = [p for turns in update.logprobs for turn in turns for p in turn]
    assert scored == pytest.approx([p for t in exact.trajectories for m in t.turns for p in m.logprobs], abs=1e-5)


def test_a_reward_paid_after_a_tool_result_is_kept():
    """A limit cut the episode off after an observation: no move follows it, and the last move still earns its pay."""
    paid = episode(turn([1, 2], [3], opens=True, reward=1.0), stop=StopReason.MAX_TURNS)
    update = _learner(tiny_llama(), estimator="rloo").update([group(paid, BAD)], seed=0)
    assert update.advantages[0] == ((1.0,),)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce++", "reinforce++-baseline"])
def test_equal_returns_are_a_counted_no_op(estimator):
    model = tiny_llama(dtype=torch.float32)
    learner = _learner(model, estimator=estimator)
    learner.update([group(GOOD, BAD)], seed=0)
    before = [p.detach().clone() for p in model.parameters()]
    flat = episode(turn([1, 2], [3, 4], opens=True, reward=0.1))
    metrics = learner.update([group(flat, flat, flat)], seed=1).metrics
    assert _same(before, model), "neither momentum nor rounding moved it"
    assert (metrics["policy/steps_idle"], metrics["policy/steps_taken"]) == (1, 0)
    assert metrics["credit/zero_variance_groups"] == 1.0
    assert all(math.isfinite(value) for value in metrics.values())
    assert learner.version == 2


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce++", "reinforce++-baseline", "gae", "reward-to-go"])
@pytest.mark.parametrize("form", ["k1", "k2", "k3"])
def test_rounding_of_a_kl_penalty_is_a_counted_no_op(estimator, form):
    """Equal rewards, the policy is its reference, and the sampler's logprobs are off by a few roundings of float32."""
    model = tiny_llama(dtype=torch.float32)
    loss = {"kl_coef": 1e-3, "kl_in": "reward", "kl_estimator": form}
    learner = _learner(model, estimator=estimator, loss=loss)
    before = [p.detach().clone() for p in model.parameters()]
    (exact,) = with_exact_logprobs(model, [group(BAD, BAD, BAD, BAD)])
    metrics = learner.update([_rounded(exact)], seed=0).metrics
    assert metrics["credit/advantage_std"] == 0.0
    assert (metrics["policy/steps_idle"], metrics["policy/steps_taken"]) == (1, 0)
    assert _same(before, model)


def _rounded(one):
    """Every logprob off by another few roundings."""
    roundings = torch.randn(64, generator=torch.Generator().manual_seed(0)).tolist()
    moved = [
        tuple(
            replace(move, logprobs=tuple(p + 8 * 2**-23 * p * roundings.pop() for p in move.logprobs))
            for move in trajectory.turns
        )
        for trajectory in one.trajectories
    ]
    return group(*(episode(*turns) for turns in moved))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_batch_of_failures_is_a_counted_no_op(estimator):
    model = tiny_llama()
    before = [p.detach().clone() for p in model.parameters()]
    failed = episode(turn([1], [2], opens=True), stop=StopReason.ENV_FAILED)
    learner = _learner(model, estimator=estimator)
    update = learner.update([group(failed, failed)], seed=0)
    assert update.advantages == ((), ())
    assert update.metrics["batch/failed_trajectories"] == 2
    assert update.metrics["batch/rows"] == 0
    assert _same(before, model)
    assert learner.version == 1


def test_groups_of_one_under_a_group_estimator_are_an_error():
    with pytest.raises(ConfigError, match="grpo compares the trajectories of one task"):
        _learner(tiny_llama()).update([group(GOOD), group(BAD)], seed=0)
    _learner(tiny_llama(), estimator="reinforce++").update([group(GOOD), group(BAD)], seed=0)


def test_the_share_of_groups_without_variance():
    metrics = _learner(tiny_llama()).update([group(GOOD, BAD), group(GOOD, GOOD, GOOD), group(BAD)], seed=0).metrics
    assert metrics["credit/zero_variance_groups"] == pytest.approx(0.5), "a group of one cannot vary and is not asked"


def test_the_critic_warms_up_alone():
    model = tiny_llama(dtype=torch.float32)
    before = [p.detach().clone() for p in model.parameters()]
    warm = CriticSettings(optimizer=OptimizerSettings(lr=0.01), warmup=2)
    learner = _learner(model, estimator="gae", critic=warm)
    losses = [learner.update([group(GOOD, BAD)], seed=step).metrics["critic/loss"] for step in range(2)]
    assert _same(before, model)
    assert losses[1] < losses[0]
    assert losses[0] == pytest.approx(0.25), "½ · 1² on the half of the tokens whose return is 1"
    metrics = learner.update([group(GOOD, BAD)], seed=2).metrics
    assert metrics["critic/warming_up"] == 0.0
    assert not _same(before, model)


def test_kl_in_the_reward_is_taken_off_action_tokens_alone():
    """Reference and policy differ by a nudge; GRPO without std gives back half the difference of penalised returns."""
    model = tiny_llama()
    learner = _learner(model, credit={"divide_by_std": False}, loss={"kl_coef": 0.5, "kl_in": "reward"}, epochs=1)
    original = with_exact_logprobs(model, [group(GOOD, BAD)])
    with torch.no_grad():
        model.lm_head.weight.add_(torch.randn(model.lm_head.weight.shape, dtype=torch.double) * 0.1)
    moved = with_exact_logprobs(model, [group(GOOD, BAD)])
    penalised = []
    for now, then in zip(moved[0].trajectories, original[0].trajectories, strict=True):
        k1 = sum(sum(m.logprobs) - sum(n.logprobs) for m, n in zip(now.turns, then.turns, strict=True))
        penalised.append(now.reward - 0.5 * k1)
    update = learner.update(moved, seed=0)
    expected = (penalised[0] - penalised[1]) / 2
    assert expected != pytest.approx(0.5, abs=1e-3)
    assert update.advantages[0][0][0] == pytest.approx(expected, abs=1e-5)
    assert update.metrics["policy/kl_to_reference"] > 0


def test_kl_in_the_loss_pulls_back_to_the_reference():
    model = tiny_llama(dtype=torch.float32)
    learner = _learner(model, loss={"kl_coef": 1.0}, lr=0.003)
    with torch.no_grad():
        model.lm_head.weight.add_(torch.randn(model.lm_head.weight.shape) * 0.3)
    divergence = [
        learner.update(with_exact_logprobs(model, [group(GOOD, GOOD)]), seed=step).metrics["policy/kl_to_reference"]
        for step in range(6)
    ]
    assert divergence[-1] < 0.7 * divergence[0]


def test_the_reference_of_an_adapter_is_the_adapter_as_it_was():
    adapted = get_peft_model(
        tiny_llama(dtype=torch.float32), LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    )
    learner = _learner(adapted, loss={"kl_coef": 0.1}, lr=0.05)
    assert len(learner.reference.state_dict()) == sum(p.requires_grad for p in adapted.parameters()) < 40
    first = learner.update([group(GOOD, BAD)], seed=0).metrics["policy/kl_to_reference"]
    assert first == pytest.approx(0.0, abs=1e-9)
    assert learner.update([group(GOOD, BAD)], seed=1).metrics["policy/kl_to_reference"] > 1e-4


def test_without_the_loss_mask_context_tokens_get_an_old_logprob_too():
    """Ratio 1 on every trained token, context included, though no sampler ever scored those."""
    model = tiny_llama()
    groups = with_exact_logprobs(model, [group(GOOD, BAD)])
    metrics = _learner(model, loss={"action_mask": False}).update(groups, seed=0).metrics
    assert metrics["policy/approx_kl"] < 1e-9
    assert metrics["policy/sampler_gap_max"] < 1e-5


@pytest.mark.parametrize("advantage_mask", [True, False])
def test_the_advantage_mask_reaches_gae(advantage_mask):
    """γ = ½, a critic of zero: the reward is two actions away from the first token, or four tokens."""
    learner = _learner(
        tiny_llama(),
        estimator="gae",
        credit={"gamma": 0.5, "lam": 1.0, "whiten": False, "advantage_mask": advantage_mask},
    )
    update = learner.update([group(GOOD)], seed=0)
    expected = ((0.25, 0.5), (1.0,)) if advantage_mask else ((0.0625, 0.125), (1.0,))
    assert update.advantages == (expected,)


def test_the_entropy_bonus_raises_entropy():
    model = tiny_llama(dtype=torch.float32)
    learner = _learner(model, loss={"entropy_coef": 1.0}, lr=0.003)
    entropy = [learner.update([group(GOOD, GOOD)], seed=s).metrics["policy/entropy"] for s in range(4)]
    assert entropy == sorted(entropy)
    assert entropy[-1] > entropy[0] + 0.05


def test_greedy_sampling_cannot_be_learnt_from():
    with pytest.raises(ConfigError, match="temperature"):
        _learner(tiny_llama(), temperature=0.0)


def test_imitation_learns_the_demonstrations():
    model = tiny_llama(dtype=torch.float32)
    settings = SFTSettings(optimizer=OptimizerSettings(lr=0.01), tokens_per_microbatch=100)
    sft = SFTLearner(model, settings, total_steps=20, seed=0)
    batch = Batch.of([group(GOOD)])
    steps = [metrics for step in range(20) for metrics in sft.step(batch, step=step)] + sft.finish()
    losses = [metrics["sft/loss"] for metrics in steps]
    assert losses[-1] < 0.2 * losses[0]
    assert losses[0] == pytest.approx(-_likelihood(tiny_llama(dtype=torch.float32), GOOD) / 3, rel=1e-4)
