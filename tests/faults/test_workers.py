"""Environments in worker processes: the same figures, whatever happens to a worker, and code that can be killed."""

import asyncio
import dataclasses
import logging
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from fickle import Counting, Desk, Litter, OnlyHere, Restless, Warns
from tiny_runs import SIGNALS, records, run_tiny, same_weights, weights
from turnwise.agents import ExpertAgent, ScriptedAgent
from turnwise.envs.base import Env
from turnwise.envs.workers import worker as worker_module
from turnwise.envs.workers.env import WorkerEnv, in_workers
from turnwise.errors import ConfigError, EnvError
from turnwise.rollout import Limits, run_episode, run_groups
from turnwise.tools.repeats import forget_repeats
from turnwise.tools.running import abandoned_threads
from turnwise.types import Step, StopReason

LONG = os.environ.get("TURNWISE_FAULTS") == "long"
TASKS = Counting().tasks("train")
CALLS = (("look_up", '{"key": "a"}'), ("ponder", '{"key": "b"}'), ("fail", "{}"))
CALLER = ScriptedAgent(
    replies=[f'<tool_call>{{"name": "{name}", "arguments": {given}}}</tool_call>' for name, given in CALLS] + ["done"]
)


@pytest.fixture(autouse=True)
def _fresh_counts():
    forget_repeats()


@pytest.fixture
def workers():
    """Makes environments with workers, and ends them."""
    made: list[WorkerEnv] = []

    def make(env: Env, count: int = 2, **options: object) -> WorkerEnv:
        made.append(in_workers(env, count, **options))
        return made[-1]

    yield make
    for env in made:
        env.host.close()


def play(env, tasks=TASKS, size=4, seconds=60.0, agent=None):
    limits = Limits(env_seconds=seconds)
    groups = asyncio.run(
        run_groups(agent or ExpertAgent(), env, tasks, group_size=size, seed=3, limits=limits, max_failures=1.0)
    )
    return [dataclasses.replace(one, seconds=0.0) for group in groups for one in group.trajectories]


def failures(trajectories):
    return {one.task.id: one.failure for one in trajectories if one.stop is StopReason.ENV_FAILED}


@pytest.mark.parametrize("mode", ["inline", "awaited"])
def test_trajectories_are_those_of_one_process(mode, workers, monkeypatch):
    monkeypatch.setattr(worker_module, "_PATIENCE", 30.0)
    monkeypatch.setattr(worker_module.Paces, "is_slow", lambda paces, method: mode == "awaited")
    env = workers(Counting())
    assert play(env) == play(Counting())
    assert env.host.counts() == {"deaths": 0, "killed": 0, "moved": 0}


def test_tools_state_and_rewards_are_those_of_one_process(workers):
    """Sync tools in a thread, async ones, one that fails, process rewards, and a reward that looks at `episode.env`."""
    tasks = Desk().tasks("train")
    agent = CALLER
    assert play(workers(Desk()), tasks, agent=agent) == play(Desk(), tasks, agent=agent)


def test_a_training_run_has_the_figures_of_one_process(tmp_path, monkeypatch):
    """Weights, metrics and demonstrations, bit for bit; the setting may differ when a run is resumed."""
    monkeypatch.setattr(worker_module, "_PATIENCE", 30.0)
    monkeypatch.setattr(worker_module.Paces, "is_slow", lambda paces, method: False)
    sft = {"demonstrations": 32, "batch": 8, "optimizer": {"lr": 1e-2}}
    sections = {"sft": sft, "evaluate": {"tasks": 4, "every": 1}}
    plain = run_tiny(tmp_path / "plain", steps=2, **sections)
    apart = run_tiny(tmp_path / "apart", steps=1, env={"name": SIGNALS, "workers": 2}, **sections)
    run_tiny(tmp_path / "apart", steps=2, resume=True, **sections)
    assert same_weights(weights(apart, 2), weights(plain, 2))

    def figures(run):
        return [{k: v for k, v in one.items() if not k.startswith("workers/")} for one in records(run)]

    kept = ("sft", "train", "evaluate")
    assert [one for one in figures(apart) if one["stage"] in kept] == [
        one for one in figures(plain) if one["stage"] in kept
    ]
    assert records(apart, "train")[0]["workers/deaths"] == 0.0


DEATHS = {"kill": "killed by SIGKILL", "segfault": "killed by SIGSEGV", "_exit": "exit code 3"}


@pytest.mark.parametrize("fault", DEATHS)
def test_a_death_that_does_not_repeat_itself_costs_nothing(fault, workers, tmp_path, caplog):
    """All episodes of the worker go on elsewhere, where they stood: what is played equals an unbroken run."""
    faults = {"train-1/2": fault, "train-5/1": fault, "train-9/reset": fault}
    env = workers(Counting(once=str(tmp_path), faults=faults))
    assert play(env) == play(Counting())
    counts = env.host.counts()
    assert counts["deaths"] == 3
    assert counts["moved"] >= 2
    assert f"a worker process ended, {DEATHS[fault]}, in " in caplog.text


@pytest.mark.parametrize("fault", DEATHS if LONG else ["kill"])
def test_an_episode_that_ends_its_worker_twice_has_failed_and_no_other(fault, workers):
    played = play(workers(Counting(faults={"train-1/2": fault})))
    assert failures(played) == {"train-1": f"task 'train-1': step: its worker process ended twice, {DEATHS[fault]}"}
    kept = [one for one in play(Counting()) if one.task.id != "train-1"]
    assert [one for one in played if one.task.id != "train-1"] == kept


@pytest.mark.parametrize(
    ("fault", "words"),
    [("raise", "step: KeyError: 'gold' ("), ("exit", "step: SystemExit: 0 (")],
)
def test_what_code_raises_is_named_as_in_one_process(fault, words, workers):
    env = Counting(faults={"train-1/2": fault})
    here, there = failures(play(env)), failures(play(workers(env)))
    assert here == there
    assert words in there["train-1"]
    assert "fickle.py" in there["train-1"]


@pytest.mark.parametrize("fault", ["block", "spin", "deaf"] if LONG else ["block", "deaf"])
def test_code_that_ignores_its_deadline_is_killed_and_costs_its_episode_alone(fault, workers, caplog, monkeypatch):
    monkeypatch.setattr("turnwise.envs.workers.fleet.GRACE", 0.3)
    env = workers(Counting(faults={"train-1/2": fault}))
    played = play(env, size=2, seconds=4.0)
    assert set(failures(played)) == {"train-1"}
    assert "step: no answer within 4 seconds (" in failures(played)["train-1"]
    assert "in strike)" in failures(played)["train-1"], "the line is named though the code runs elsewhere"
    kept = [one for one in play(Counting(), size=2) if one.task.id != "train-1"]
    assert [one for one in played if one.task.id != "train-1"] == kept
    assert 1 <= env.host.counts()["killed"] <= 2, "two episodes of the task hang, perhaps in one worker"
    assert "step of task 'train-1' ignored its cancellation: its worker is killed" in caplog.text


def test_code_that_heeds_its_cancellation_keeps_its_worker(workers):
    env = workers(Counting(faults={"train-1/2": "sleep"}))
    played = play(env, size=2, seconds=2.0)
    assert set(failures(played)) == {"train-1"}
    assert env.host.counts() == {"deaths": 0, "killed": 0, "moved": 0}


def test_an_episode_that_answers_otherwise_when_played_again_is_not_scored(workers, tmp_path):
    class_faults = {"train-1/2": "kill"}
    env = workers(Restless(once=str(tmp_path), faults=class_faults), 1)
    with pytest.raises(
        EnvError, match="it cannot be moved to another worker, as it answers otherwise when it is played"
    ):
        play(env, TASKS[1:2], size=1)


def test_workers_that_end_again_and_again_end_the_run_with_a_diagnosis(workers):
    faults = {f"{task.id}/reset": "kill" for task in TASKS}
    env = workers(Counting(faults=faults), max_deaths=5)
    with pytest.raises(EnvError) as error:
        play(env)
    words = str(error.value)
    assert "\n" not in words
    assert "every episode failed" in words
    with pytest.raises(
        EnvError, match=r"workers ended without an episode finished in between, the last killed by SIGKILL"
    ):
        asyncio.run(env.spawn().reset(TASKS[0], 1))


def test_an_environment_that_workers_cannot_make_is_one_line():
    class Local(Counting):
        pass

    with pytest.raises(ConfigError, match=r"env\.workers: Local cannot be sent to a worker"):
        in_workers(Local(), 1)
    with pytest.raises(EnvError, match=r"env\.workers: a worker cannot make the environment: .*no such luck"):
        in_workers(OnlyHere(), 1)


def test_a_spinning_tool_thread_ends_with_its_worker(workers):
    """In one process it would slow every update for the rest of the run."""
    env, threads = workers(Desk(spin=True), 1), threading.active_count()
    tasks, there = Desk().tasks("train")[:2], set(_child_seconds())
    with pytest.raises(EnvError, match=r"look_up' gave no answer within 0\.3 seconds \(.*fickle\.py"):
        play(env, tasks, size=1, agent=CALLER)
    assert abandoned_threads() == 0, "nothing spins beside the updates"
    assert threading.active_count() <= threads + 1, "the watchdog may still be there"
    deadline = time.monotonic() + 60
    while there <= set(_child_seconds()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(there - set(_child_seconds())) == 1, "the worker has left"
    with pytest.raises(EnvError):
        play(env, tasks, size=1, agent=CALLER)
    assert env.host.counts() == {"deaths": 0, "killed": 1, "moved": 0}


def _child_seconds() -> dict[int, float]:
    """Seconds of processor time by process, of all whose parents lead here."""
    found, parents = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry)] = int(fields[1])
            found[int(entry)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return {pid: seconds for pid, seconds in found.items() if pid != os.getpid() and ours(pid)}


def test_workers_end_with_the_environment():
    before = set(_child_seconds())
    env = in_workers(Counting(), 2)
    assert len(set(_child_seconds()) - before) == 3, "two workers and their nursery"
    env.host.close()
    assert not set(_child_seconds()) - before


def test_processes_that_a_worker_started_end_with_it(workers, tmp_path):
    env = workers(Litter(folder=str(tmp_path)), 1)
    play(env, TASKS[:1], size=1, agent=ScriptedAgent(replies=["!"]))
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 0)
    env.host.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("it is still there")


def test_an_environment_that_reads_tokens_is_refused():
    class Reads(Counting):
        async def receive(self, turn):
            return Step(done=True)

    with pytest.raises(ConfigError, match="Reads reads the agent's tokens"):
        in_workers(Reads(), 1)


def test_warnings_of_a_worker_are_logged_here(workers, caplog):
    with caplog.at_level(logging.WARNING):
        play(workers(Warns(), 1), TASKS[:1], size=1)
    assert "the sea is rough" in caplog.text


def test_an_episode_of_one_loop_after_another(workers):
    """A program may call asyncio.run again and again."""
    env = workers(Counting(), 1)
    seeds = [asyncio.run(run_episode(ExpertAgent(), env.spawn(), TASKS[0], episode_seed=7)).reward for _ in range(3)]
    assert len(set(seeds)) == 1
