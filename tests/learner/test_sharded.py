"""Ranks that share one copy of the model (FSDP2) do what one process does alone, and resume as one."""

import copy
import hashlib
import os
import socket
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from episodes_by_hand import tiny_llama
from layout_cases import CASES, GROUPS, MIXED, assert_same_gradients, learner_of, update_of
from turnwise.compute.layers import find_layers
from turnwise.learner.group import LearnerWorker
from turnwise.learner.parallel import SINGLE, join, shard_among
from turnwise.learner.parallel.sharded import _copy_to_cpu, _of_other_dtype
from turnwise.learner.saved_state import named_tensors
from turnwise.models.shards import load_sharded_weights, weights_of

LAYOUTS = {"padded": {}, "packed": {"packing": True, "budget": 20}, "split": {"budget": 1}, "steps": {"minibatches": 6}}
"""Under `split` ranks have different numbers of micro-batches, and under `steps` one of them has none."""
PLAN = [
    ("grpo", "split"),
    ("gae", "padded"),
    ("gae", "steps"),
    ("gspo by trajectory", "packed"),
    ("bilevel-gae", "split"),
]


def tied():
    """A model whose head is its embedding: one parameter with two names."""
    model = tiny_llama(tie_word_embeddings=True)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    return model


def adapted():
    """A model of which adapters alone are trained."""
    torch.manual_seed(3)
    lora = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(tiny_llama(), lora, autocast_adapter_dtype=False).double()


class Ranks(list):
    """What each of the ranks found, and the folder in which they wrote."""

    def __init__(self, folder, found):
        super().__init__(found)
        self.folder = folder


VARIANTS = {"tied": {"model": tied}, "lora": {"model": adapted}, "checkpointing": {"checkpointing": True}}


def variant(name, **settings):
    """A learner of a variant, each with a model of its own."""
    return learner_of(CASES["grpo"], **settings, **{k: v() if callable(v) else v for k, v in VARIANTS[name].items()})


def states_of(learner, parallel):
    """The learner's whole state after an update, and the weights it publishes."""
    whole = tiny_llama()
    parallel.publish(learner.model, whole)
    return learner.state_dict(), whole.state_dict()


def work(rank, world, port, folder):
    """What one of the ranks does; all the cases in one, since starting it is what costs."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
            patch.setenv(name, str(value))
        parallel = shard_among(join(), torch.device("cpu"))
    results = {"shares": (parallel.rank, parallel.is_sharded)}
    results["prepared"], results["sent to"] = prepared(parallel)
    for case, layout in PLAN:
        learner = learner_of(CASES[case], parallel=parallel, **LAYOUTS[layout])
        caught, update = update_of(learner)
        results[case, layout] = (caught, update.metrics, update.advantages, states_of(learner, parallel)[1])
    results["layers"] = [isinstance(layer, FSDPModule) for layer in find_layers(learner.model)]
    results["kept here"] = sum(p.to_local().numel() for p in learner.model.parameters())
    for name in VARIANTS:
        results[name], _ = update_of(variant(name, parallel=parallel))
    results["resumed"] = resumed(parallel)
    results["shards"] = {name: save_and_read(name, parallel, folder) for name in SAVED}
    results["skipping"] = update_of(
        learner_of(CASES["grpo by trajectory"], parallel=parallel, packing=True, skip_zero_rows=True), MIXED
    )[0]
    parallel.barrier()
    threads = threads_here()
    parallel.leave()
    results["left"] = not torch.distributed.is_initialized()
    results["threads"] = threads, threads_here()
    torch.save(results, f"{folder}/{rank}.pt")


def threads_here():
    return len(list(Path("/proc/self/task").iterdir())) if sys.platform == "linux" else 0


def prepared(parallel):
    """The weights, in full, that a model has when it is sharded; every rank had other ones before. And where the model
    that was given is sent."""
    model, sent = tiny_llama(), []
    with torch.no_grad():
        for weight in model.parameters():
            weight += parallel.rank
    model.to = lambda device: sent.append(device)
    return {name: parallel.whole(weight) for name, weight in parallel.prepare(model).state_dict().items()}, sent


def resumed(parallel):
    """Weights and state after two updates, and after one, a new learner, and one more."""
    straight = learner_of(CASES["gae"], parallel=parallel)
    for seed in range(2):
        straight.update(GROUPS, seed=seed)
    first = learner_of(CASES["gae"], parallel=parallel)
    first.update(GROUPS, seed=0)
    state, weights = states_of(first, parallel)
    model = tiny_llama()
    model.load_state_dict(weights if parallel.is_main else model.state_dict())
    again = learner_of(CASES["gae"], parallel=parallel, model=model)
    again.load_state_dict(parallel.broadcast(state))
    again.update(GROUPS, seed=1)
    return states_of(straight, parallel), states_of(again, parallel)


def half():
    """A model whose weights are rounded copies of float32 masters."""
    return tiny_llama().bfloat16()


SAVED = {"plain": tiny_llama, "tied": tied, "half": half}


def worker_of(name, parallel, updates=0):
    """A rank's worker whose learner has a critic and a reference."""
    worker = LearnerWorker(parallel)
    worker.learner = learner_of(CASES["gae"], parallel=parallel, model=SAVED[name]())
    for seed in range(updates):
        worker.learner.update(GROUPS, seed=seed)
    return worker


def save_alone(name, folder):
    """Shards that one process wrote, after an update, and what they hold."""
    worker = worker_of(name, SINGLE, updates=1)
    described, _ = worker.write_shards(Path(folder, f"{name}-alone"), weights=True)
    torch.save((described, worker.full_state()), Path(folder, f"{name}-alone.pt"))


def read_from(name, parallel, shards, described, seed=None):
    """The state of a new worker that has read shards, weights included, and has then learnt once more."""
    model = SAVED[name]()
    if parallel.is_main:
        load_sharded_weights(model, shards)
    worker = worker_of(name, parallel)
    worker.learner = learner_of(CASES["gae"], parallel=parallel, model=model)
    worker.restore(version=1, saved=described, shards=shards)
    if seed is not None:
        worker.learner.update(GROUPS, seed=seed)
    return state_and_weights(worker)


def state_and_weights(worker):
    weights = {name: worker.parallel.whole(one).clone() for name, one in weights_of(worker.learner.model).items()}
    return copy.deepcopy(worker.full_state()), weights


def save_and_read(name, parallel, folder):
    """Shards of these ranks, read by them, sharded and not; and those of one process, read by these ranks."""
    worker = worker_of(name, parallel, updates=1)
    shards = Path(folder, f"{name}-ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DTensor, "full_tensor", lambda *_: pytest.fail("a rank gathered a whole tensor"))
        described, digests = worker.write_shards(shards, weights=True)
    saved = state_and_weights(worker)
    worker.learner.update(GROUPS, seed=1)
    alone, alone_state = torch.load(Path(folder, f"{name}-alone.pt"), weights_only=True)
    return {
        "described": described,
        "digests": digests,
        "saved": saved,
        "straight": state_and_weights(worker),
        "again": read_from(name, parallel, shards, described, seed=1),
        "data-parallel": read_from(name, parallel.ranks, shards, described),
        "of one process": (read_from(name, parallel, Path(folder, f"{name}-alone"), alone)[0], alone_state),
    }


@pytest.fixture(scope="module", params=[2, 4] if os.environ.get("TURNWISE_SCALE") == "long" else [2])
def ranks(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    for name in SAVED:
        save_alone(name, folder)
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        torch.multiprocessing.spawn(work, args=(request.param, port, str(folder)), nprocs=request.param)
    return Ranks(folder, [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(request.param)])


@pytest.mark.parametrize(("case", "layout"), PLAN)
def test_sharded_ranks_do_what_one_process_does(ranks, case, layout):
    alone = learner_of(CASES[case], **LAYOUTS[layout])
    expected, update = update_of(alone)
    for caught, metrics, advantages, _ in (one[case, layout] for one in ranks):
        assert_same_gradients(caught, expected)
        assert advantages == update.advantages
        found = {name: value for name, value in metrics.items() if name != "batch/padding_share"}
        assert found == pytest.approx({name: update.metrics[name] for name in found}, abs=1e-6)
    for name, weight in alone.model.state_dict().items():
        torch.testing.assert_close(ranks[0][case, layout][3][name], weight, atol=1e-6, rtol=0, msg=name)


def test_a_sharded_model_has_rank_0s_weights(ranks):
    for one in ranks:
        for name, weight in tiny_llama().state_dict().items():
            assert torch.equal(one["prepared"][name], weight), name


def test_a_model_that_was_sharded_stays_on_the_device_of_rank_0_alone(ranks):
    assert [one["sent to"] for one in ranks] == [[], *(["cpu"] for _ in ranks[1:])]


def test_layers_are_gathered_one_by_one_and_ranks_leave_together(ranks):
    assert [one["shares"] for one in ranks] == [(rank, True) for rank in range(len(ranks))]
    for one in ranks:
        assert one["layers"]
        assert all(one["layers"])
        assert one["left"]


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted under /proc")
def test_no_thread_still_speaks_to_other_ranks_after_they_parted(ranks):
    """One that frees a tensor while the interpreter ends aborts the process; caches of torch keep the group of sharded
    tensors, and it would be that one."""
    for one in ranks:
        before, after = one["threads"]
        assert after < before


def test_each_rank_keeps_its_share_of_the_weights_alone(ranks):
    whole = sum(p.numel() for p in tiny_llama().parameters())
    assert sum(one["kept here"] for one in ranks) == whole
    assert max(one["kept here"] for one in ranks) < 1.2 * whole / len(ranks)


@pytest.mark.parametrize("name", VARIANTS)
def test_tied_weights_adapters_and_checkpointed_layers_have_the_same_gradients(ranks, name):
    expected, _ = update_of(variant(name))
    for one in ranks:
        assert_same_gradients(one[name], expected)


def test_rows_that_teach_nothing_are_left_out_by_all(ranks):
    expected, _ = update_of(learner_of(CASES["grpo by trajectory"], packing=True, skip_zero_rows=True), MIXED)
    for one in ranks:
        assert_same_gradients(one["skipping"], expected)


def test_a_resumed_learner_goes_on_as_if_it_had_never_stopped(ranks):
    (state, weights), (state_again, weights_again) = ranks[0]["resumed"]
    assert all(torch.equal(weights[name], weights_again[name]) for name in weights)
    moments, again = (one["optimizer"]["adam"]["state"] for one in (state, state_again))
    assert all(torch.equal(moments[i]["exp_avg"], again[i]["exp_avg"]) for i in moments)
    assert all(torch.equal(state["critic"][name], state_again["critic"][name]) for name in state["critic"])


def test_a_state_of_sharded_ranks_loads_in_one_process(ranks):
    (state, weights), _ = ranks[0]["resumed"]
    model = tiny_llama()
    model.load_state_dict(weights)
    alone = learner_of(CASES["gae"], model=model)
    alone.load_state_dict(state)
    straight = learner_of(CASES["gae"])
    for seed in range(2):
        straight.update(GROUPS, seed=seed)
    found, expected = update_of(alone)[0], update_of(straight)[0]
    assert_same_gradients(found, expected, tolerance=1e-6)
    for mine, other in zip(alone.optimizer._adam.state.values(), straight.optimizer._adam.state.values(), strict=True):
        torch.testing.assert_close(mine["exp_avg"], other["exp_avg"], atol=1e-6, rtol=0)
        assert mine["step"] == other["step"] == 3


def assert_same_bits(found, expected):
    (state, weights), (expected_state, expected_weights) = found, expected
    for mine, other in ((named_tensors(state), named_tensors(expected_state)), (weights, expected_weights)):
        assert mine.keys() == other.keys()
        assert len(mine) > 10
        for name, tensor in other.items():
            assert mine[name].dtype == tensor.dtype
            assert torch.equal(mine[name], tensor), name


@pytest.mark.parametrize("name", SAVED)
def test_a_learner_goes_on_from_its_shards_to_the_bit(ranks, name):
    for one in ranks:
        assert_same_bits(one["shards"][name]["again"], one["shards"][name]["straight"])


@pytest.mark.parametrize("name", SAVED)
def test_shards_are_read_by_ranks_that_share_nothing(ranks, name):
    for one in ranks:
        assert_same_bits(one["shards"][name]["data-parallel"], one["shards"][name]["saved"])


@pytest.mark.parametrize("name", SAVED)
def test_shards_of_one_process_are_read_by_several(ranks, name):
    for one in ranks:
        found, expected = one["shards"][name]["of one process"]
        assert_same_bits((found, named_tensors(found)), (expected, named_tensors(expected)))


@pytest.mark.parametrize("name", SAVED)
def test_shards_of_several_processes_are_read_by_one(ranks, name):
    found = ranks[0]["shards"][name]
    read = read_from(name, SINGLE, ranks.folder / f"{name}-ranks", found["described"])
    assert_same_bits(read, found["saved"])


def test_each_rank_writes_its_part_alone_and_knows_its_hash(ranks):
    """The parts of all add up to the state, no tensor being written twice, not even a tied one."""
    found, folder = ranks[0]["shards"]["tied"], ranks.folder / "tied-ranks"
    assert found["digests"] == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    state, weights = found["saved"]
    whole = sum(one.numel() * one.element_size() for one in (*named_tensors(state).values(), *weights.values()))
    assert not any("lm_head" in name for name in weights)
    sizes = [file.stat().st_size for file in folder.iterdir()]
    assert len(sizes) == len(ranks)
    assert whole < sum(sizes) < whole + 70_000 * len(sizes), "content, and headers"
    assert max(sizes) < 1.3 * sum(sizes) / len(ranks)


def test_one_process_alone_shares_with_nobody():
    assert shard_among(SINGLE, torch.device("cpu")) is SINGLE


def test_only_parts_of_another_dtype_are_gathered_apart():
    backbone, head = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)).bfloat16(), nn.Linear(2, 1)
    assert _of_other_dtype(nn.Sequential(backbone, head)) == [head]
    mixed = nn.Linear(2, 2).bfloat16()
    mixed.bias = nn.Parameter(torch.zeros(2))
    assert _of_other_dtype(nn.Sequential(backbone, mixed)) == [mixed], "one such weight is enough"
    assert _of_other_dtype(backbone) == []


def test_a_copy_to_be_sharded_shares_no_memory_and_stays_tied_trained_and_buffered():
    module = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2), "norm": nn.BatchNorm1d(2)})
    module["b"].weight = module["a"].weight
    module["a"].bias.requires_grad_(False)
    copied, before = _copy_to_cpu(module), copy.deepcopy(module.state_dict())
    assert copied["b"].weight is copied["a"].weight
    assert [(name, p.requires_grad) for name, p in copied.named_parameters()] == [
        (name, p.requires_grad) for name, p in module.named_parameters()
    ]
    assert [name for name, _ in copied.named_buffers()] == [name for name, _ in module.named_buffers()]
    with torch.no_grad():
        for tensor in copied.state_dict().values():
            tensor.add_(1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
