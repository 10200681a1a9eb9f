"""Environments on CPU nodes of a Ray cluster: where they are, that they survive, and what they leave."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import ray
import slow_game
import yaml
from ray_runs import (
    PATIENCE,
    assert_same,
    is_alive,
    jobs_of,
    kill_node,
    play_all,
    play_here,
    raylet_of,
    start,
    steps_of,
    wait_for,
    write_recipe,
)
from slow_game import SlowGame

import turnwise
from tiny_runs import records, tiny_config, tiny_data
from turnwise.errors import ConfigError, RunInterrupted
from turnwise.rollout import LocalWorker
from turnwise.runs import RunDirectory
from turnwise.training.build import assemble
from turnwise.training.on_cluster import on_cluster, reach_cluster

ROOT = Path(turnwise.__file__).parents[2]
ON = {"kind": "ray", "cpus": 0.5, "resources": {"cpu_node": 0.1}}


def spread_config(cluster=None, workers=4, on=ON, **args):
    env = {"name": f"{SlowGame.__module__}:SlowGame", "args": args, "workers": workers, "workers_on": on}
    cluster = {"kind": "ray", "rollout_workers": 0, "start_seconds": 120.0} | (cluster or {})
    return tiny_config(env=env, cluster=cluster)


def below(node, words):
    """The processes of a node whose command line has these words."""
    found = []
    for one in raylet_of(node).children(recursive=True):
        try:
            if words in " ".join(one.cmdline()):
                found.append(one)
        except psutil.NoSuchProcess:
            continue
    return found


def workers_on(node):
    """Environment workers are forked from the one process of the node that was started for it."""
    every = below(node, "turnwise.envs.workers.nursery")
    pids = {one.pid for one in every}
    return [one for one in every if one.ppid() in pids]


def processes_in(diary):
    return {int(path.read_text().split()[0]) for path in Path(diary).glob("waits-*")}


async def play_on(parts, config, seed, count=6):
    worker = LocalWorker(parts.policy(config.rollout), parts.env, config.rollout)
    await worker.load(parts.loaded.model.state_dict(), 0)
    return await asyncio.gather(*(worker.play(job) for job in jobs_of(parts, seed, count)))


def expected(config, seed):
    """The same in this process alone."""
    env = config.env.model_copy(update={"workers": 0, "args": {**config.env.args, "diary": ""}})
    return play_here(config.model_copy(update={"env": env}), seed=seed, version=0)


def test_environments_are_on_cpu_nodes_and_engines_are_not(nodes, tmp_path):
    add_node, _ = nodes
    engine_node = add_node(num_cpus=2, resources={"engine_node": 2})
    cpu_nodes = [add_node(num_cpus=2, resources={"cpu_node": 1}) for _ in range(2)]
    config = spread_config(
        {"rollout_workers": 1, "worker_resources": {"engine_node": 1.0}}, seconds=0.05, diary=str(tmp_path)
    )

    async def play(fleet, weights, jobs):
        await fleet.load(weights, 0)
        groups = await play_all(fleet, jobs)
        engines = below(engine_node, "ray::RolloutActor")
        assert [one.pid for one in engines] == [fleet.workers[0].pid]
        return groups

    with reach_cluster(config) as reached:
        parts = assemble(config, on_cluster=reached.plays, open_nursery=reached.open_nursery)
        assert not workers_on(engine_node)
        assert sum(len(workers_on(node)) for node in cpu_nodes) == 1, "the driver tries the environment out on a node"
        with on_cluster(config, parts) as parts:
            groups = asyncio.run(play(parts.fleet, parts.loaded.model.state_dict(), jobs_of(parts, seed=1)))
            found = [{one.pid for one in workers_on(node)} for node in cpu_nodes]
            assert sorted(map(len, found)) == [2, 3], "four of the rollout worker's, spread evenly, and the driver's"
            played_in = processes_in(tmp_path)
            assert played_in <= found[0] | found[1]
            assert played_in & found[0]
            assert played_in & found[1]
            assert not below(engine_node, "EnvActor")
        parts.env.host.close()
    assert_same(groups, expected(config, seed=1))
    every = [one for node in [engine_node, *cpu_nodes] for one in below(node, "EnvActor")]
    wait_for(lambda: not any(is_alive(one) for one in every))
    wait_for(lambda: Counter(ray.available_resources())["CPU"] == 6)
    wait_for(lambda: not any(workers_on(node) for node in cpu_nodes))


def test_a_killed_worker_and_a_lost_node_cost_no_episode_and_a_new_node_takes_its_workers(nodes, tmp_path):
    """The engine is in this process: only environments are on the cluster."""
    add_node, cluster = nodes
    kept, doomed = (add_node(num_cpus=2, resources={"cpu_node": 1}) for _ in range(2))
    config = spread_config(seconds=0.4, turns=3, diary=str(tmp_path))

    async def play(parts):
        undisturbed = await play_on(parts, config, seed=1)
        assert parts.env.host.counts() == {"deaths": 0, "killed": 0, "moved": 0}
        playing = asyncio.create_task(play_on(parts, config, seed=2))
        await asyncio.sleep(0.6)  # in their second turns
        workers_on(kept)[0].kill()
        after_kill = await playing
        counts = parts.env.host.counts()
        assert counts["deaths"] == 1
        assert counts["moved"] >= 1
        assert "nodes_lost" not in counts
        playing = asyncio.create_task(play_on(parts, config, seed=3))
        await asyncio.sleep(0.6)
        await asyncio.to_thread(kill_node, cluster, doomed)
        after_loss = await playing
        counts = parts.env.host.counts()
        assert (counts["deaths"], counts["nodes_lost"]) == (3, 1), "its two workers"
        assert len(workers_on(kept)) == 2, "which nothing replaces while there is no room"
        new = add_node(num_cpus=2, resources={"cpu_node": 1})
        began = time.monotonic()
        while sum(one.ready is True for one in parts.env._fleet._workers) < 4:
            assert time.monotonic() - began < 100
            for worker in parts.env._fleet._workers:
                worker.read()
            await asyncio.sleep(0.2)
        before = processes_in(tmp_path)
        again = await play_on(parts, config, seed=4)
        assert {one.pid for one in workers_on(new)} & (processes_in(tmp_path) - before), "it plays"
        return undisturbed, after_kill, after_loss, again

    with reach_cluster(config) as reached:
        assert not reached.plays
        parts = assemble(config, open_nursery=reached.open_nursery)
        assert len(workers_on(kept)) == len(workers_on(doomed)) == 2
        found = asyncio.run(play(parts))
        parts.env.host.close()
    for seed, groups in enumerate(found, start=1):
        assert_same(groups, expected(config, seed=seed))
    wait_for(lambda: not below(kept, "EnvActor") and not workers_on(kept))
    wait_for(lambda: Counter(ray.available_resources())["CPU"] == 4)


def test_a_run_whose_driver_is_killed_leaves_no_actor_and_no_process(nodes, tmp_path):
    add_node, cluster = nodes
    node = add_node(num_cpus=2, resources={"cpu_node": 1})
    sections = {
        "env": {"name": f"{SlowGame.__module__}:SlowGame", "args": {"seconds": 0.2}, "workers": 2, "workers_on": ON},
        "cluster": {"kind": "ray", "address": cluster.address, "rollout_workers": 0},
        "steps": 1000,
    }
    process = start(write_recipe(tmp_path, **sections), "--run", "run", cwd=tmp_path)
    wait_for(lambda: steps_of(tmp_path / "run") >= 1, process)
    left = [*below(node, "EnvActor"), *below(node, "turnwise.envs.workers.nursery")]
    assert len(left) == 4, "an actor, the process that forks, and two workers"
    process.kill()
    process.wait()
    wait_for(lambda: not any(is_alive(one) for one in left))
    wait_for(lambda: Counter(ray.available_resources())["CPU"] == 2)


def test_a_run_learns_with_environments_on_two_nodes_of_which_one_is_lost(nodes, tmp_path):
    add_node, cluster = nodes
    kept, doomed = (add_node(num_cpus=1, resources={"cpu_node": 1}) for _ in range(2))
    settings = {
        "env.name": f"{ROOT / 'benchmarks/scale/slow.py'}:SlowVowels",
        "env.args": "{seconds: 0.02}",
        "env.workers": "4",
        "env.workers_on": json.dumps(ON),
        "cluster": json.dumps({"kind": "ray", "address": cluster.address, "rollout_workers": 0}),
        "steps": "50",
        "evaluate.tasks": "32",
        "evaluate.every": "0",
        "rollout.groups_per_step": "2",
    }
    overrides = [f"{name}={value}" for name, value in settings.items()]
    process = start(ROOT / "benchmarks/scale/vowels.yaml", *overrides, "--run", "run", cwd=tmp_path)
    wait_for(lambda: steps_of(tmp_path / "run") >= 10, process)
    kill_node(cluster, doomed)
    assert process.wait(PATIENCE) == 0, (tmp_path / "log.txt").read_text()
    run = RunDirectory.open(tmp_path / "run")
    trained, evaluated = records(run, "train"), records(run, "evaluate")
    assert {(one["rollout/episodes"], one["rollout/failed"]) for one in trained} == {(16, 0)}, "none is missing"
    assert sum(one["workers/deaths"] for one in trained) == 2
    assert sum(one.get("workers/nodes_lost", 0) for one in trained) == 1
    assert evaluated[0]["evaluate/success"] < 0.2
    assert evaluated[-1]["evaluate/success"] > 0.9
    wait_for(lambda: not below(kept, "EnvActor") and not below(kept, "turnwise.envs.workers.nursery"))


def test_an_environment_in_a_folder_that_ray_copies(tmp_path):
    """Its file is found by its place in the folder, on a node that has nothing else of it.

    The cluster is the run's own: it has room for the rollout worker, a second learner and all environment workers.
    """
    project, diary = tmp_path / "project", tmp_path / "diary"
    (project / "envs").mkdir(parents=True), diary.mkdir()
    shutil.copy(slow_game.__file__, project / "envs" / "mine.py")
    sections = {
        "env": {"name": "envs/mine.py:SlowGame", "args": {"diary": str(diary)}, "workers": 2, "workers_on": ON},
        "cluster": {"kind": "ray", "rollout_workers": 1, "learners": 2, "working_dir": "."},
        "steps": 1,
    }
    (project / "game.yaml").write_text(yaml.safe_dump(tiny_data(**sections)))
    command = [sys.executable, "-m", "turnwise", "train", "game.yaml", "--run", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    files = {Path(path.read_text().split()[1]) for path in diary.glob("waits-*")}
    assert files, "the driver's own smoke test, and the rollout worker's episodes"
    assert not any(file.is_relative_to(project) for file in files), "all by the copy"


def test_room_that_is_not_there_is_one_line(nodes):
    add_node, _ = nodes
    add_node(num_cpus=1, resources={"cpu_node": 1})
    config = spread_config({"start_seconds": 3.0}, workers=4)
    with (
        reach_cluster(config) as reached,
        pytest.raises(
            ConfigError, match=r"^cluster: no room within 3 seconds for 4 environment workers[^\n]*$"
        ) as raised,
    ):
        assemble(config, open_nursery=reached.open_nursery)
    assert "0.5 CPUs, 0.1 cpu_node each, in a cluster of 1 CPUs, 1 cpu_node" in str(raised.value)


def test_room_that_is_not_there_for_a_rollout_workers_environments_is_one_line(nodes):
    """It is the worker that finds out; the driver waits for as long."""
    add_node, _ = nodes
    add_node(num_cpus=2, resources={"cpu_node": 1})
    config = spread_config({"rollout_workers": 1, "start_seconds": 25.0}, workers=4)
    with reach_cluster(config) as reached:
        parts = assemble(config, on_cluster=True, open_nursery=reached.open_nursery)
        with (
            on_cluster(config, parts) as parts,
            pytest.raises(ConfigError, match=r"^cluster: no room within 25 seconds for 4 environment workers"),
        ):
            asyncio.run(parts.fleet.load(parts.loaded.model.state_dict(), 0))
        parts.env.host.close()


def test_deaths_in_rollout_workers_reach_the_metrics_and_a_stopped_run_leaves_the_cluster_as_it_was(nodes, tmp_path):
    add_node, cluster = nodes
    node, engines = (add_node(num_cpus=2, resources={name: 1}) for name in ("cpu_node", "engine_node"))
    sections = {
        "env": {"name": f"{SlowGame.__module__}:SlowGame", "args": {"seconds": 0.2}, "workers": 2, "workers_on": ON},
        "cluster": {
            "kind": "ray",
            "address": cluster.address,
            "rollout_workers": 1,
            "worker_resources": {"engine_node": 1.0},
        },
        "steps": 1000,
    }
    process = start(write_recipe(tmp_path, **sections), "--run", "run", cwd=tmp_path)
    wait_for(lambda: steps_of(tmp_path / "run") >= 1, process)
    for worker in workers_on(node):
        worker.kill()

    def deaths():
        return sum(one["workers/deaths"] for one in records(RunDirectory.open(tmp_path / "run"), "train"))

    wait_for(lambda: deaths() >= 2, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == RunInterrupted.EXIT_CODE, (tmp_path / "log.txt").read_text()
    wait_for(lambda: Counter(ray.available_resources())["CPU"] == 4)
    wait_for(lambda: not below(node, "EnvActor") and not below(engines, "EnvActor"))
    every = records(RunDirectory.open(tmp_path / "run"), "train")
    assert {(one["rollout/episodes"], one["rollout/failed"]) for one in every} == {(16, 0)}
