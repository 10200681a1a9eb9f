"""A sharded model in one process: FSDP2 in a group of one, with stand-ins for what the other ranks would send."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from episodes_by_hand import tiny_llama
from layout_cases import CASES, GROUPS, assert_same_gradients, learner_of, update_of
from turnwise.compute.layers import find_layers
from turnwise.learner.parallel import SINGLE, Sharded, SingleProcess

CPU = torch.device("cpu")


class Ranks(SingleProcess):
    """One of two ranks; the other has five of what is gathered."""

    def __init__(self, rank=0):
        self.rank, self.world, self.is_main, self.calls = rank, 2, rank == 0, []

    def gather(self, value):
        return [value, 5]

    def write_shards(self, folder, tensors):
        self.calls.append(("write", folder, tensors))
        return {"shard": "hash"}

    def read_shards(self, folder, tensors):
        self.calls.append(("read", folder, tensors))

    def barrier(self):
        self.calls.append("barrier")

    def leave(self):
        self.calls.append("leave")


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture
def make(mesh):
    return lambda ranks=SINGLE: Sharded(ranks=ranks, mesh=mesh, device=CPU)


def spread(mesh, *rows):
    return distribute_tensor(torch.tensor(rows), mesh, [Shard(0)])


@pytest.mark.parametrize("case", ["grpo", "gae"])
def test_a_sharded_learner_does_what_one_that_is_not_does(make, case):
    """In the second update the policy has moved away from its reference."""
    alone, sharded = learner_of(CASES[case]), learner_of(CASES[case], parallel=make())
    for learner in (alone, sharded):
        learner.update(GROUPS, seed=7)
    expected, update = update_of(alone)
    found, update_too = update_of(sharded)
    assert_same_gradients(found, expected)
    assert update_too.metrics == pytest.approx(update.metrics, abs=1e-6)
    assert all(isinstance(part, FSDPModule) for part in (sharded.model, *find_layers(sharded.model)))
    whole = tiny_llama()
    make().publish(sharded.model, whole)
    for name, weight in alone.model.state_dict().items():
        torch.testing.assert_close(whole.state_dict()[name], weight, atol=1e-9, rtol=0, msg=name)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_model_is_sharded_with_the_weights_that_rank_0_sent(make, rank, monkeypatch):
    """Rank 0 sends its own; the other receives fives, and its model leaves the device."""
    sent, moved = [], []

    def broadcast(tensor, src):
        assert src == 0
        sent.append(tensor)
        if rank:
            tensor.fill_(5.0)

    model, parallel = tiny_llama(), make(Ranks(rank))
    model.to = lambda device: moved.append(device)
    monkeypatch.setattr(dist, "broadcast", broadcast)
    prepared = parallel.prepare(model)
    found = {name: parallel.whole(weight) for name, weight in prepared.state_dict().items()}
    for name, weight in model.state_dict().items():
        assert torch.equal(found[name], torch.full_like(weight, 5.0) if rank else weight), name
    assert len(sent) == len(found)
    assert moved == (["cpu"] if rank else [])


def test_only_rank_0_has_weights_published_to_its_model(make):
    trained, whole = make().prepare(tiny_llama(seed=1)), tiny_llama()
    make(Ranks(1)).publish(trained, whole)
    assert torch.equal(whole.lm_head.weight, tiny_llama().lm_head.weight)
    make(Ranks(0)).publish(trained, whole)
    assert torch.equal(whole.lm_head.weight, tiny_llama(seed=1).lm_head.weight)


def test_a_state_is_loaded_into_a_sharded_model(make):
    prepared, other = make().prepare(tiny_llama()), tiny_llama(seed=1).state_dict()
    make().load(prepared, other)
    for name, weight in prepared.state_dict().items():
        assert torch.equal(make().whole(weight), other[name]), name


def test_gradients_that_backward_averaged_over_two_ranks_become_sums(make):
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    weights[0].grad = torch.tensor([1.5, 2.0])
    make(Ranks()).sum_gradients(weights)
    assert (weights[0].grad.tolist(), weights[1].grad) == ([3.0, 4.0], None)


@pytest.mark.parametrize(("own", "most"), [(3, 5), (8, 8)])
def test_every_rank_makes_as_many_passes_as_the_one_with_most(make, own, most):
    assert make(Ranks()).most(own) == most


def test_a_tensor_is_placed_as_its_like_is(make, mesh):
    parallel, here, there = make(), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), spread(mesh, [5.0, 6.0], [7.0, 8.0])
    placed = parallel.place(here, like=there)
    assert isinstance(placed, DTensor)
    assert (placed.placements, placed.to_local().tolist()) == ((Shard(0),), here.tolist())
    assert parallel.place(there, like=there) is there
    assert parallel.place(here, like=here) is here
    gathered = parallel.place(there, like=here)
    assert not isinstance(gathered, DTensor)
    assert gathered.tolist() == [[5.0, 6.0], [7.0, 8.0]]
    step = torch.tensor(3.0)
    assert parallel.place(step, like=there) is step, "a moment of another shape, such as AdamW's count, is not spread"


def test_room_for_shards_is_spread_by_rows_and_a_scalar_is_not(make):
    matrix = make().make_empty(torch.empty(3, 4, dtype=torch.bfloat16, device="meta"))
    assert (matrix.placements, matrix.shape, matrix.dtype) == ((Shard(0),), (3, 4), torch.bfloat16)
    scalar = make().make_empty(torch.empty((), dtype=torch.double, device="meta"))
    assert not isinstance(scalar, DTensor)
    assert (scalar.shape, scalar.dtype) == ((), torch.double)


def test_a_ranks_own_part_shares_its_memory(make, mesh):
    tensor, plain = spread(mesh, [1.0], [2.0]), torch.zeros(2)
    make().local(tensor).add_(1)
    assert not isinstance(make().local(tensor), DTensor)
    assert make().whole(tensor).tolist() == [[2.0], [3.0]]
    assert make().local(plain) is plain


def test_every_tensor_of_a_state_is_gathered_however_deep_it_lies(make, mesh):
    tensor = spread(mesh, [1.0], [2.0])
    state = make().gather_state({"version": 3, "adam": {"state": {0: tensor}}, "masters": [tensor, "word"]})
    first, (second, word) = state["adam"]["state"][0], state["masters"]
    assert (state["version"], word) == (3, "word")
    assert not any(isinstance(one, DTensor) for one in (first, second))
    assert first.tolist() == second.tolist() == [[1.0], [2.0]]


def test_what_needs_no_shards_is_left_to_the_ranks(make, tmp_path):
    ranks = Ranks(1)
    parallel, tensors = make(ranks), {"weights/a": torch.zeros(1)}
    assert parallel.write_shards(tmp_path, tensors) == {"shard": "hash"}
    parallel.read_shards(tmp_path, tensors)
    parallel.barrier()
    parallel.leave()
    assert ranks.calls == [("write", tmp_path, tensors), ("read", tmp_path, tensors), "barrier", "leave"]
    assert (parallel.rank, parallel.world, parallel.is_main, parallel.is_sharded) == (1, 2, False, True)
