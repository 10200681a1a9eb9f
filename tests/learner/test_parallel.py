"""Two processes that train together do what one does alone: gradients, metrics and weights, to the last digits."""

import re
import socket
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import turnwise
from episodes_by_hand import group, tiny_llama
from layout_cases import CASES, GROUPS, MIXED, assert_same_gradients, learner_of, update_of
from turnwise.errors import ConfigError
from turnwise.learner.parallel import SINGLE, join
from turnwise.learner.parallel.data_parallel import _own_gpu, _pack, _Unpickler, balance

LAYOUTS = {
    "padded": {},
    "packed": {"packing": True, "budget": 20},
    "split": {"budget": 1},
    "one trajectory to a mini-batch": {"minibatches": 6},
}
"""Under the last, one of the two ranks has nothing to do in every step."""
PLAN = [(case, "packed" if place % 2 else "padded") for place, case in enumerate(CASES)]
PLAN += [("gae", layout) for layout in LAYOUTS if layout != "padded"] + [("gspo by trajectory", "split")]


def _seeds_of_dropout(parallel):
    seeds = []
    learner = learner_of(CASES["grpo"], model=tiny_llama(attention_dropout=0.5), parallel=parallel, dropout=True)
    backbone = learner.model.get_decoder()
    backbone.register_forward_pre_hook(
        lambda module, _: seeds.append(torch.initial_seed()) if module.training else None
    )
    learner.update(GROUPS, seed=0)
    return set(seeds)


def _sums_of_gradients(parallel):
    """The first parameter is reached by both ranks, the second by one of them, the third by none."""
    module = nn.ParameterList([nn.Parameter(torch.zeros(2)) for _ in range(3)])
    module[0].grad = torch.tensor([1.0, 10.0]) * (parallel.rank + 1)
    if parallel.rank == 1:
        module[1].grad = torch.tensor([5.0, 6.0])
    parallel.sum_gradients(module.parameters())
    return [None if p.grad is None else p.grad.tolist() for p in module]


def _refusal(parallel, groups, nudge=0.0):
    learner = learner_of(CASES["grpo"], parallel=parallel)
    with torch.no_grad():
        learner.model.lm_head.weight[0, 0] += nudge
    try:
        learner.update(groups, seed=0)
    except AssertionError as error:
        return str(error)
    return ""


def _prepared(parallel):
    """The weights and buffers of a module that every rank filled with its own number."""
    module = nn.BatchNorm1d(2)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.fill_(parallel.rank + 5)
    return parallel.prepare(module).state_dict()


def _waits_for_the_other(parallel, folder):
    """Whether the second rank, which dawdles, was there when the first one went on."""
    if not parallel.is_main:
        time.sleep(0.5)
        (folder / "here").touch()
    parallel.barrier()
    return (folder / "here").exists()


def _work(rank, port, folder):
    """What one of the two processes does; all the cases in one, since starting it is what costs."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", str(rank))
        patch.setenv("WORLD_SIZE", "2")
        patch.setenv("MASTER_ADDR", "127.0.0.1")
        patch.setenv("MASTER_PORT", str(port))
        parallel = join()
    results = {"ranks": (parallel.rank, parallel.world, parallel.is_main, parallel.is_sharded)}
    for case, layout in PLAN:
        learner = learner_of(CASES[case], parallel=parallel, **LAYOUTS[layout])
        caught, update = update_of(learner)
        results[case, layout] = (caught, update.metrics, update.advantages, learner.model.state_dict())
        results[case, layout, "scores"] = (update.logprobs, update.entropies)
    skipping = learner_of(CASES["grpo by trajectory"], parallel=parallel, packing=True, skip_zero_rows=True)
    caught, update = update_of(skipping, MIXED)
    results["skipping"] = (caught, update.metrics)
    results["sum"] = parallel.sum_(torch.tensor([1.0, rank]))
    results["gather"] = parallel.gather(("rank", rank))
    results["gradients"] = _sums_of_gradients(parallel)
    results["dropout"] = _seeds_of_dropout(parallel)
    results["other groups"] = _refusal(parallel, GROUPS if rank else GROUPS[:1])
    results["other weights"] = _refusal(parallel, GROUPS, nudge=1e-3 * rank)
    results["empty"] = learner_of(CASES["grpo"], parallel=parallel).update([], seed=0).metrics
    results["broadcast"] = parallel.broadcast({"rank": rank, "tensors": [torch.arange(3.0) + rank, torch.tensor(rank)]})
    results["prepared"] = _prepared(parallel)
    results["waited"] = _waits_for_the_other(parallel, Path(folder))
    parallel.leave()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        again = join()
    results["again"] = again.sum_(torch.tensor(rank + 1.0))
    again.leave()
    torch.save(results, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")  # two ranks would need two GPUs
        torch.multiprocessing.spawn(_work, args=(port, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def test_they_can_leave_and_join_again(both):
    assert [one["again"].item() for one in both] == [3.0, 3.0]


def test_a_barrier_waits_for_every_rank(both):
    assert [one["waited"] for one in both] == [True, True]


def test_they_know_each_other(both):
    assert [one["ranks"] for one in both] == [(0, 2, True, False), (1, 2, False, False)]
    assert [one["sum"].tolist() for one in both] == [[2.0, 1.0]] * 2
    assert [one["gather"] for one in both] == [[("rank", 0), ("rank", 1)]] * 2


@pytest.mark.parametrize(("case", "layout"), PLAN)
def test_two_ranks_do_what_one_does(both, case, layout):
    alone = learner_of(CASES[case], **LAYOUTS[layout])
    expected, update = update_of(alone)
    shares = ("batch/padding_share",)  # other rows share a micro-batch, so other padding is read
    for caught, metrics, advantages, weights in (one[case, layout] for one in both):
        assert_same_gradients(caught, expected)
        assert advantages == update.advantages
        assert metrics.keys() == update.metrics.keys()
        found = {name: value for name, value in metrics.items() if name not in shares}
        assert found == pytest.approx({name: update.metrics[name] for name in found}, abs=1e-6)
        for name, weight in alone.model.state_dict().items():
            torch.testing.assert_close(weights[name], weight, atol=1e-6, rtol=0, msg=name)
    first, second = (one[case, layout][3] for one in both)
    assert all(torch.equal(first[name], second[name]) for name in first), "the two hold the same bits"


def test_ranks_leave_out_the_same_rows(both):
    expected, update = update_of(learner_of(CASES["grpo by trajectory"], packing=True, skip_zero_rows=True), MIXED)
    for caught, metrics in (one["skipping"] for one in both):
        assert_same_gradients(caught, expected)
        assert metrics["batch/skipped_share"] == pytest.approx(update.metrics["batch/skipped_share"])
        assert metrics["policy/entropy"] == pytest.approx(update.metrics["policy/entropy"])
        assert metrics["policy/sampler_gap"] == pytest.approx(update.metrics["policy/sampler_gap"], abs=1e-6)


@pytest.mark.parametrize(("case", "layout"), PLAN)
def test_every_rank_has_the_scores_of_all_tokens(both, case, layout):
    _, update = update_of(learner_of(CASES[case], **LAYOUTS[layout]))
    for scores in (one[case, layout, "scores"] for one in both):
        for found, expected in zip(scores, (update.logprobs, update.entropies), strict=True):
            flat, wanted = ([p for t in all_ for turn in t for p in turn] for all_ in (found, expected))
            assert flat == pytest.approx(wanted, abs=1e-6, nan_ok=True)
            assert [[len(turn) for turn in t] for t in found] == [[len(turn) for turn in t] for t in expected]


def test_a_gradient_that_one_rank_lacks_is_zero_there_and_one_that_all_lack_stays_absent(both):
    assert [one["gradients"] for one in both] == [[[3.0, 30.0], [5.0, 6.0], None]] * 2


def test_dropout_differs_from_rank_to_rank(both):
    seeds = [one["dropout"] for one in both]
    assert [len(one) for one in seeds] == [1, 1]
    assert seeds[0] != seeds[1]


def test_ranks_that_disagree_stop_before_they_learn(both):
    for one in both:
        assert "the same groups and the same weights" in one["other groups"]
        assert "the same groups and the same weights" in one["other weights"]


def test_no_groups_are_no_work(both):
    assert [one["empty"]["batch/rows"] for one in both] == [0, 0]


def test_rank_0s_value_reaches_every_rank_with_its_tensors(both):
    for one in both:
        assert one["broadcast"]["rank"] == 0
        assert [tensor.tolist() for tensor in one["broadcast"]["tensors"]] == [[0.0, 1.0, 2.0], 0]


def test_a_prepared_module_has_rank_0s_weights_and_buffers(both):
    for one in both:
        assert len(one["prepared"]) == 5
        assert all((tensor == 5).all() for tensor in one["prepared"].values())


def test_a_process_alone_exchanges_nothing(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    alone = join()
    assert alone is SINGLE
    assert (alone.rank, alone.world, alone.is_main) == (0, 1, True)
    tensor = torch.tensor([1.0, 2.0])
    assert alone.sum_(tensor) is tensor
    assert alone.gather("word") == ["word"]
    assert alone.broadcast("word") == "word"
    assert alone.agree(lambda: pytest.fail("nothing is fingerprinted"))
    assert _sums_of_gradients(alone) == [[1.0, 10.0], None, None]
    alone.leave()


def test_more_processes_than_gpus_are_one_line():
    assert _own_gpu(1, 2) == 1
    with pytest.raises(ConfigError, match=r"^torchrun: process 2 of this machine[^\n]*--nproc-per-node=2$"):
        _own_gpu(2, 2)


@pytest.mark.parametrize(
    ("sizes", "world", "shares"),
    [
        ([9, 5, 5], 2, [[0], [1, 2]]),
        ([1, 2, 3, 4], 2, [[0, 3], [1, 2]]),
        ([5, 5, 5], 2, [[0, 2], [1]]),  # the first of equals, to the first of equals
        ([2, 9, 2, 2], 3, [[1], [0, 3], [2]]),
        ([7], 3, [[0], [], []]),
        ([], 2, [[], []]),
    ],
)
def test_rows_are_shared_out_by_tokens(sizes, world, shares):
    assert balance(sizes, world) == shares


def test_only_this_room_asks_how_many_processes_there_are():
    source = Path(turnwise.__file__).parent
    asking = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if re.search(r"torch\.distributed|parallel\.world\b", path.read_text(encoding="utf-8"))
    }
    asking.remove("models/shards.py")  # a file format of torch.distributed's: it is given ranks, and asks for none
    assert asking == {"learner/parallel/data_parallel.py", "learner/parallel/sharded.py"}


def test_a_gradient_check_that_can_fail():
    expected, _ = update_of(learner_of(CASES["grpo"]))
    other, _ = update_of(
        learner_of(CASES["grpo"]), [group(*GROUPS[0].trajectories), group(*GROUPS[1].trajectories[:2])]
    )
    with pytest.raises(AssertionError, match="policy"):
        assert_same_gradients(other, expected)


def test_described_tensors_travel_without_content():
    """A checkpoint's state is sent to all ranks before each reads its part of the shards."""
    state = {"moments": torch.empty(3, 4, dtype=torch.bfloat16, device="meta"), "step": torch.tensor(5.0)}
    packed, tensors = _pack(state)
    found = _Unpickler(packed, tensors).load()
    assert [float(one) for one in tensors] == [5.0]
    assert found["moments"].is_meta
    assert (found["moments"].shape, found["moments"].dtype) == ((3, 4), torch.bfloat16)
