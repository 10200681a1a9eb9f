"""Rollout workers on a Ray cluster of several nodes: what they play, and that it survives workers and nodes."""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest
import ray
from ray_runs import assert_same, jobs_of, kill_node, play_all, play_here
from slow_game import SlowGame

from tiny_runs import tiny_config
from turnwise.cluster.ray.session import connect
from turnwise.cluster.settings import RayCluster
from turnwise.errors import ConfigError, EnvError, TurnwiseError
from turnwise.training.build import assemble
from turnwise.training.on_cluster import on_cluster

CLUSTER = {"kind": "ray", "rollout_workers": 2, "start_seconds": 120.0}


def slow_config(cluster=None, **args):
    name = f"{SlowGame.__module__}:SlowGame"
    return tiny_config(env={"name": name, "args": args}, cluster=CLUSTER | (cluster or {}))


def test_workers_play_what_one_process_plays_and_a_killed_one_comes_back(nodes):
    add_node, _ = nodes
    add_node(), add_node()
    config = slow_config()
    parts = assemble(config, on_cluster=True)

    async def play(fleet):
        workers = fleet.workers
        weights = parts.loaded.model.state_dict()
        await fleet.load(weights, 3)
        undisturbed = await play_all(fleet, jobs_of(parts, seed=1))
        assert fleet.metrics()["fleet/lost"] == fleet.metrics()["fleet/replayed"] == 0
        playing = asyncio.create_task(play_all(fleet, jobs_of(parts, seed=2)))
        await asyncio.sleep(0.3)  # in the second of two waits of 0.2 seconds
        first = workers[0].pid
        os.kill(first, signal.SIGKILL)
        disturbed = await playing
        assert (fleet.lost, fleet.replayed) == (1, 3), "its half of the jobs, once"
        began = time.monotonic()
        while fleet.metrics()["fleet/workers"] < 2:
            assert time.monotonic() - began < 120
            await asyncio.sleep(0.2)
        assert workers[0].pid not in (0, first)
        await fleet.load(dict(weights), 4)
        again = await play_all(fleet, jobs_of(parts, seed=1))
        assert fleet.store.puts == 2, "one for each load, and none for the worker that came back"
        work = parts.engine.stats
        assert work.prefill_tokens > 0
        assert work == workers[0].stats.plus(workers[1].stats)
        return undisturbed, disturbed, again

    with on_cluster(config, parts) as parts:
        undisturbed, disturbed, again = asyncio.run(play(parts.fleet))
    assert_same(undisturbed, play_here(config, seed=1, version=3))
    assert_same(disturbed, play_here(config, seed=2, version=3))
    assert_same(again, play_here(config, seed=1, version=4))
    assert Counter(ray.available_resources())["CPU"] == 2, "actors and their room are released"


def test_a_group_that_is_given_up_ends_at_its_worker(nodes, tmp_path):
    """As after a rollback: it begins again elsewhere or there, and its conversations have the same names."""
    add_node, _ = nodes
    add_node()
    config = slow_config({"rollout_workers": 1}, seconds=3600, quick=1, diary=str(tmp_path))

    async def play(fleet, weights, job):
        await fleet.load(weights, 0)
        playing = asyncio.create_task(fleet.play(job))
        waiting = set()
        while len(waiting) < 2:
            await asyncio.sleep(0.05)
            waiting = {path.name.partition("-")[2] for path in tmp_path.glob("waits-*")}
        playing.cancel()
        await asyncio.wait([playing])
        return waiting - {path.name.partition("-")[2] for path in tmp_path.glob("ended-*")}

    with on_cluster(config, assemble(config, on_cluster=True)) as parts:
        (job,) = jobs_of(parts, seed=1, count=1)
        left = asyncio.run(asyncio.wait_for(play(parts.fleet, parts.loaded.model.state_dict(), job), 180))
    assert not left, "both episodes of the group have ended before the cancelled call returns"


def test_a_worker_takes_more_jobs_than_ray_lets_an_actor_have_calls(nodes):
    """They begin together, and 1,000 calls is what Ray allows unless it is asked for more."""
    add_node, _ = nodes
    add_node()
    config = slow_config({"rollout_workers": 1}, seconds=0.0, turns=1)

    async def play(fleet, weights, jobs):
        await fleet.load(weights, 0)
        return await play_all(fleet, jobs)

    with on_cluster(config, assemble(config, on_cluster=True)) as parts:
        (first,) = jobs_of(parts, seed=1, count=1)
        jobs = [replace(first, index=index, group_size=1) for index in range(1024)]
        groups = asyncio.run(asyncio.wait_for(play(parts.fleet, parts.loaded.model.state_dict(), jobs), 300))
    assert len(groups) == 1024


def test_a_node_may_be_lost_and_another_take_its_place(nodes):
    add_node, cluster = nodes
    add_node(resources={"player": 1}), add_node()
    doomed = add_node(resources={"player": 1})
    config = slow_config({"worker_resources": {"player": 1.0}})
    parts = assemble(config, on_cluster=True)

    async def play(fleet):
        await fleet.load(parts.loaded.model.state_dict(), 0)
        playing = asyncio.create_task(play_all(fleet, jobs_of(parts, seed=2)))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(kill_node, cluster, doomed)
        groups = await playing
        assert (fleet.lost, fleet.metrics()["fleet/workers"]) == (1, 1), "the third node has no player"
        add_node(resources={"player": 1})
        began = time.monotonic()
        while fleet.metrics()["fleet/workers"] < 2:
            assert time.monotonic() - began < 180
            await asyncio.sleep(0.5)
        return groups, await play_all(fleet, jobs_of(parts, seed=3))

    with on_cluster(config, parts) as parts:
        groups, later = asyncio.run(play(parts.fleet))
    assert_same(groups, play_here(config, seed=2, version=0))
    assert_same(later, play_here(config, seed=3, version=0))


@pytest.mark.parametrize(
    ("address", "raised", "message"),
    [
        (
            None,
            Exception("The node timed out\nduring startup"),
            r"^cluster: Ray did not start on this machine ",
        ),
        ("nowhere:1", ConnectionError("no answer"), r"^cluster\.address: no Ray cluster at 'nowhere:1' \(no answer\)"),
    ],
)
def test_a_cluster_that_is_not_there_is_one_line(monkeypatch, address, raised, message):
    def fail(**options):
        raise raised

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(TurnwiseError, match=message + r"[^\n]*$"), connect(RayCluster(address=address)):
        pass


def test_a_cluster_that_is_started_has_all_that_is_asked_for_in_whole_numbers(monkeypatch):
    """Ray takes no part of a resource for a node's whole."""
    asked = {}
    monkeypatch.setattr(ray, "init", lambda **options: asked.update(options))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    settings = RayCluster(rollout_workers=3, worker_cpus=40.0, worker_resources={"player": 0.5})
    with connect(settings, {"CPU": 4.0, "cpu_node": 0.02}):
        assert asked["num_cpus"] == 125
        assert asked["resources"] == {"player": 2, "cpu_node": 1}


def test_a_handler_of_signals_outlives_the_start_of_ray(monkeypatch):
    """Ray would end the process at SIGTERM, with nothing saved."""
    monkeypatch.setattr(ray, "init", lambda **options: signal.signal(signal.SIGTERM, lambda *raised: sys.exit(15)))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    before = signal.getsignal(signal.SIGTERM)
    with connect(RayCluster()):
        assert signal.getsignal(signal.SIGTERM) is before


def test_mistakes_are_one_line_in_time(nodes, monkeypatch):
    add_node, _ = nodes
    add_node()
    small = slow_config({"start_seconds": 3.0, "worker_gpus": 1.0})
    began = time.monotonic()
    with (
        pytest.raises(ConfigError, match=r"^cluster: no room within 3 seconds for 2 rollout workers[^\n]*$") as raised,
        on_cluster(small, assemble(small, on_cluster=True)),
    ):
        pass
    assert time.monotonic() - began < 60
    assert "1 CPUs, 1 GPUs each, in a cluster of 1 CPUs (1 CPUs free)" in str(raised.value)

    monkeypatch.setenv("ONLY_HERE", "1")
    lacking = slow_config({"rollout_workers": 1}, needs="ONLY_HERE")
    parts = assemble(lacking, on_cluster=True)
    with on_cluster(lacking, parts) as parts, pytest.raises(EnvError, match=r"^the game needs ONLY_HERE$"):
        asyncio.run(parts.fleet.load(parts.loaded.model.state_dict(), 0))
