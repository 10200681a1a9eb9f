"""Training while sampling, for real: whose weights sampled which token, and what a killed run loses."""

import asyncio
import os
import signal
import threading
import time

import pytest
import torch
from transformers import AutoModelForCausalLM

from stale_runs import (
    ROLLOUT,
    STEPS,
    Paid,
    assert_every_seed_once,
    check_versions,
    groups_of,
    roll_back_once,
    run_stale,
    stale_config,
)
from tiny_runs import Silent, model_folder, records
from turnwise.errors import ConfigError, RunInterrupted
from turnwise.learner.learner import Learner
from turnwise.ledger import Ledger
from turnwise.losses.settings import STALE_TIS_CAP
from turnwise.runs import read_metrics
from turnwise.training.trainer import run_training


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    learn, threads = Learner.learn, set()

    def note_thread(self, batch, *, seed):
        threads.add(threading.current_thread().name)
        return learn(self, batch, seed=seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "learn", note_thread)
        run = run_stale(tmp_path_factory.mktemp("async") / "run")
    assert threads == {"turnwise-update_0"}, "updates run beside the event loop"
    return run


def test_every_logprob_is_that_of_the_weights_that_its_token_says(finished):
    """Recomputed by a plain forward of the checkpoint of that step, within turns that two versions sampled, too."""
    found = check_versions(finished, STEPS)
    assert found.ages == {0, 1}, "step s is update s - 1, of weights s - 1 or s - 2"
    assert found.mixed_turns, "or nothing was loaded within a turn"
    assert found.wrong_by_turn > 1e-2, "one version for the whole of such a turn would be wrong"


def test_the_age_of_what_was_learnt_from_is_recorded(finished):
    trained = records(finished, "train")
    assert [record["step"] for record in trained] == list(range(1, STEPS + 1))
    assert {record["staleness/max"] for record in trained} <= {0, 1}
    assert trained[0]["staleness/mean"] == 0
    assert any(record["staleness/mixed_turns"] > 0 for record in trained)
    assert all(record["staleness/dropped_groups"] == 0 for record in trained)
    assert all("policy/tis_weight" in record for record in trained)
    assert trained[-1]["staleness/groups_ahead"] == 0, "the last step leaves nothing behind"


def test_time_is_accounted_for_once(finished):
    for record in read_metrics(finished.metrics):
        spent = [value for name, value in record.items() if name.startswith("ledger/") and name.endswith("_seconds")]
        wall = record["ledger/wall_seconds"]
        assert sum(spent) - wall == pytest.approx(wall, abs=1e-6)


def test_a_signal_stops_a_run_and_nothing_is_lost_when_it_goes_on(tmp_path):
    """Groups under way or not learnt from yet are played again, by the same seeds."""

    def interrupt(event, number):
        if event == "training" and number == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return False

    run = tmp_path / "run"
    with pytest.raises(RunInterrupted, match="after step 2, which is saved"):
        run_training(stale_config(), run, env=Paid(), display=Silent(interrupt))
    assert_every_seed_once(run_training(stale_config(), run, resume=True, env=Paid(), display=Silent()), STEPS)


def test_after_a_rollback_nothing_of_the_abandoned_weights_is_learnt_from(tmp_path, monkeypatch):
    roll_back_once(monkeypatch)
    run = run_training(
        stale_config(steps=3, evaluate={"tasks": 2, "every": 0}), tmp_path / "run", env=Paid(), display=Silent()
    )
    last = records(run, "train")[-1]
    assert last["staleness/max"] == 0
    assert last["rollout/episodes"] == 8 + 4 * last["staleness/dropped_groups"]
    model = AutoModelForCausalLM.from_pretrained(model_folder(run, 1)).eval()
    for trajectory in (one for group in groups_of(run, 3)[:2] for one in group.trajectories):
        turn = trajectory.turns[0]
        with torch.no_grad():
            table = model(torch.tensor([[*turn.context_ids, *turn.action_ids]])).logits[0].log_softmax(-1)
        sampled = table[len(turn.context_ids) - 1 : -1].gather(1, torch.tensor(turn.action_ids)[:, None])[:, 0]
        assert sampled.tolist() == pytest.approx(turn.logprobs, abs=2e-4)
        assert turn.versions == ((0, 2),), "the step goes on counting"


def test_a_correction_for_stale_samples_is_the_default_and_can_be_replaced():
    assert stale_config().loss.tis_cap == STALE_TIS_CAP
    assert stale_config(rollout={**ROLLOUT, "staleness": 0}).loss.tis_cap is None
    assert stale_config(loss={"mis_cap": 3.0}).loss.tis_cap is None
    assert stale_config(loss={"tis_cap": 5.0}).loss.tis_cap == 5.0
    assert stale_config(loss={"old_logprobs": "sampler"}).loss.tis_cap is None
    assert stale_config().algorithm_settings.loss.tis_cap == STALE_TIS_CAP


def test_two_ways_to_be_stale_are_refused():
    with pytest.raises(ConfigError, match=r"rollout\.updates_per_rollout: rollout\.staleness already learns"):
        stale_config(rollout={**ROLLOUT, "updates_per_rollout": 2})


def test_waiting_for_a_thread_is_charged_to_what_the_thread_does():
    ledger = Ledger()

    async def run():
        with ledger.wait_for("update"):
            await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.05)
        await asyncio.sleep(0.03)

    with asyncio.Runner(loop_factory=ledger.new_event_loop) as runner:
        runner.run(run())
    seconds = ledger.close_step().seconds
    assert seconds["update"] >= 0.049
    assert 0.025 < seconds["tool_wait"] < 0.05
