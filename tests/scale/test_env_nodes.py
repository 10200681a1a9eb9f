"""Environments on other nodes than their engine, as far as that needs no Ray: the nodes are threads of this process."""

import asyncio
import dataclasses
import os
import pickle
import signal
import threading
from functools import partial
from pathlib import Path

import pytest
import torch

import fickle
from env_nodes import Cluster, NodeHere
from fickle import Counting, OnlyHere, Slow
from tiny_runs import records, run_tiny, tiny_config, tiny_data, weights
from turnwise.agents import ExpertAgent
from turnwise.cluster.envs.actor import EnvActor, Order, Post
from turnwise.cluster.envs.node import EnvNode, NodeLost
from turnwise.cluster.ray.envs import _elsewhere
from turnwise.cluster.settings import RayCluster
from turnwise.config import Config, check_config, check_read
from turnwise.envs.registry import EnvSettings
from turnwise.envs.workers.env import _birth, in_workers
from turnwise.envs.workers.protocol import Birth, Call, End, Ready
from turnwise.envs.workers.settings import LocalWorkers, RayWorkers
from turnwise.errors import ConfigError, EnvError
from turnwise.learner.group import LearnerGroup
from turnwise.rollout import Limits, run_groups
from turnwise.settings import parse_settings
from turnwise.tools.repeats import forget_repeats
from turnwise.training import trainer
from turnwise.training.build import assemble
from turnwise.training.on_cluster import ReachedCluster, room_of_envs
from turnwise.types import Message, StopReason

TASKS = Counting().tasks("train")
COUNTING = f"{fickle.__file__}:Counting"
"""Workers make it without torch."""


@pytest.fixture(autouse=True)
def _fresh_counts():
    forget_repeats()


@pytest.fixture
def spread():
    """Places an environment on nodes, and ends their workers."""
    made = []

    def make(env, cluster, workers=4, **options):
        made.append(in_workers(env, workers, open_nursery=cluster.open, **options))
        return made[-1]

    yield make
    for env in made:
        env.host.close()


def play(env, tasks=TASKS, size=4, seconds=60.0, meanwhile=None):
    limits = Limits(env_seconds=seconds)

    async def run():
        playing = run_groups(ExpertAgent(), env, tasks, group_size=size, seed=3, limits=limits, max_failures=1.0)
        groups, _ = await asyncio.gather(playing, meanwhile() if meanwhile else asyncio.sleep(0))
        return groups

    return [dataclasses.replace(one, seconds=0.0) for group in asyncio.run(run()) for one in group.trajectories]


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def test_trajectories_are_those_of_one_process_and_workers_are_where_there_is_room(spread):
    cluster = Cluster(3, 1)
    env = spread(Counting(), cluster)
    assert [len(node.actor._workers) for node in cluster.nodes] == [3, 1]
    assert play(env) == play(Counting())
    assert env.host.counts() == {"deaths": 0, "killed": 0, "moved": 0}


def test_an_environment_that_is_pickled_travels_too(spread):
    env = Counting()
    env.note = threading.get_ident  # not an argument, so that a recipe would not have it
    assert play(spread(env, Cluster(2), 2)) == play(Counting())


def test_a_worker_that_dies_costs_nothing(spread, tmp_path):
    faults = {"train-1/2": "kill", "train-5/1": "_exit", "train-9/reset": "kill"}
    env = spread(Counting(once=str(tmp_path), faults=faults), Cluster(2, 2))
    assert play(env, size=1) == play(Counting(), size=1)
    counts = env.host.counts()
    assert counts["deaths"] == 3
    assert counts["moved"] >= 2
    assert "nodes_lost" not in counts


def test_a_node_that_is_lost_is_one_death_and_its_episodes_go_on_elsewhere(spread, caplog):
    """It has more workers than may die in a row, and each has an episode of its own."""
    cluster = Cluster(6, 2)
    env = spread(Slow(), cluster, workers=8, max_deaths=1)

    async def lose():
        await until(lambda: sum(len(one.episodes) for one in env._fleet._workers) >= 8)
        await asyncio.sleep(0.08)  # in their second steps
        cluster.nodes[0].lose()

    played = play(env, size=1, meanwhile=lose)
    assert played == play(Counting(), size=1), "whose seeds and rewards are the same"
    counts = env.host.counts()
    assert (counts["deaths"], counts["nodes_lost"]) == (6, 1)
    assert counts["moved"] >= 6
    (warning,) = [line for line in caplog.messages if "a worker process ended" in line]
    assert "lost with its node" in warning
    assert len(cluster.nodes) == 3, "another has taken its room"
    assert cluster.nodes[0].killed, "it might only have been out of reach"
    again = play(env, size=1)
    assert again == played
    assert len(cluster.nodes[2].actor._workers) == 6, "and its workers"


def test_a_lost_node_blames_no_episode(spread):
    """The only call of its worker each time: two such deaths of a worker by itself would fail the episode."""
    cluster = Cluster(1)
    env = spread(Slow(seconds=0.3), cluster, workers=1)

    async def lose():
        for number in range(1, 4):
            await until(partial(has_call, number))
            cluster.nodes[-1].lose()

    def has_call(number):
        return len(cluster.nodes) == number and env._fleet._workers[-1]._waiting

    (played,) = play(env, TASKS[:1], size=1, meanwhile=lose)
    assert [played] == play(Counting(), TASKS[:1], size=1)
    counts = env.host.counts()
    assert (counts["deaths"], counts["killed"], counts["nodes_lost"]) == (3, 0, 3)
    assert counts["moved"] >= 2, "the first may have come before it had a state"


def test_episodes_wait_while_no_node_has_room_however_short_their_deadline(spread):
    cluster = Cluster(2)
    env = spread(Slow(), cluster, workers=2)

    async def lose():
        await until(lambda: any(one._waiting for one in env._fleet._workers))
        cluster.has_room = False
        await asyncio.to_thread(cluster.nodes[0].lose)
        await until(lambda: len(cluster.nodes) == 2)
        await asyncio.sleep(3.0)  # longer than a call may take
        cluster.nodes[1].give_room()

    played = play(env, size=1, seconds=2.5, meanwhile=lose)
    assert played == play(Counting(), size=1)


def test_workers_that_are_left_play_on_while_others_have_no_room_and_then_play_too(spread):
    cluster = Cluster(1, 1)
    env = spread(Slow(), cluster, workers=2)
    cluster.has_room = False
    cluster.nodes[0].lose()
    assert play(env, size=1) == play(Counting(), size=1)
    assert [len(node.actor._workers) for node in cluster.nodes[1:]] == [1, 0]
    cluster.nodes[2].give_room()
    assert play(env, size=1) == play(Counting(), size=1)
    assert [len(node.actor._workers) for node in cluster.nodes[1:]] == [1, 1], "none was started beside its room"


def test_a_run_ends_when_no_node_takes_the_room_of_lost_ones(spread):
    cluster = Cluster(2, patience=0.5)
    env = spread(Counting(), cluster, workers=2)
    cluster.has_room = False
    cluster.nodes[0].lose()
    with pytest.raises(EnvError, match=r"no node has had room for environment workers for 0\.5 seconds: add nodes"):
        play(env, size=1)


def test_an_episode_that_ends_its_workers_gets_one_beside_the_room_there_is(spread):
    """Two are lost with it; the second was for itself alone. No other episode suffers."""
    env = spread(Counting(faults={"train-1/2": "kill"}), Cluster(1, 1), workers=2)
    played = play(env, size=1)
    failed = {one.task.id: one.failure for one in played if one.stop is StopReason.ENV_FAILED}
    assert failed == {"train-1": "task 'train-1': step: its worker process ended twice, killed by SIGKILL"}
    kept = [one for one in play(Counting(), size=1) if one.task.id != "train-1"]
    assert [one for one in played if one.task.id != "train-1"] == kept


def test_code_that_hangs_is_killed_on_its_node(spread, monkeypatch):
    monkeypatch.setattr("turnwise.envs.workers.fleet.GRACE", 0.3)
    env = spread(Counting(faults={"train-1/2": "block"}), Cluster(1, 1), workers=2)
    played = play(env, size=1, seconds=3.0)
    (failed,) = [one for one in played if one.stop is StopReason.ENV_FAILED]
    assert "step: no answer within 3 seconds (" in failed.failure
    assert "in strike)" in failed.failure, "the line travels too"
    assert env.host.counts()["killed"] == 1


def test_calls_of_one_tick_travel_together(spread):
    cluster = Cluster(4)
    env = spread(Slow(seconds=0.2), cluster)

    async def run():
        episodes = [env.spawn() for _ in range(32)]
        await asyncio.gather(*(one.reset(TASKS[at % 16], at) for at, one in enumerate(episodes)))
        before = len(cluster.nodes[0].sends)
        await asyncio.gather(*(one.step(Message(role="assistant", content="1")) for one in episodes))
        steps = len(cluster.nodes[0].sends) - before
        await asyncio.gather(*(one.close() for one in episodes))
        return steps

    assert asyncio.run(run()) == 1, "32 calls to four workers of a node"


def test_one_event_loop_after_another(spread):
    async def make():
        return spread(Counting(), Cluster(1, 1), workers=2)

    env = asyncio.run(make())  # as a rollout worker makes it, within a loop that stands still
    assert play(env, size=1) == play(env, size=1) == play(Counting(), size=1)


def test_orders_are_carried_out_in_order_whichever_call_arrives_first():
    async def run():
        actor, done = EnvActor(None), []
        actor._carry_out = done.append
        orders = [Order(1, "start"), Post(1, (Call(1, 1, "close", None),)), Order(1, "close")]
        frames = [pickle.dumps([order]) for order in orders]
        await actor.send(2, frames[2])
        await actor.send(0, frames[0])
        assert done == [], "not before it was opened"
        birth = _birth(Counting(), None)
        assert await actor.open(birth)
        assert done == orders[:1]
        await actor.send(1, frames[1])
        assert done == orders
        assert not actor._early, "nothing is kept"
        actor._nursery.close()

    asyncio.run(run())


def test_a_node_that_cannot_make_the_environment_is_one_line():
    with pytest.raises(EnvError) as raised:
        in_workers(OnlyHere(), 1, open_nursery=Cluster(1).open)
    words = str(raised.value)
    assert words.startswith("env.workers: a worker cannot make the environment: OSError: no such luck")
    assert "needs the environment's packages and files: see cluster.working_dir)" in words
    assert "\n" not in words


@pytest.mark.parametrize(
    ("name", "root", "expected"),
    [
        ("/home/me/envs/mine.py:Mine", "/home/me", "envs/mine.py:Mine"),
        ("/home/me/envs/mine.py:Mine", None, "/home/me/envs/mine.py:Mine"),
        ("/home/other/mine.py:Mine", "/home/me", "/home/other/mine.py:Mine"),
        ("package.mine:Mine", "/home/me", "package.mine:Mine"),
    ],
)
def test_a_class_in_a_folder_that_is_copied_is_named_from_there_and_tasks_stay(name, root, expected):
    settings = EnvSettings(name=name, tasks={"train": "tasks.jsonl"})
    birth = Birth(settings=settings, pickled=b"", folders=())
    made = _elsewhere(birth, None if root is None else Path(root)).settings
    assert (made.name, made.tasks) == (expected, None)


def test_workers_end_with_the_environment_and_with_their_node():
    cluster = Cluster(1, 1)
    env = in_workers(Counting(), 2, open_nursery=cluster.open)
    processes = [node.actor._nursery._process for node in cluster.nodes]
    cluster.nodes[0].lose()
    assert processes[0].wait(10) == 0
    assert processes[1].poll() is None
    env.host.close()
    assert processes[1].wait(10) == 0


def test_an_actor_whose_nursery_was_killed_starts_another(spread):
    cluster = Cluster(2)
    env = spread(Counting(), cluster, workers=2)
    nursery = cluster.nodes[0].actor._nursery._process
    os.kill(nursery.pid, signal.SIGKILL)
    nursery.wait()
    assert play(env, size=1) == play(Counting(), size=1)
    assert len(cluster.nodes) == 1


def test_a_node_whose_actor_raises_is_lost_with_words():
    node_here = NodeHere()

    def fail():
        raise ZeroDivisionError("ours")

    node_here.receive = fail
    node = EnvNode(lambda: node_here, _birth(Counting(), None), capacity=1, patience=30.0)
    connection = node.start()
    connection.wait(30.0)
    with pytest.raises(EOFError):
        connection.receive()
    assert connection.how_it_ended().words == "lost, as its node raised ZeroDivisionError: ours"
    assert connection.how_it_ended().node


def test_an_actor_that_was_sent_to_a_node_which_is_gone_is_started_again(spread, monkeypatch):
    """Ray offers the room of a lost node before it has noticed the loss, and cancels what was to start there."""
    monkeypatch.setattr("turnwise.cluster.envs.node._RETRY_SECONDS", 0.05)
    cluster = Cluster(2)
    env = spread(Counting(), cluster, workers=2)
    opens = NodeHere.open

    def fail_twice(node, birth, seconds):
        if len(cluster.nodes) < 4:
            raise NodeLost("it was cancelled before it started running")
        return opens(node, birth, seconds)

    monkeypatch.setattr(NodeHere, "open", fail_twice)
    cluster.nodes[0].lose()
    assert play(env, size=1) == play(Counting(), size=1)
    assert len(cluster.nodes) == 4
    assert env.host.counts()["nodes_lost"] == 1


def test_the_end_of_a_worker_is_read_though_answers_came_with_it():
    """An end that nothing reads would leave the calls under way waiting for ever."""
    node_here, gate = NodeHere(), threading.Event()
    news = [pickle.dumps([(1, Ready()), (1, End("killed"))])]

    def receive():
        gate.wait(30)
        if not news:
            raise NodeLost("over")
        return news.pop()

    node_here.receive = receive
    read = []

    async def run():
        node = EnvNode(lambda: node_here, _birth(Counting(), None), capacity=1, patience=30.0)
        connection = node.start()

        def arrived():
            try:
                read.extend(connection.receive())
            except EOFError:
                read.append(connection.how_it_ended())
                connection.close()

        connection.watch(asyncio.get_running_loop(), arrived)
        gate.set()
        await until(lambda: len(read) == 2)

    asyncio.run(run())
    assert read == [Ready(), End("killed")]


# What a run makes of it.


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({}, LocalWorkers()),
        (
            {"kind": "ray", "cpus": 0.5, "resources": {"cpu_node": 0.01}},
            RayWorkers(cpus=0.5, resources={"cpu_node": 0.01}),
        ),
    ],
)
def test_a_recipe_says_where_environment_workers_are(section, expected):
    env = {"name": COUNTING, "workers": 2, "workers_on": section}
    config = tiny_config(env=env, cluster={"kind": "ray"})
    assert config.env.workers_on == expected
    assert config.cluster == RayCluster()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"env": {"name": COUNTING, "workers": 2, "workers_on": {"kind": "ray"}}},
            r"^env\.workers_on: the section cluster says which Ray cluster: set cluster to \{kind: ray, rollout_w",
        ),
        (
            {"env": {"name": COUNTING, "workers_on": {"kind": "ray"}}, "cluster": {"kind": "ray"}},
            r"^env\.workers_on: never read while env\.workers is 0",
        ),
        (
            {"cluster": {"kind": "ray", "rollout_workers": 0}},
            r"^cluster\.rollout_workers: 0 leaves nothing for the cluster to do: set env\.workers_on\.kind to ray",
        ),
        (
            {"cluster": {"kind": "ray", "rollout_workers": 0, "worker_gpus": 1.0, "learners": 2}},
            r"^cluster\.worker_gpus: never read while cluster\.rollout_workers is 0",
        ),
        (
            {"env": {"name": COUNTING, "workers": 2, "workers_on": {"cpus": 2.0}}},
            r"^env\.workers_on\.cpus: unknown key in the test",
        ),
    ],
)
def test_what_cannot_work_is_one_line(sections, message):
    with pytest.raises(ConfigError, match=message + r"[^\n]*$"):
        check_read(tiny_config(**sections))


def test_each_environment_of_a_mixture_says_where_its_workers_are():
    entry = {"name": COUNTING, "workers": 2, "workers_on": {"kind": "ray"}}
    data = {**tiny_data(), "env": {"mixture": {"one": entry, "two": {"name": COUNTING, "workers": 3}}}}
    with pytest.raises(
        ConfigError, match=r"^env\.mixture\.one\.workers_on: the section cluster says which Ray cluster"
    ):
        check_config(parse_settings(Config, data, source="the test"))
    data["cluster"] = {"kind": "ray", "rollout_workers": 0}
    config = check_config(parse_settings(Config, data, source="the test"))
    assert room_of_envs(config) == {"CPU": 2.0}
    cluster = Cluster(2)
    parts = assemble(config, open_nursery=cluster.open)
    assert parts.env.host.workers == 5
    assert len(cluster.nodes[0].actor._workers) == 2
    parts.env.host.close()


ON_RAY = {"name": COUNTING, "workers": 4, "workers_on": {"kind": "ray", "resources": {"cpu_node": 0.5}}}


def test_a_cluster_that_is_started_has_room_for_environment_workers():
    config = tiny_config(env=ON_RAY, cluster={"kind": "ray", "rollout_workers": 0})
    assert room_of_envs(config) == {"CPU": 4.0, "cpu_node": 2.0}
    assert room_of_envs(tiny_config(env=ON_RAY, cluster={"kind": "ray"})) == {"CPU": 12.0, "cpu_node": 6.0}
    assert room_of_envs(tiny_config(env={"name": COUNTING, "workers": 4}, cluster={"kind": "ray"})) == {}


@pytest.mark.parametrize(("sft", "expected"), [(None, 1), ({"demonstrations": 8}, 4)])
def test_a_driver_whose_rollout_workers_play_keeps_as_many_as_it_needs(sft, expected):
    config, cluster = tiny_config(env=ON_RAY, cluster={"kind": "ray"}, sft=sft), Cluster(8)
    parts = assemble(config, on_cluster=True, open_nursery=cluster.open)
    assert parts.env.host.workers == expected
    parts.env.host.close()
    assert len(cluster.nodes) == 1


def test_other_commands_play_beside_their_own_process():
    """As they play with an engine of their own, though the recipe has rollout workers."""
    config = tiny_config(env=ON_RAY, cluster={"kind": "ray", "rollout_workers": 0})
    parts = assemble(config)
    assert parts.env.host.workers == 4
    parts.env.host.close()


def test_a_training_run_with_environments_on_nodes_has_the_figures_of_one_process(tmp_path, monkeypatch):
    """A node is lost in the second step; the run counts it, and learns what it learns without."""
    cluster, lost = Cluster(2, 2), []

    class Reached:
        def __enter__(self):
            return ReachedCluster(open_nursery=cluster.open)

        def __exit__(self, *raised):
            assert all(node.actor._nursery._process.poll() is not None for node in cluster.nodes), "workers end first"

    monkeypatch.setattr(trainer, "reach_cluster", lambda config: Reached())
    update = LearnerGroup.update

    def lose_after_the_first(self, *args, **given):
        if not lost and given["seed"] != 0:
            lost.append(cluster.nodes[0])
            cluster.nodes[0].lose()
        return update(self, *args, **given)

    sections = {
        "sft": {"demonstrations": 32, "batch": 8, "optimizer": {"lr": 1e-2}},
        "evaluate": {"tasks": 4, "every": 1},
    }
    plain = run_tiny(tmp_path / "plain", steps=2, env={"name": COUNTING}, **sections)
    on = {"kind": "ray", "rollout_workers": 0}
    monkeypatch.setattr(LearnerGroup, "update", lose_after_the_first)
    apart = run_tiny(tmp_path / "apart", steps=2, env=ON_RAY, cluster=on, **sections)
    assert lost
    for name, weight in weights(plain, 2).items():
        torch.testing.assert_close(weights(apart, 2)[name], weight, atol=1e-4, rtol=0, msg=name)
    found = records(apart, "train")
    assert [(one["rollout/episodes"], one["rollout/failed"]) for one in found] == [(16, 0)] * 2
    assert sum(one["workers/deaths"] for one in found) == 2.0
    assert found[-1]["workers/nodes_lost"] == 1.0
