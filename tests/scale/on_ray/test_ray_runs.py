"""Whole runs on Ray: the same recipe changed only in `cluster`, killed in every process it has, and stopped."""

import signal

import psutil
import pytest
import torch
from ray_runs import PATIENCE, is_alive, start, steps_of, wait_for, write_recipe
from safetensors.torch import load_file
from slow_game import SlowGame

from stale_runs import assert_every_seed_once, check_versions, groups_of, roll_back_once, stale_config
from tiny_runs import SFT, Silent, records, same_weights, weights
from turnwise.cli.main import main
from turnwise.errors import RunInterrupted
from turnwise.runs import RunDirectory
from turnwise.training.export import export_model
from turnwise.training.trainer import run_training


def actors_of(process):
    """The processes of its rollout workers, where it started the cluster itself."""
    below = psutil.Process(process.pid).children(recursive=True)
    return [one for one in below if "ray::RolloutActor" in " ".join(one.cmdline())]


def test_a_run_whose_driver_was_killed_resumes_exactly_and_leaves_nothing_behind(tmp_path):
    """The driver is the learner; the other run is on Ray as well, and never killed."""
    recipe = write_recipe(tmp_path, sft=SFT, steps=3, checkpoint={"every": 1}, cluster={"kind": "ray"})
    assert start(recipe, "--run", "whole", cwd=tmp_path).wait(PATIENCE) == 0, (tmp_path / "log.txt").read_text()
    killed = start(recipe, "--run", "killed", cwd=tmp_path)
    wait_for(lambda: steps_of(tmp_path / "killed") >= 1, killed)
    actors = actors_of(killed)
    assert len(actors) == 2
    killed.kill()
    killed.wait()
    wait_for(lambda: not any(is_alive(one) for one in actors))
    assert start(recipe, "--run", "killed", "--resume", cwd=tmp_path).wait(PATIENCE) == 0
    whole, resumed = RunDirectory.open(tmp_path / "whole"), RunDirectory.open(tmp_path / "killed")
    assert len(records(whole, "train")) == 3
    for stage in ("train", "evaluate"):
        assert records(resumed, stage) == records(whole, stage), "to the last digit"
    assert same_weights(weights(resumed, 3), weights(whole, 3))
    # And in one process it is the same run, but for rounding.
    assert main(["train", str(recipe), "cluster.kind=local", "--run", str(tmp_path / "alone")]) == 0
    alone = RunDirectory.open(tmp_path / "alone")
    for name, weight in weights(alone, 3).items():
        torch.testing.assert_close(weights(whole, 3)[name], weight, atol=1e-4, rtol=0, msg=name)


def test_a_killed_worker_is_reported_and_a_stopped_run_leaves_the_users_cluster_as_it_was(nodes, tmp_path):
    import ray

    add_node, cluster = nodes
    add_node(num_cpus=2)
    recipe = write_recipe(
        tmp_path,
        env={"name": f"{SlowGame.__module__}:SlowGame", "args": {"seconds": 0.3}},
        steps=1000,
        cluster={"kind": "ray", "address": cluster.address},
    )
    process = start(recipe, "--run", "run", cwd=tmp_path)
    wait_for(lambda: steps_of(tmp_path / "run") >= 1, process)
    node = cluster.list_all_nodes()[-1]
    below = psutil.Process(node.all_processes["raylet"][0].process.pid).children(recursive=True)
    actors = [one for one in below if "ray::RolloutActor" in " ".join(one.cmdline())]
    assert len(actors) == 2
    actors[0].kill()
    findings = tmp_path / "run" / "findings.jsonl"
    wait_for(lambda: findings.exists() and "worker_lost" in findings.read_text(), process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == RunInterrupted.EXIT_CODE, (tmp_path / "log.txt").read_text()
    wait_for(lambda: ray.available_resources().get("CPU") == 2)
    wait_for(lambda: not any(is_alive(one) for one in actors))
    run = RunDirectory.open(tmp_path / "run")
    every = records(run, "train")
    assert every[-1]["fleet/lost"] == 1
    assert {(one["rollout/episodes"], one["rollout/failed"]) for one in every} == {(16, 0)}, "no episode is missing"
    assert list(run.checkpoints.iterdir())


def test_a_run_on_ray_that_samples_while_it_learns_loses_a_worker_and_no_episode(tmp_path):
    """Each token's logprob is that of the weights which it names, before and after a worker was killed."""
    steps, killed = 5, []

    def kill_after_two(event, number):
        if (event, number) == ("training", 2):
            (doomed, _) = actors_of(psutil.Process())
            doomed.kill()
            killed.append(doomed.pid)
        return False

    config = stale_config(
        env={"name": f"{SlowGame.__module__}:SlowGame", "args": {"seconds": 0.3}},
        steps=steps,
        cluster={"kind": "ray"},
        stability={"mode": "off"},
    )
    run = run_training(config, tmp_path / "run", display=Silent(kill_after_two))
    assert killed
    every = records(run, "train")
    assert [one["rollout/failed"] for one in every] == [0] * steps
    assert every[-1]["fleet/lost"] == 1
    found = check_versions(run, steps)
    assert found.ages == {0, 1}
    assert found.mixed_episodes, "new weights came while episodes waited"
    assert_every_seed_once(run, steps)


def test_after_a_rollback_the_workers_play_what_was_under_way_anew(tmp_path, monkeypatch):
    roll_back_once(monkeypatch)
    config = stale_config(
        env={"name": f"{SlowGame.__module__}:SlowGame", "args": {"seconds": 1.0}},
        steps=3,
        cluster={"kind": "ray", "rollout_workers": 1},
        evaluate={"tasks": 2, "every": 0},
    )
    run = run_training(config, tmp_path / "run", display=Silent())
    last = records(run, "train")[-1]
    assert (last["staleness/max"], last["rollout/failed"]) == (0, 0)
    assert {turn.version for group in groups_of(run, 3)[:2] for one in group.trajectories for turn in one.turns} == {2}


@pytest.mark.parametrize("shard", [False, True])
def test_learners_on_the_cluster_make_the_run_that_one_makes(shard, tmp_path):
    cluster = {"kind": "ray", "rollout_workers": 1, "learners": 2}
    recipe = write_recipe(tmp_path, sft=SFT, steps=1, cluster=cluster, learner={"shard": shard})
    assert start(recipe, "--run", "two", cwd=tmp_path).wait(PATIENCE) == 0, (tmp_path / "log.txt").read_text()
    alone = write_recipe(tmp_path, sft=SFT, steps=1)
    assert main(["train", str(alone), "--run", str(tmp_path / "one")]) == 0
    written = (tmp_path / "two" / "checkpoints" / "step-000001" / "shards").is_dir()
    assert written == shard, "learners that share one copy write their parts of it"
    one, two = (load_file(export(tmp_path, name) / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=1e-4, rtol=0, msg=name)


def export(folder, name):
    export_model(folder / name, folder / f"{name}-exported", step=1)
    return folder / f"{name}-exported"
