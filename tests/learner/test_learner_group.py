"""A group of learners, driven from rank 0, is one learner: updates, supervised steps, state; and it ends as one."""

import copy

import pytest
import torch

from episodes_by_hand import episode, group, turn
from learner_gradients import in_two_ranks
from turnwise.credit.settings import CreditSettings
from turnwise.errors import ConfigError
from turnwise.learner.batch import Batch
from turnwise.learner.group import LearnerGroup, LearnerWorker, follow
from turnwise.learner.parallel import SINGLE, SingleProcess
from turnwise.learner.saved_state import named_tensors
from turnwise.learner.settings import CriticSettings, LearnerSettings, OptimizerSettings, SFTSettings
from turnwise.losses.settings import LossSettings
from turnwise.models.loading import load_model
from turnwise.models.settings import ModelSettings, SmallSettings

SETTINGS = ModelSettings(
    small=SmallSettings(layers=1, width=16, heads=2, positions=32, vocabulary=280, induction=False), device="cpu"
)
OPTIMIZER = OptimizerSettings(lr=0.01)
SPEC = {
    "settings": LearnerSettings(optimizer=OPTIMIZER, critic=CriticSettings(optimizer=OPTIMIZER)),
    "credit": CreditSettings(estimator="gae"),
    "loss": LossSettings(kl_coef=0.1),
    "temperature": 1.0,
    "total_steps": 3,
}
GROUPS = [
    group(
        episode(turn([1, 2], [3, 4], opens=True), turn([5], [6, 7, 8], reward=1.0)),
        episode(turn([1, 2], [9], opens=True, reward=0.3)),
        episode(turn([1, 2], [4, 4, 4, 4], opens=True, reward=-0.5)),
    )
]


def _train(learners):
    """Two supervised steps, then two updates with a state that is saved and loaded between them."""
    loaded = load_model(SETTINGS, seed=7, texts=lambda: ["a text", "another text"])
    learners.load_model(loaded, SETTINGS, seed=7)
    learners.begin_sft(SFTSettings(optimizer=OPTIMIZER), total_steps=2, seed=0)
    metrics = [one for step in range(2) for one in learners.sft_step(Batch.of(GROUPS), step=step)]
    metrics += learners.finish_sft()
    learners.make_learner(**SPEC)
    metrics.append(learners.update(GROUPS, seed=1).metrics)
    state = learners.full_state()
    learners.make_learner(**SPEC)
    learners.restore(version=2, saved=state)
    metrics.append(learners.update(GROUPS, seed=2).metrics)
    return metrics, loaded.model.state_dict(), learners.full_state()["learner"]["version"]


def _train_or_follow(parallel):
    if not parallel.is_main:
        return follow(parallel)
    with LearnerGroup(parallel) as learners:
        return _train(learners)


@pytest.mark.parametrize("ahead", [0, 1])
def test_two_ranks_driven_by_one_do_what_one_process_does(ahead, monkeypatch):
    monkeypatch.setattr("turnwise.learner.sft._steps_ahead", lambda device: ahead)
    expected, expected_weights, expected_version = _train(LearnerGroup())
    (metrics, weights, version), nothing = in_two_ranks(_train_or_follow)
    assert nothing is None
    assert version == expected_version == 3
    for found, alone in zip(metrics, expected, strict=True):
        assert found.keys() == alone.keys()
        assert found == pytest.approx(alone, abs=1e-5)
    assert metrics[0]["sft/loss"] > 1
    assert metrics[2]["policy/grad_norm"] > 0
    assert metrics[3]["optim/lr"] == expected[3]["optim/lr"]
    for name, weight in expected_weights.items():
        torch.testing.assert_close(weights[name], weight, atol=1e-4, rtol=0, msg=name)


def test_a_critic_that_is_not_needed_for_a_while_comes_back_as_it_was():
    """Algorithm settings change twice: what a learner between them lacks is kept, in checkpoints too."""
    learners = LearnerGroup()
    learners.load_model(load_model(SETTINGS, seed=7, texts=lambda: ["a text"]), SETTINGS, seed=7)
    learners.make_learner(**SPEC)
    learners.update(GROUPS, seed=1)
    before = copy.deepcopy(learners.full_state())
    plain = SPEC | {"credit": CreditSettings(estimator="grpo"), "loss": LossSettings()}
    learners.keep_state()
    learners.make_learner(**plain)
    learners.restore(version=5)
    between = learners.full_state()
    assert between["learner"].keys() == {"version", "optimizer"}
    assert between["learner"]["version"] == 5
    assert between["inactive"].keys() == {"critic", "critic_optimizer", "reference"}
    learners.make_learner(**plain)
    learners.restore(version=5, saved=copy.deepcopy(between))
    learners.update(GROUPS, seed=2)
    learners.keep_state()
    learners.make_learner(**SPEC)
    learners.restore(version=7)
    after = learners.full_state()
    assert after["inactive"] == {}
    for part in ("critic", "reference", "critic_optimizer"):
        found, expected = (named_tensors(state["learner"][part]) for state in (after, before))
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)
    steps = [state["learner"]["optimizer"]["adam"]["state"][0]["step"] for state in (before, after)]
    assert steps == [1, 2], "what both have goes on"


class Recording(SingleProcess):
    """Keeps what is broadcast, and counts barriers."""

    def __init__(self):
        self.sent, self.barriers = [], 0

    def broadcast(self, value):
        self.sent.append(value)
        return value

    def barrier(self):
        self.barriers += 1


def test_the_other_ranks_are_let_go_whether_or_not_the_run_failed():
    parallel = Recording()
    with LearnerGroup(parallel):
        pass
    assert parallel.sent == [LearnerWorker.stop]
    with pytest.raises(ConfigError), LearnerGroup(parallel):
        raise ConfigError("between two calls")
    assert parallel.sent == [LearnerWorker.stop] * 2
    assert parallel.barriers == 2, "nobody leaves before all have heard"


def test_the_other_ranks_leave_when_all_have_heard():
    class Second(Recording):
        def broadcast(self, value):
            assert value is None
            return LearnerWorker.stop

    parallel = Second()
    follow(parallel)
    assert parallel.barriers == 1


def test_ranks_that_wait_within_a_call_are_sent_no_other():
    """They would take the next message for a part of the sums they wait for."""
    parallel = Recording()
    with pytest.raises(AssertionError, match="the model is loaded first"), LearnerGroup(parallel) as learners:
        learners.make_learner(**SPEC)
    assert [call.func for call in parallel.sent] == [LearnerWorker.make_learner]


def test_what_only_rank_0_can_refuse_is_refused_before_the_others_hear_of_it():
    parallel = Recording()
    learners = LearnerGroup(parallel)
    learners.load_model(load_model(SETTINGS, seed=7, texts=lambda: ["a text"]), SETTINGS, seed=7)
    learners.make_learner(**SPEC | {"credit": CreditSettings(estimator="grpo")})
    calls = len(parallel.sent)
    with pytest.raises(ConfigError, match=r"^credit\.estimator: grpo compares"):
        learners.update([group(GROUPS[0].trajectories[0])], seed=0)
    assert len(parallel.sent) == calls


def test_only_rank_0_drives():
    class Second(SingleProcess):
        is_main = False

    with pytest.raises(AssertionError, match="the other ranks follow"):
        LearnerGroup(Second())
    assert SINGLE.is_main


def test_every_update_is_published_to_the_model_that_is_sampled_from():
    """A rank that learns on a copy of its own (a shard) hands its weights back; in one process the two are one."""

    class Counting(SingleProcess):
        published = 0

        def publish(self, trained, model):
            self.published += 1
            assert trained is model
            super().publish(trained, model)

    parallel = Counting()
    learners = LearnerGroup(parallel)
    loaded = load_model(SETTINGS, seed=7, texts=lambda: ["a text", "another text"])
    learners.load_model(loaded, SETTINGS, seed=7)
    learners.make_learner(**SPEC)
    before = parallel.published
    for seed in (1, 2):
        learners.update(GROUPS, seed=seed)
    assert parallel.published == before + 2
    learners.begin_sft(SFTSettings(optimizer=OPTIMIZER), total_steps=1, seed=0)
    learners.sft_step(Batch.of(GROUPS), step=0)
    learners.finish_sft()
    assert parallel.published == before + 3, "and so is what was learnt by imitation"
