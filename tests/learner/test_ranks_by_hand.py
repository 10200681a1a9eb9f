"""What a rank does because of the others, in one process with stand-ins for them: idle passes, sums, messages."""

import pytest
import torch

from episodes_by_hand import episode, group, tiny_llama, turn
from layout_cases import CASES, GROUPS, assert_same_gradients, learner_of, update_of
from turnwise.compute.layers import find_layers
from turnwise.learner import forward_runner as forward_runner_module
from turnwise.learner.batch import Batch
from turnwise.learner.forward_runner import ForwardRunner
from turnwise.learner.parallel import SINGLE, DataParallel, SingleProcess, data_parallel
from turnwise.learner.settings import OptimizerSettings, SFTSettings
from turnwise.learner.sft import SFTLearner

LONG = episode(turn([1, 2, 3], [4, 5], opens=True))
SHORT = episode(turn([6], [7], opens=True))


class Idle(SingleProcess):
    """Ranks of which another has two micro-batches more: over a sharded model, all make as many passes."""

    def most(self, count):
        return count + 2


class Twice(SingleProcess):
    """Two ranks whose gradients are equal."""

    def sum_gradients(self, parameters):
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(2)


def count_passes(module):
    """How often its first layer has run forward and backward; filled in later."""
    passes = {"forward": 0, "backward": 0}

    def count(direction):
        passes[direction] += 1

    layer = find_layers(module)[0]
    layer.register_forward_hook(lambda *_: count("forward"))
    layer.register_full_backward_hook(lambda *_: count("backward"))
    return passes


def train(parallel):
    """The gradients and metrics of an update by a critic that begins at zero, and the passes of policy and critic."""
    learner = learner_of(CASES["gae"], parallel=parallel, budget=20)
    torch.nn.init.zeros_(learner.critic.head.weight)
    passes = [count_passes(module) for module in (learner.model, learner.critic)]
    gradients, update = update_of(learner)
    return gradients, update.metrics, passes


def test_passes_without_weight_are_made_forward_and_backward_and_change_no_gradient():
    expected, metrics, alone = train(SINGLE)
    found, metrics_too, passes = train(Idle())
    assert_same_gradients(found, expected)
    assert metrics_too == metrics
    more = [{name: mine[name] - other[name] for name in mine} for mine, other in zip(passes, alone, strict=True)]
    assert more == [{"forward": 4, "backward": 2}] * 2, "two without gradients, before the update, and two with them"


def test_passes_without_weight_change_no_step_of_sft():
    weights, counts = [], []
    for parallel in (SINGLE, Idle()):
        model = tiny_llama()
        counts.append(count_passes(model))
        learner = SFTLearner(
            model, SFTSettings(optimizer=OptimizerSettings(lr=0.01)), total_steps=1, seed=0, parallel=parallel
        )
        learner.step(Batch.of(GROUPS), step=0)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*weights)
    assert counts == [{"forward": 1, "backward": 1}, {"forward": 3, "backward": 3}]


def test_a_pass_without_weight_reads_the_shortest_row():
    batch = Batch.of([group(LONG, SHORT, LONG)])
    runner = ForwardRunner(device=torch.device("cpu"), autocast=None, temperature=1.0, token_budget=64, parallel=Idle())
    idle = runner.idle_passes(batch, runner.micro_batches(batch))
    assert [micro.ids.tolist() for micro in idle] == [[[6, 7]]] * 2


def test_passes_without_weight_compute_no_entropy(monkeypatch):
    asked, real = [], forward_runner_module.score
    monkeypatch.setattr(
        forward_runner_module, "score", lambda *given, entropy: asked.append(entropy) or real(*given, entropy=entropy)
    )
    batch = Batch.of([group(LONG, SHORT)])
    runner = ForwardRunner(device=torch.device("cpu"), autocast=None, temperature=1.0, token_budget=64, parallel=Idle())
    runner.logprobs(tiny_llama(), batch, batch.action)
    assert asked == [False, False, False]


def test_a_step_is_taken_by_the_gradients_of_all_ranks():
    _, alone, _ = train(SINGLE)
    _, together, _ = train(Twice())
    for area in ("policy", "critic"):
        assert together[f"{area}/grad_norm"] == pytest.approx(2 * alone[f"{area}/grad_norm"])
    norms = []
    for parallel in (SINGLE, Twice()):
        learner = SFTLearner(tiny_llama(), SFTSettings(), total_steps=1, seed=0, parallel=parallel)
        norms += [metrics["sft/grad_norm"] for metrics in learner.step(Batch.of(GROUPS), step=0)]
    assert norms[1] == pytest.approx(2 * norms[0])


def test_sums_of_gradients_are_waited_for_and_reach_what_another_rank_alone_has(monkeypatch):
    """The other rank has gradients of 1 for the first two weights. A sum is under way until it is waited for."""
    events = []

    class Sum:
        def __init__(self, tensor):
            self.tensor = tensor

        def wait(self):
            events.append("wait")
            self.tensor.add_(1)

    def all_reduce(tensor, async_op=False):
        if not async_op:
            return tensor.add_(torch.tensor([1, 1, 0]))
        events.append("begin")
        return Sum(tensor)

    monkeypatch.setattr(data_parallel.dist, "all_reduce", all_reduce)
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    weights[0].grad = torch.tensor([3.0, 4.0])
    DataParallel(rank=0, world=2).sum_gradients(weights)
    assert [weights[0].grad.tolist(), weights[1].grad.tolist(), weights[2].grad] == [[4.0, 5.0], [1.0, 1.0], None]
    assert events == ["begin", "begin", "wait", "wait"], "all are begun before the first is waited for"


class Wire:
    """What rank 0 sends, in order, for another rank to receive; in the place of torch.distributed."""

    def __init__(self):
        self.sent = []
        self.receives = False

    def broadcast(self, tensor, src):
        assert src == 0
        if self.receives:
            tensor.copy_(self.sent.pop(0))
        else:
            self.sent.append(tensor.clone())

    def broadcast_object_list(self, values, src, device):
        assert src == 0
        if self.receives:
            values[:] = self.sent.pop(0)
        else:
            self.sent.append(list(values))


@pytest.fixture
def wire(monkeypatch):
    wire = Wire()
    for name in ("broadcast", "broadcast_object_list"):
        monkeypatch.setattr(data_parallel.dist, name, getattr(wire, name))
    return wire


def test_a_value_of_rank_0_arrives_with_its_tensors(wire):
    value = {"step": 3, "moments": [torch.tensor([1.0, 2.0]), torch.tensor(7)], "name": "adam"}
    assert DataParallel(rank=0, world=2).broadcast(value) is value
    wire.receives = True
    found = DataParallel(rank=1, world=2).broadcast(None)
    assert (found["step"], found["name"], [one.tolist() for one in found["moments"]]) == (3, "adam", [[1.0, 2.0], 7])
    assert wire.sent == [], "nothing is left that the next exchange would take for its own"


def test_a_module_is_prepared_with_the_weights_and_buffers_of_rank_0(wire):
    first, second = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    torch.nn.init.constant_(first.weight, 3.0)
    first.running_mean.fill_(4.0)
    assert DataParallel(rank=0, world=2).prepare(first) is first
    wire.receives = True
    DataParallel(rank=1, world=2).prepare(second)
    assert (second.weight.tolist(), second.running_mean.tolist()) == ([3.0, 3.0], [4.0, 4.0])
    assert wire.sent == []


def test_values_are_gathered_by_rank(monkeypatch):
    def all_gather_object(values, value):
        values[:] = ["from rank 0", value, "from rank 2"][: len(values)]

    monkeypatch.setattr(data_parallel.dist, "all_gather_object", all_gather_object)
    ranks = DataParallel(rank=1, world=3)
    assert ranks.gather("mine") == ["from rank 0", "mine", "from rank 2"]
    assert not ranks.agree(lambda: "mine")
    assert DataParallel(rank=0, world=2).gather("x") == ["from rank 0", "x"]
    assert DataParallel(rank=0, world=2).agree(lambda: "from rank 0")
    assert not DataParallel(rank=0, world=2).agree(lambda: "x")


def test_ranks_of_whole_copies_meet_at_barriers_and_read_shards_together(monkeypatch):
    calls = []
    monkeypatch.setattr(data_parallel.dist, "barrier", lambda: calls.append("barrier"))
    monkeypatch.setattr(data_parallel, "read_shards", lambda *given, alone: calls.append((*given, alone)))
    ranks = DataParallel(rank=0, world=2)
    ranks.barrier()
    ranks.read_shards("folder", {})
    assert calls == ["barrier", ("folder", {}, False)]
    assert not ranks.is_sharded
    assert [DataParallel(rank=rank, world=2).is_main for rank in range(2)] == [True, False]
