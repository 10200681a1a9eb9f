"""What tests of runs on Ray share: processes that run, jobs that are played, and what both are held to."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from tiny_runs import tiny_data
from turnwise.agents.decoding import Decoding
from turnwise.ledger import Ledger
from turnwise.rollout import GroupJob, LocalWorker
from turnwise.training.build import assemble

PATIENCE = 300.0
"""Seconds: processes of ours import torch, and a machine may be busy."""


def write_recipe(folder, **sections):
    path = folder / "game.yaml"
    path.write_text(yaml.safe_dump(tiny_data(**sections)))
    return path


def start(recipe, *arguments, cwd):
    command = [sys.executable, "-m", "turnwise", "train", str(recipe), *map(str, arguments)]
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(Path(__file__).parent)])
    log = (cwd / "log.txt").open("w")
    return subprocess.Popen(
        command, cwd=cwd, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}, stdout=log, stderr=log
    )


def wait_for(condition, process=None):
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < PATIENCE
        assert process is None or process.poll() is None, "it has ended"
        time.sleep(0.05)


def steps_of(run):
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return sum(json.loads(line)["stage"] == "train" for line in lines if line.endswith("}"))


def is_alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def jobs_of(parts, seed, count=6):
    return [
        GroupJob(task=task, group_size=2, seed=seed, index=index, decoding=Decoding())
        for index, task in enumerate(list(parts.train_tasks)[:count])
    ]


def assert_same(found, expected):
    """Played alike, apart from times; logprobs but for rounding, since other turns shared their forwards."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.task == other.task
        for ours, theirs in zip(one.trajectories, other.trajectories, strict=True):
            assert (ours.stop, ours.success, len(ours.turns)) == (theirs.stop, theirs.success, len(theirs.turns))
            for turn, expected_turn in zip(ours.turns, theirs.turns, strict=True):
                for name in ("context_ids", "action_ids", "rewards", "version"):
                    assert getattr(turn, name) == getattr(expected_turn, name), name
                assert turn.logprobs == pytest.approx(expected_turn.logprobs, abs=1e-5)


async def play_all(fleet, jobs):
    return await asyncio.gather(*(fleet.play(job) for job in jobs))


def play_here(config, seed, version):
    """The same jobs in this process."""
    parts = assemble(config, ledger=Ledger())

    async def play():
        worker = LocalWorker(parts.policy(config.rollout), parts.env, config.rollout)
        await worker.load(parts.loaded.model.state_dict(), version)
        return await asyncio.gather(*(worker.play(job) for job in jobs_of(parts, seed)))

    return asyncio.run(play())


def raylet_of(node):
    return psutil.Process(node.all_processes["raylet"][0].process.pid)


def kill_node(cluster, node):
    """All processes of a node stop at once, and then it is gone, as when its power fails."""
    raylet = raylet_of(node)
    every = [raylet, *raylet.children(recursive=True)]
    for action in (psutil.Process.suspend, psutil.Process.kill):
        for one in every:
            action(one)
    cluster.remove_node(node, allow_graceful=False)
