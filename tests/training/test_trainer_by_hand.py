"""The trainer's own decisions, with stand-ins for what it drives: what happens when, and with which weights.

Every stand-in writes into one list of events, so that a test reads as the run does.
"""

import asyncio
import random
import signal
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import AsyncMock, MagicMock

import pytest
import torch

from tiny_runs import Signals, run_tiny, tiny_config
from turnwise.agents import ScriptedAgent
from turnwise.envs.base import Env
from turnwise.errors import ConfigError, EnvError, RunError, RunInterrupted, TurnwiseError
from turnwise.learner.learner import Update
from turnwise.learner.settings import SFTSettings
from turnwise.ledger import Ledger
from turnwise.models.settings import ModelSettings
from turnwise.runs import Checkpoints, read_metrics
from turnwise.stability.controller import Action
from turnwise.training import checkpoint_files
from turnwise.training import trainer as module
from turnwise.training.cold_start import demonstrated_tasks, require_demonstrations
from turnwise.training.hold_out import HeldOut
from turnwise.training.interruption import StopSignal
from turnwise.training.sampling import SynchronousRollouts
from turnwise.training.trainer import Trainer, run_training
from turnwise.types import Task


class Learners:
    """Learners whose state is which steps they have learnt, under which settings."""

    is_sharded = False

    def __init__(self, events):
        self.events, self.made, self.parts, self.state = events, [], {"optimizer"}, {}
        self.kept = {}

    def make_learner(self, **settings):
        self.made.append(settings)
        self.state = {name: f"new {name}" for name in self.parts} | {"version": 0}

    def update(self, groups, *, seed):
        self.events.append(f"learn {groups}")
        return Update(metrics={}, advantages=(), first_clip_fraction=0.25)

    def full_state(self):
        return {"learner": dict(self.state), "inactive": {}}

    def keep_state(self):
        self.kept = dict(self.state)

    def restore(self, *, version, saved=None, shards=None):
        assert shards is None
        self.state = {**(self.kept if saved is None else saved["learner"]), "version": version}


class Engine:
    context_limit = 64

    def __init__(self, events):
        self.events = events

    async def load(self, weights, version):
        self.events.append(f"load {version}")

    async def close(self):
        pass


class Collector:
    def __init__(self, events):
        self.events, self.task_sampler, self.fleet = events, MagicMock(), Engine(events)
        self.task_sampler.state_dict.return_value = {"position": 7}

    async def collect(self, step, select, *, refill, progress):
        self.events.append(f"sample {step}")
        return SimpleNamespace(kept=f"batch {step}", groups=(), number=step)


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A trainer of stand-ins; `events` is what happened, in order."""

    def save_model(model, tokenizer, folder):
        folder.mkdir()
        (folder / "weights").write_text("w")

    async def evaluate(*given, **more):
        return "result"

    monkeypatch.setattr(checkpoint_files, "save_model", save_model)
    monkeypatch.setattr(checkpoint_files, "load_weights", lambda model, folder: (folder / "weights").read_text())
    monkeypatch.setattr(module, "evaluate", evaluate)
    monkeypatch.setattr(module, "measure_health", lambda *given: None)

    def build(folder="run", **sections):
        events = []
        tokenizer = SimpleNamespace(encode=lambda text, add_special_tokens=True: [1, 9] if add_special_tokens else [9])
        loaded = SimpleNamespace(
            model=SimpleNamespace(state_dict=dict), tokenizer=tokenizer, device=torch.device("cpu"), context_limit=64
        )
        parts = SimpleNamespace(
            policy=lambda decoding: ScriptedAgent(),
            env=Signals(),
            train_tasks=Signals().tasks("train"),
            test_tasks=Signals().tasks("test"),
            held_out=HeldOut(tasks=()),
            loaded=loaded,
            render=None,
            engine=Engine(events),
            autocast=None,
            ledger=Ledger(),
            fleet=None,
        )
        recorder = MagicMock()
        recorder.start_stage.side_effect = lambda name, total: events.append(f"stage {name} of {total}")
        recorder.record_evaluation.side_effect = lambda stage, step, result: events.append(f"{stage} {step}")
        recorder.record_step.side_effect = lambda step, *given, **more: events.append(f"step {step}")
        recorder.record_checkpoint.side_effect = lambda step, saved: events.append(f"save {step}")
        recorder.flush.side_effect = lambda: events.append("flush")
        recorder.finish.side_effect = lambda step: events.append(f"finish {step}")
        directory = SimpleNamespace(
            checkpoints=tmp_path / folder,
            sft_checkpoints=tmp_path / f"{folder}-sft",
            trajectory_file=lambda stage, step: tmp_path / f"{stage}-{step}",
        )
        config = tiny_config(**sections)
        one = Trainer(config, parts, Learners(events), directory, recorder, StopSignal())
        one.collector = Collector(events)
        one.rollouts = SynchronousRollouts(one.collector, config, parts)
        one.events = events
        return one

    return build


def run(trainer):
    asyncio.run(trainer.run())
    return trainer.events


@pytest.mark.parametrize(("every", "due"), [(0, [5]), (1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (7, [5])])
def test_something_is_due_every_so_many_steps_and_at_the_end(make, every, due):
    trainer = make(steps=5)
    assert [step for step in range(1, 6) if trainer._due(step, every)] == due


def test_a_run_from_its_start_to_its_end(make):
    """The engine has the newest weights whenever it plays, and a step is saved when all of it is on the disk."""
    trainer = make(steps=3, evaluate={"tasks": 2, "every": 2, "untrained": True}, checkpoint={"every": 2})
    assert run(trainer) == [
        *("load 0", "untrained 0", "load 0", "evaluate 0", "flush", "save 0", "stage training of 3"),
        *("load 0", "sample 0", "learn batch 0", "step 1"),
        *("load 1", "sample 1", "learn batch 1", "step 2", "load 2", "evaluate 2", "flush", "save 2"),
        *("load 2", "sample 2", "learn batch 2", "step 3", "load 3", "evaluate 3", "flush", "save 3"),
        "finish 3",
    ]


def test_garbage_is_collected_once_after_each_step_and_before_what_follows_it(make, monkeypatch):
    @contextmanager
    def between_steps():
        yield lambda: trainer.events.append("collect")

    monkeypatch.setattr(module, "gc_between_steps", between_steps)
    trainer = make(steps=2, checkpoint={"every": 2})
    after = [event for event in run(trainer) if event.startswith(("step", "collect", "evaluate", "save"))]
    assert after[2:] == ["step 1", "collect", "step 2", "collect", "evaluate 2", "save 2"]


def test_the_seconds_of_an_update_are_its_own(make):
    began, trainer = time.monotonic(), make()
    run(trainer)
    assert 0 <= trainer.recorder.record_step.call_args.kwargs["update_seconds"] <= time.monotonic() - began


def test_a_new_run_forgets_what_an_earlier_one_recorded_and_a_resumed_one_does_not(make):
    first = make(steps=1)
    run(first)
    first.recorder.start.assert_called_once()
    first.recorder.resume.assert_not_called()
    again = make(steps=2)
    run(again)
    again.recorder.start.assert_not_called()


@pytest.mark.parametrize("reason", [None, "its rope is unknown"])
def test_an_engine_that_samples_slowly_is_reported(make, reason):
    trainer = make()
    trainer.parts.engine.slow_reason = reason
    run(trainer)
    assert [call.args for call in trainer.recorder.record_slow_sampling.call_args_list] == (
        [(reason,)] if reason else []
    )


def test_updates_that_share_weights_are_sampled_together_each_by_its_own_step(make):
    rollout = {"groups_per_step": 2, "group_size": 2, "updates_per_rollout": 2}
    events = run(make(steps=4, rollout=rollout, checkpoint={"every": 4}))
    played = [event for event in events if event.startswith(("load", "sample", "learn"))]
    assert played == [
        *("load 0", "load 0", "sample 0", "load 0", "sample 1", "learn batch 0", "learn batch 1"),
        *("load 2", "sample 2", "load 2", "sample 3", "learn batch 2", "learn batch 3", "load 4"),
    ]


def ask_to_stop(trainer):
    """A signal while the first step is recorded."""

    def receive(step, *given, **more):
        trainer.stop.received = signal.SIGTERM

    trainer.recorder.record_step.side_effect = receive


@pytest.mark.parametrize("every", [2, 1])
def test_a_signal_ends_the_run_after_its_step_which_is_saved_once(make, every):
    trainer = make(steps=3, checkpoint={"every": every})
    ask_to_stop(trainer)
    with pytest.raises(RunInterrupted, match="after step 1, which is saved"):
        run(trainer)
    assert [event for event in trainer.events if event.startswith("save")] == ["save 0", "save 1"]
    assert "sample 1" not in trainer.events


def test_a_signal_waits_for_samples_that_are_yet_to_be_learnt_from(make):
    rollout = {"groups_per_step": 2, "group_size": 2, "updates_per_rollout": 2}
    trainer = make(steps=4, rollout=rollout, checkpoint={"every": 4})
    ask_to_stop(trainer)
    with pytest.raises(RunInterrupted, match="after step 2, which is saved"):
        run(trainer)
    assert "learn batch 1" in trainer.events


def test_a_run_without_a_signal_is_not_stopped(make):
    trainer = make()
    trainer._stop_if_asked(0)
    assert trainer.events == []


@pytest.mark.parametrize(("every", "measured"), [(0, []), (1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3])])
def test_information_is_measured_every_so_many_steps(make, every, measured):
    trainer = make(steps=4, stability={"monitor": {"information_every": every}})
    steps = []
    trainer._measure_information = lambda rollouts: steps.append(rollouts.number + 1)
    run(trainer)
    assert steps == measured


def test_a_monitor_that_is_off_measures_nothing(make, monkeypatch):
    measured = []
    monkeypatch.setattr(module, "measure_health", lambda *given: measured.append(given))
    run(make("off", stability={"mode": "off"}))
    assert not measured
    run(make())
    assert len(measured) == 1


def test_only_the_first_update_after_sampling_is_on_policy_and_only_the_last_may_change_settings(make, monkeypatch):
    clipped = []
    monkeypatch.setattr(module, "measure_health", lambda *given: clipped.append(given[3]))
    rollout = {"groups_per_step": 2, "group_size": 2, "updates_per_rollout": 3}
    trainer = make(steps=3, rollout=rollout, checkpoint={"every": 3})
    decide, asked = trainer.controller.decide, []

    def watch(step, health, **given):
        asked.append((step, given["checkpoint"], given["may_act"]))
        return decide(step, health, **given)

    trainer.controller.decide = watch
    run(trainer)
    assert clipped == [0.25, None, None]
    assert asked == [(1, False, False), (2, False, False), (3, True, True)]


@pytest.mark.parametrize(("health", "by_env"), [("measured", {"search": "measured too"}), (None, {})])
def test_environments_are_judged_one_by_one_where_the_run_is_judged(make, monkeypatch, health, by_env):
    monkeypatch.setattr(module, "measure_health", lambda *given: health)
    monkeypatch.setattr(module, "measure_envs", lambda groups: {"search": "measured too"})
    trainer, asked = make(), []
    trainer.controller.decide = lambda step, health, **given: (
        asked.append((health, given["by_env"])) or trainer.decision
    )
    run(trainer)
    assert asked == [(health, by_env)]


def test_the_end_of_thinking_is_looked_for_without_a_tokenizers_own_marks(make, monkeypatch):
    asked = {}
    monkeypatch.setattr(module, "first_replies", lambda groups, **given: asked.update(given))
    monkeypatch.setattr(module, "measure_information", lambda *given, **more: None)
    make()._measure_information(SimpleNamespace(groups=()))
    assert asked["end_of_thinking"] == [9]


def decided(trainer, **action):
    return trainer.decision.__class__(
        settings=trainer.decision.settings, action=Action(kind="enable_starpo_s", **action)
    )


def test_other_settings_make_another_learner_with_the_state_of_the_last_one(make):
    trainer = make()
    trainer._make_learner()
    trainer.learners.state["optimizer"] = "an old optimizer"
    asyncio.run(trainer._apply(decided(trainer, step=3)))
    assert len(trainer.learners.made) == 2
    assert trainer.learners.state == {"optimizer": "an old optimizer", "version": 3}


def test_an_action_is_applied_after_the_step_that_it_follows_from(make):
    trainer = make(steps=2, checkpoint={"every": 2})
    trainer._decide = lambda step, *given: decided(trainer, step=step)
    run(trainer)
    assert len(trainer.learners.made) == 3, "the first, and one after each step"
    assert trainer.learners.state["version"] == 2


def test_a_rollback_takes_the_learner_of_its_checkpoint(make):
    trainer = make()
    trainer._make_learner()
    trainer.learners.state["optimizer"] = "as saved"
    trainer._save(2)
    trainer.learners.state["optimizer"] = "moved on"
    trainer.rollouts = AsyncMock()
    asyncio.run(trainer._apply(decided(trainer, step=3)))
    trainer.rollouts.roll_back.assert_not_awaited()
    asyncio.run(trainer._apply(decided(trainer, step=4, rollback_to=2)))
    trainer.rollouts.roll_back.assert_awaited_once()
    assert trainer.learners.state == {"optimizer": "as saved", "version": 4}


def test_without_an_action_the_learner_stays(make):
    trainer = make()
    trainer._make_learner()
    asyncio.run(trainer._apply(trainer.decision))
    assert len(trainer.learners.made) == 1


@pytest.mark.parametrize(("own", "decided", "used"), [(3, 7, 7), (7, 3, 7), (0, 0, 0)])
def test_the_critic_warms_up_for_the_longer_of_two_reasons(make, own, decided, used):
    sections = {"credit": {"estimator": "gae"}, "learner": {"critic": {"warmup": own}}}
    trainer = make(**sections)
    trainer.decision = trainer.decision.__class__(settings=trainer.decision.settings, critic_warmup_until=decided)
    trainer._make_learner()
    assert trainer.learners.made[0]["settings"].critic.warmup == used


def test_after_a_collapse_the_learner_makes_one_smaller_update_a_step(make):
    trainer = make(learner={"epochs": 2, "minibatches": 4, "optimizer": {"lr": 1e-3, "warmup_steps": 5}})
    trainer._make_learner()
    own = trainer.decision.settings
    trainer.decision = trainer.decision.__class__(settings=replace(own, lr_share=0.25))
    trainer._make_learner()
    plain, smaller = (made["settings"] for made in trainer.learners.made)
    assert (plain.epochs, plain.minibatches, plain.optimizer.lr) == (2, 4, 1e-3)
    assert (smaller.epochs, smaller.minibatches, smaller.optimizer.lr) == (1, 1, 2.5e-4)
    assert smaller.optimizer.warmup_steps == 5
    assert smaller.critic == plain.critic


def test_a_run_goes_on_from_its_last_whole_checkpoint(make, tmp_path):
    first = make(steps=2, checkpoint={"every": 1, "keep": 3})
    run(first)
    (tmp_path / "run/step-000002/state.pt").write_bytes(b"torn")
    (tmp_path / "run/step-000000/.pinned").unlink()
    again = make(steps=3, checkpoint={"every": 1, "keep": 1})
    pinned = []
    again.recorder.resume.side_effect = lambda step, finished: pinned.append(
        (tmp_path / "run/step-000000/.pinned").exists()
    )
    controller = MagicMock(wraps=again.controller)
    controller.current = again.controller.current
    again.controller = controller
    assert run(again)[:4] == ["stage training of 3", "load 1", "sample 1", "learn batch 1"]
    again.collector.task_sampler.load_state_dict.assert_called_once_with({"position": 7})
    controller.load_state_dict.assert_called_once()
    again.recorder.resume.assert_called_once_with(1, finished=False)
    assert pinned == [True], "what the run may go back to is kept from the start"
    assert again.learners.state["version"] == 1
    assert Checkpoints(tmp_path / "run").steps() == [0, 1, 3], "the start, what it resumed from, the newest"
    assert (tmp_path / "run/.step-000002.broken").is_dir(), "what was broken is set aside, not overwritten"


def test_a_resumed_run_draws_the_numbers_that_would_have_followed_its_checkpoint(make):
    random.seed(5)
    run(make(steps=1))
    expected = random.random()
    random.seed(6)
    run(make(steps=1))
    assert random.random() == expected


def test_checkpoints_of_a_cold_start_that_training_outlived_are_removed_on_resume(make, tmp_path):
    """The first process was killed after it saved step 0 and before it removed them."""
    run(make(steps=1))
    left = tmp_path / "run-sft/step-000000"
    left.mkdir(parents=True)
    (left / "state.pt").write_bytes(b"of the cold start")
    run(make(steps=2, sft={"demonstrations": 4}))
    assert not left.parent.exists()


@pytest.mark.parametrize("resumed", [True, False])
def test_a_cold_start_that_goes_on_does_not_begin_the_run_again(make, resumed):
    trainer = make(sft={"demonstrations": 4}, evaluate={"tasks": 2, "untrained": True})
    trainer.cold_start = MagicMock(resume=lambda: resumed, run=AsyncMock())
    events = run(trainer)
    trainer.cold_start.run.assert_awaited_once()
    assert ("untrained 0" in events) is not resumed
    assert trainer.recorder.start.call_count == (0 if resumed else 1)


def test_a_run_that_is_finished_has_nothing_left_to_do(make):
    run(make(steps=1))
    again = make(steps=1)
    assert run(again) == ["finish 1"]
    again.recorder.resume.assert_called_once_with(1, finished=True)


def test_more_demonstrations_include_the_fewer(make, monkeypatch):
    async def play_expert(env, tasks, **given):
        return [task.id for task in tasks]

    monkeypatch.setattr("turnwise.training.cold_start.play_expert", play_expert)
    few, many = (asyncio.run(make(sft={"demonstrations": count}).cold_start._make_demonstrations()) for count in (3, 6))
    assert many[:3] == few


@pytest.mark.parametrize(
    ("every", "minutes", "waited", "due"),
    [
        (0, 0, 10_000, []),
        (1, 0, 0, [1, 2, 3, 4]),
        (2, 0, 0, [2, 4]),
        (0, 0.5, 29, []),
        (0, 0.5, 31, [1, 2, 3, 4]),
        (0, 2, 119, []),
        (0, 2, 121, [1, 2, 3, 4]),
    ],
)
def test_a_cold_start_is_saved_by_steps_or_by_the_clock(make, every, minutes, waited, due):
    saving = {"sft_every": every, "sft_minutes": minutes}
    cold_start = make(sft={"demonstrations": 4}, checkpoint=saving).cold_start
    cold_start._saved_at = time.monotonic() - waited
    assert [step for step in range(1, 5) if cold_start._is_due(step)] == due


def test_a_cold_start_keeps_the_checkpoint_that_it_goes_on_from(make, tmp_path):
    settings = {"sft": {"demonstrations": 4}, "checkpoint": {"keep": 1}}
    make(**settings).cold_start._save(2)
    again = make(**settings).cold_start
    assert again.resume()
    for step in (3, 4):
        again._save(step)
    assert Checkpoints(tmp_path / "run-sft").steps() == [2, 4]


def test_a_signal_makes_the_cold_start_save_at_its_next_step(make):
    trainer = make(sft={"demonstrations": 4}, checkpoint={"sft_every": 0, "sft_minutes": 0})
    trainer.cold_start._saved_at = time.monotonic()
    assert not trainer.cold_start._is_due(1)
    trainer.stop.received = signal.SIGTERM
    assert trainer.cold_start._is_due(1)
    trainer.cold_start._save = lambda step: trainer.events.append(f"save {step}")
    with pytest.raises(RunInterrupted, match="after step 1 of the cold start, which is saved"):
        trainer.cold_start._pause(1)
    assert trainer.events == ["save 1"]


class Mute(Signals):
    """Has no expert."""

    expert = Env.expert


def test_demonstrations_that_cannot_be_had_are_refused_before_a_run_begins(make, tmp_path):
    parts = make().parts
    require_demonstrations(None, SimpleNamespace(env=Mute()))
    require_demonstrations(SFTSettings(), parts)
    nowhere = SimpleNamespace(has_expert=True, tasks=lambda split: [])
    empty = SimpleNamespace(env=nowhere, train_tasks=[1], held_out=HeldOut(tasks=()))
    with pytest.raises(ConfigError, match=r"no tasks in 'extra': name another split"):
        require_demonstrations(SFTSettings(split="extra"), empty)
    with pytest.raises(EnvError, match="expert"):
        require_demonstrations(SFTSettings(), SimpleNamespace(env=Mute(), train_tasks=[1]))
    with pytest.raises(TurnwiseError, match="no-such-file"):
        require_demonstrations(SFTSettings(chats=str(tmp_path / "no-such-file")), parts)


def test_questions_that_would_be_demonstrated_again_are_reported(caplog):
    questions = [Task(id=str(n), data={"question": f"What is {n}?"}) for n in range(5)]
    levels = [Task(id=str(n), seed=n) for n in range(1, 6)]
    for count, tasks in ((5, questions), (11, levels), (11, questions)):
        assert not caplog.text
        parts = SimpleNamespace(env=Signals(), train_tasks=tasks)
        require_demonstrations(SFTSettings(demonstrations=count), parts)
    assert "sft.demonstrations: 11, but 'train' has 5 tasks: some are demonstrated 3 times" in caplog.text


def test_the_expert_plays_the_tasks_that_training_has_or_those_of_another_split(make):
    parts = make().parts
    parts.train_tasks = ["mine"]
    assert demonstrated_tasks(parts, "train") == ["mine"]
    assert [task.id for task in demonstrated_tasks(parts, "extra")][:2] == ["extra-0", "extra-1"]


@pytest.mark.parametrize("cold_start", [True, False])
def test_the_controller_knows_whether_there_was_a_cold_start(make, monkeypatch, cold_start):
    known = {}
    real = module.Controller

    def watch(*given, **more):
        known.update(more)
        return real(*given, **more)

    monkeypatch.setattr(module, "Controller", watch)
    make(sft={"demonstrations": 4} if cold_start else None)
    assert known == {"cold_start": cold_start}


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    """One step of a real run, and what was shown of it."""
    shown = []
    directory = run_tiny(tmp_path_factory.mktemp("short") / "run", die=lambda *met: shown.append(met))
    return directory, shown


def test_a_run_shows_its_training_and_records_how_long_an_update_took(short_run):
    directory, shown = short_run
    assert ("training", 1) in shown
    (train,) = [record for record in read_metrics(directory.metrics) if record["stage"] == "train"]
    assert 0 < train["time/update_seconds"] < train["ledger/wall_seconds"]


def test_a_run_records_where_its_code_came_from(short_run):
    assert "tiny_runs.py" in (short_run[0].path / "sources.json").read_text()


def test_settings_that_changed_are_refused_before_a_model_is_loaded(short_run):
    """In a moment, and by the word that helps: this model could not be loaded either."""
    folder = short_run[0].path
    with pytest.raises(RunError, match=r"model\.name is '/no/such/model' now"):
        run_training(
            tiny_config().model_copy(update={"model": ModelSettings(name="/no/such/model")}), folder, resume=True
        )


def test_a_folder_has_one_run_at_a_time(tmp_path):
    def begin_another(event, number):
        if event == "training":
            with pytest.raises(RunError, match="is training this run"):
                run_tiny(tmp_path / "run", resume=True)
        return False

    run_tiny(tmp_path / "run", die=begin_another)
