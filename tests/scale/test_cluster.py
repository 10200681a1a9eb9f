"""Rollout workers elsewhere, as far as that needs no Ray: settings, weights, how a worker is made, the run's side."""

import ast
import asyncio
import importlib.util
import json
import logging
import pickle
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import tiny_runs
from tiny_runs import Signals, cold_model, records, run_tiny, tiny_config
from turnwise import cluster
from turnwise.agents.decoding import Decoding
from turnwise.cluster.ray.actor import RolloutActor
from turnwise.cluster.settings import LocalCluster, RayCluster
from turnwise.cluster.spec import build_worker
from turnwise.cluster.weights import pack, unpack
from turnwise.config import Config
from turnwise.engines.base import EngineStats
from turnwise.envs.host import HERE
from turnwise.envs.workers.placing import describe_elsewhere, place_env
from turnwise.errors import ConfigError
from turnwise.models.architecture import Architecture
from turnwise.rollout import Fleet, GroupJob, WorkerLost
from turnwise.settings import parse_settings
from turnwise.training import trainer
from turnwise.training.build import assemble
from turnwise.training.launch import launch
from turnwise.training.on_cluster import ReachedCluster, describe_worker

ROLLOUT = {"groups_per_step": 4, "group_size": 4, "turn_tokens": 4, "max_turns": 3}


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({}, LocalCluster()),
        ({"kind": "ray"}, RayCluster()),
        (
            {"kind": "ray", "rollout_workers": 4, "worker_resources": {"cpu_node": 0.5}},
            RayCluster(rollout_workers=4, worker_resources={"cpu_node": 0.5}),
        ),
    ],
)
def test_a_recipe_chooses_its_cluster_by_kind(section, expected):
    assert tiny_config(cluster=section).cluster == expected


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"rollout_workers": 2}, "cluster.rollout_workers: unknown key in the test; known here: kind"),
        ({"kind": "ray", "workers": 2}, "cluster.workers: unknown key in the test"),
        ({"kind": "rays"}, "cluster.kind: unknown kind 'rays' in the test; did you mean 'ray'?"),
        ({"kind": "ray", "learner_gpus": 0.5}, "cluster.learner_gpus: a learner has one GPU or none: set 0 or 1"),
    ],
)
def test_a_mistake_in_the_cluster_is_named(section, message):
    with pytest.raises(ConfigError) as raised:
        parse_settings(Config, {"env": {"name": "bandit"}, "cluster": section}, source="the test")
    assert str(raised.value).startswith(message)


def test_without_ray_the_extra_is_named_before_anything_slow(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^cluster\.kind: ray needs [^\n]*: pip install turnwise\[ray\]$"):
        run_tiny(tmp_path / "run", cluster={"kind": "ray"})
    with pytest.raises(ConfigError, match=r"pip install turnwise\[ray\]$"):
        launch(lambda learners: None, tiny_config(cluster={"kind": "ray", "learners": 2}))
    assert not (tmp_path / "run").exists()


def test_learners_come_from_torchrun_or_from_the_cluster(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"^cluster\.learners: torchrun has started learners already"):
        launch(lambda learners: None, tiny_config(cluster={"kind": "ray", "learners": 2}))


def test_ray_is_imported_when_it_is_used():
    for source in Path(cluster.__file__).parent.rglob("*.py"):
        for node in ast.parse(source.read_text()).body:
            names = [alias.name for alias in getattr(node, "names", ())] + [getattr(node, "module", None) or ""]
            assert not any(name.split(".")[0] == "ray" for name in names), f"{source}:{node.lineno}"


def test_weights_travel_bit_for_bit_and_shared_memory_once():
    tied = torch.randn(300, 7).to(torch.bfloat16)
    weights = {
        "embed": tied,
        "head": tied,
        "odd": torch.randn(5, 3).T,
        "scale": torch.tensor(2.5, dtype=torch.float64),
        "none": torch.empty(0, 4),
        "mask": torch.tensor([True, False]),
    }
    sent = pickle.dumps(pack(weights), protocol=5)
    assert len(sent) < 2 * tied.nbytes
    found = unpack(pickle.loads(sent))
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        assert found[name].dtype == weight.dtype
        assert torch.equal(found[name], weight), name


def test_a_pack_does_not_follow_the_learner_once_it_is_pickled():
    weight = torch.zeros(4)
    sent = pickle.dumps(pack({"w": weight}))
    weight += 1
    assert unpack(pickle.loads(sent))["w"].sum() == 0


@pytest.mark.parametrize(
    "model", [{}, {"dtype": "bfloat16"}, {"lora": {"rank": 2}}], ids=["float32", "bfloat16", "lora"]
)
def test_a_model_made_from_its_architecture_computes_the_same(model):
    config = tiny_config(model=model)
    loaded = assemble(config, on_cluster=True).loaded
    for weight in loaded.model.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.05)
    architecture = pickle.loads(pickle.dumps(Architecture.of(loaded, config.model)))
    copy = architecture.build("cpu", unpack(pack(loaded.model.state_dict())))
    ids = torch.arange(24)[None]  # [1, tokens]
    assert torch.equal(copy(ids).logits, loaded.model(ids).logits)
    mine = next(copy.parameters())
    assert mine.data_ptr() != next(loaded.model.parameters()).data_ptr()


def test_an_environment_is_described_so_that_another_process_finds_it():
    config = tiny_config()
    described = describe_elsewhere(assemble(config, on_cluster=True).env, config.env, where="cluster.kind")
    assert described.name.endswith("tiny_runs.py:Signals")
    assert described.name.startswith("/")
    assert type(place_env(described)).__name__ == "Signals"
    copied = describe_elsewhere(Signals(), config.env, where="cluster.kind", root=Path(tiny_runs.__file__).parent)
    assert copied.name.endswith("tiny_runs:Signals"), "a module by its name"
    spec = describe_worker(config, assemble(config, on_cluster=True), str(Path(tiny_runs.__file__).parents[1]))
    assert (spec.env.name, spec.home) == ("support/tiny_runs.py:Signals", None)


def test_an_environment_that_only_this_process_knows_is_refused():
    class Here(Signals):
        pass

    config = tiny_config()
    with pytest.raises(ConfigError, match=r"^cluster\.kind: Here cannot be made in another process \(it is defined "):
        describe_elsewhere(Here(), config.env, where="cluster.kind")
    lost = config.env.model_copy(update={"unrecorded": {"client": "<object>"}})
    with pytest.raises(ConfigError, match=r"\(it was made with client=<object>\)"):
        describe_elsewhere(Signals(), lost, where="cluster.kind")


def actor_that_plays(play):
    """An actor whose worker is this function."""
    actor = RolloutActor(spec=None, number=0, log_level=logging.WARNING)
    parts = {"worker": SimpleNamespace(play=play), "engine": SimpleNamespace(stats=EngineStats())}
    actor._built = SimpleNamespace(**parts, env=SimpleNamespace(host=HERE))
    return actor


def test_jobs_that_were_sent_together_begin_together_and_in_order():
    began = []

    async def play(job):
        began.append(job)
        return job

    async def run():
        actor = actor_that_plays(play)
        early = [asyncio.create_task(actor.play(at, batch=0, size=3, place=at)) for at in (2, 0)]
        await asyncio.sleep(0.01)
        assert began == []
        await asyncio.gather(actor.play(1, batch=0, size=3, place=1), *early)

    asyncio.run(run())
    assert began == [0, 1, 2]


def test_a_job_that_was_given_up_ends_at_its_worker_and_leaves_the_others_alone():
    ended, begun = [], asyncio.Event()

    async def play(job):
        if job == "long":
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0)
                ended.append(job)
        return job

    async def run():
        actor = actor_that_plays(play)
        playing = asyncio.create_task(actor.play("long", batch=0, size=2, place=0))
        assert (await actor.play("short", batch=0, size=2, place=1)).group == "short"
        await begun.wait()
        await actor.cancel(0, 0)
        assert ended == ["long"], "before the same job can come again"
        assert (await playing).group is None
        # One that waits for the rest of its batch, and one that has not arrived.
        waiting = asyncio.create_task(actor.play("a", batch=1, size=3, place=0))
        await asyncio.sleep(0)
        await actor.cancel(1, 0)
        await actor.cancel(1, 1)
        others = await asyncio.gather(*(actor.play(job, batch=1, size=3, place=at) for at, job in ((1, "b"), (2, "c"))))
        assert [played.group for played in (await waiting, *others)] == [None, None, "c"]
        # Those that had ended when they were given up, one of them in a batch that came before an earlier one.
        await actor.cancel(1, 2)
        await actor.play("late", batch=3, size=1, place=0)
        await actor.cancel(3, 0)
        await actor.play("early", batch=2, size=1, place=0)
        assert [*actor._waiting, *actor._playing, *actor._cancelled, *actor._arrived] == [], "nothing is kept"

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("engine", [{"kind": "vllm", "servers": ["http://one:8000"]}, {"kind": "openai"}])
def test_servers_that_several_workers_would_share_are_refused(engine):
    engine = engine if engine["kind"] == "vllm" else engine | {"url": "http://one:8000/v1", "model": "policy"}
    with pytest.raises(ConfigError, match=r"^cluster\.rollout_workers: 2 workers would load weights into the same"):
        tiny_config(cluster={"kind": "ray"}, engine=engine)
    tiny_config(cluster={"kind": "ray", "rollout_workers": 1}, engine=engine)
    tiny_config(cluster={"kind": "ray"}, engine={"kind": "vllm", "servers": 1})


class Elsewhere:
    """A rollout worker from a pickled description, in this process; it is lost at one of its jobs, and comes back."""

    def __init__(self, spec, lost_at):
        self._spec, self._lost_at = pickle.dumps(spec), lost_at
        self.places, self._built, self._played = 64, None, 0
        self.stats = EngineStats()

    async def load(self, weights, version):
        sent = pickle.loads(pickle.dumps(pack(weights)))
        if self._built is None:
            self._built = build_worker(pickle.loads(self._spec), unpack(sent))
        await self._built.worker.load(unpack(sent), version)

    async def play(self, job):
        self._played += 1
        if self._played == self._lost_at:
            self._built = None
        group = await self._built.worker.play(job) if self._built else None
        if self._built is None:
            raise WorkerLost("killed by the test")
        self.stats = self._built.engine.stats
        return group


@contextmanager
def two_elsewhere(config, parts):
    spec = describe_worker(config, parts)
    workers = [Elsewhere(spec, lost_at=5), Elsewhere(spec, lost_at=None)]
    parts.engine.workers = workers
    yield replace(parts, fleet=Fleet(workers))


def test_a_run_whose_worker_is_lost_is_the_run_of_one_process(monkeypatch, tmp_path, tmp_path_factory):
    """The second of two steps loses a worker: its groups are played elsewhere, counted, and the run is the same."""
    sections = {"model": {"name": str(cold_model(tmp_path_factory))}, "steps": 2, "stability": {"mode": "off"}}
    alone = run_tiny(tmp_path / "alone", **sections)
    monkeypatch.setattr(trainer, "reach_cluster", lambda config: nullcontext(ReachedCluster(plays=True)))
    monkeypatch.setattr(trainer, "on_cluster", two_elsewhere)
    spread = run_tiny(tmp_path / "spread", cluster={"kind": "ray"}, **sections)
    for stage in ("evaluate", "train"):
        assert len(records(alone, stage)) == len(records(spread, stage)) > 1
        for expected, found in zip(records(alone, stage), records(spread, stage), strict=True):
            fleet = {name for name in found if name.startswith("fleet/")}
            layout = {name for name in expected if name.startswith("ledger/prompt_")}  # other turns share a prefill
            assert fleet == (set() if stage == "evaluate" else {"fleet/workers", "fleet/lost", "fleet/replayed"})
            assert found.keys() - fleet == expected.keys()
            measured = {name: value for name, value in expected.items() if name not in layout}
            assert {name: found[name] for name in measured} == pytest.approx(measured, abs=1e-4)
    assert all(record["policy/grad_norm"] > 1e-3 for record in records(spread, "train")), "something was learnt"
    last = records(spread, "train")[-1]
    assert (last["fleet/lost"], last["fleet/replayed"], last["ledger/prompt_computed_tokens"] > 0) == (1, 1, True)
    findings = [json.loads(line) for line in (spread.path / "findings.jsonl").read_text().splitlines()]
    assert [(one["step"], one["kind"]) for one in findings] == [(2, "worker_lost")]


def test_a_run_that_samples_while_it_learns_may_lose_a_worker(monkeypatch, tmp_path):
    monkeypatch.setattr(trainer, "reach_cluster", lambda config: nullcontext(ReachedCluster(plays=True)))
    monkeypatch.setattr(trainer, "on_cluster", two_elsewhere)
    sections = {"steps": 3, "stability": {"mode": "off"}, "cluster": {"kind": "ray"}}
    run = run_tiny(tmp_path / "run", rollout={"staleness": 1, **ROLLOUT}, **sections)
    every = records(run, "train")
    assert len(every) == 3
    assert {(one["rollout/episodes"], one["rollout/failed"]) for one in every} == {(16, 0)}
    assert every[-1]["fleet/lost"] == 1


class Slow:
    """Takes its weights when it is let to, and is lost at its first job."""

    def __init__(self):
        self.places, self.loads, self.gates = 1, [], []

    async def load(self, weights, version):
        if self.loads:
            self.gates.append(asyncio.Event())
            await self.gates[-1].wait()
        self.loads.append(weights["w"])

    async def play(self, job):
        if len(self.loads) == 1:
            raise WorkerLost("killed by the test")
        return self.loads[-1]


def test_a_worker_that_comes_back_has_the_newest_weights_though_their_version_is_the_same():
    """Before and after a cold start, weights have the version 0."""

    async def run():
        worker = Slow()
        fleet = Fleet([worker])
        await fleet.load({"w": torch.tensor(0)}, 0)
        job = GroupJob(task=None, group_size=1, seed=0, index=0, decoding=Decoding())
        playing = asyncio.create_task(fleet.play(job))
        while not worker.gates:
            await asyncio.sleep(0)
        await fleet.load({"w": torch.tensor(1)}, 0)
        worker.gates[0].set()
        while len(worker.gates) < 2:
            await asyncio.sleep(0)
        worker.gates[1].set()
        return await playing

    assert asyncio.run(asyncio.wait_for(run(), 5)) == 1
