"""Ranks that share one copy of the model (FSDP2) do what one process does alone, and resume as one."""

import os
import socket

import pytest
import torch
from peft import LoraConfig, get_peft_model

from episodes_by_hand import tiny_llama
from layout_cases import CASES, GROUPS, MIXED, assert_same_gradients, learner_of, update_of
from turnwise.learner.parallel import join, shard_among

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
    results = {}
    for case, layout in PLAN:
        learner = learner_of(CASES[case], parallel=parallel, **LAYOUTS[layout])
        caught, update = update_of(learner)
        results[case, layout] = (caught, update.metrics, update.advantages, states_of(learner, parallel)[1])
    results["kept here"] = sum(p.to_local().numel() for p in learner.model.parameters())
    for name in VARIANTS:
        results[name], _ = update_of(variant(name, parallel=parallel))
    results["resumed"] = resumed(parallel)
    results["skipping"] = update_of(
        learner_of(CASES["grpo by trajectory"], parallel=parallel, packing=True, skip_zero_rows=True), MIXED
    )[0]
    parallel.leave()
    torch.save(results, f"{folder}/{rank}.pt")


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


@pytest.fixture(scope="module", params=[2, 4] if os.environ.get("TURNWISE_SCALE") == "long" else [2])
def ranks(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        torch.multiprocessing.spawn(work, args=(request.param, port, str(folder)), nprocs=request.param)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(request.param)]


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
