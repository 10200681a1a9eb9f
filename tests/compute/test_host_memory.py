"""How much of the host's memory is free (what the kernel has, or less where a control group limits the process), and
passes that stop before it is full."""

import math

import pytest
import torch

from episodes_by_hand import tiny_llama
from layout_cases import CASES, assert_same_gradients, learner_of, update_of
from turnwise.compute import host_memory
from turnwise.compute.host_memory import bounded_memory, free_memory
from turnwise.compute.layers import find_layers


def write_group(folder, *, version, limit, used, cached):
    folder.mkdir(parents=True, exist_ok=True)
    one, two, stat = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }[version]
    (folder / one).write_text(f"{limit}\n")
    (folder / two).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 3\n{stat} {cached}\n")


@pytest.mark.parametrize(
    ("membership", "groups", "expected"),
    [
        # A container: its own group is the root of what it sees. 100 less 70, of which 15 are cached files.
        ("0::/\n", {"": {"version": 2, "limit": 100, "used": 70, "cached": 15}}, [45]),
        ("0::/\n", {"": {"version": 2, "limit": "max", "used": 70, "cached": 15}}, []),
        ("0::/host/pod\n", {"": {"version": 2, "limit": 100, "used": 70, "cached": 0}}, [30]),
        # A scheduler's job, whose parent is limited, too.
        (
            "0::/job/task\n",
            {
                "job/task": {"version": 2, "limit": 100, "used": 10, "cached": 0},
                "job": {"version": 2, "limit": 200, "used": 180, "cached": 0},
            },
            [90, 20],
        ),
        (
            "3:cpu:/\n4:memory:/job\n0::/\n",
            {"memory/job": {"version": 1, "limit": 100, "used": 40, "cached": 5}},
            [65],
        ),
        ("3:cpu:/\n", {}, []),
    ],
)
def test_what_a_control_group_leaves(tmp_path, membership, groups, expected):
    (tmp_path / "cgroup").write_text(membership)
    for name, group in groups.items():
        write_group(tmp_path / "mount" / name, **group)
    assert list(host_memory._read_group_room(tmp_path / "cgroup", tmp_path / "mount")) == expected


def test_the_least_of_all_is_free(monkeypatch):
    monkeypatch.setattr(host_memory, "_read_group_room", lambda *given: iter([50.0, 30.0]))
    monkeypatch.setattr(host_memory, "read_kernel_bytes", lambda *given: 40.0)
    assert free_memory() == 30.0
    monkeypatch.setattr(host_memory, "_read_group_room", lambda *given: iter([]))
    assert free_memory() == 40.0
    monkeypatch.setattr(host_memory, "read_kernel_bytes", lambda *given: 0.0)
    assert free_memory() == float("inf"), "nothing tells: no reason to think that there is too little"


GIB = 2**30


class Host:
    """A machine whose memory is taken by what layers save: what is free, and what this process uses."""

    def __init__(self, monkeypatch, *, free, layer):
        self.free, self.layer, self.used = free, layer, 0
        monkeypatch.setattr(host_memory, "free_memory", lambda: self.free - self.used)
        monkeypatch.setattr(host_memory, "read_kernel_bytes", lambda *given: self.used)
        monkeypatch.setattr(host_memory, "_SMALL", 16)

    def layers_that_ran(self, model, ids):
        """How many layers of a pass began."""
        ran = []

        def take(*_):
            ran.append(1)
            self.used += self.layer

        handles = [layer.register_forward_hook(take) for layer in find_layers(model)]
        try:
            with bounded_memory(model), pytest.raises(torch.OutOfMemoryError, match=r"^of the host's memory, \d"):
                model(ids)
        finally:
            for handle in handles:
                handle.remove()
        assert all(layer._compiled_call_impl is None for layer in find_layers(model)), "as before"
        return len(ran)


@pytest.fixture
def model():
    return tiny_llama(num_hidden_layers=8)


def test_a_pass_stops_before_its_next_layer_takes_the_last(monkeypatch, model):
    """Each layer takes 1 GiB of 8: before the fifth 4 are free, of which the rule asks 3 and a quarter; then 3."""
    host = Host(monkeypatch, free=8 * GIB, layer=GIB)
    with torch.no_grad():
        assert host.layers_that_ran(model, torch.ones(2, 8, dtype=torch.long)) == 5


def test_gradients_that_are_not_there_yet_are_counted(monkeypatch, model):
    gradients = sum(p.nbytes for p in model.parameters())
    host = Host(monkeypatch, free=8 * gradients, layer=gradients)
    assert host.layers_that_ran(model, torch.ones(2, 8, dtype=torch.long)) == 4


@pytest.mark.parametrize("free", [math.inf, 100 * GIB])
def test_where_there_is_room_or_nothing_tells_nothing_is_raised(monkeypatch, model, free):
    monkeypatch.setattr(host_memory, "free_memory", lambda: free)
    monkeypatch.setattr(host_memory, "_SMALL", 16)
    ids = torch.ones(2, 8, dtype=torch.long)
    with bounded_memory(model):
        bounded = model(ids).logits
    assert torch.equal(bounded, model(ids).logits)


def test_a_small_pass_is_not_looked_at(monkeypatch, model):
    monkeypatch.setattr(host_memory, "free_memory", lambda: pytest.fail("looked"))
    with bounded_memory(model):
        model(torch.ones(2, 8, dtype=torch.long))


def test_micro_batches_shrink_where_the_host_is_full_and_the_update_is_the_same(monkeypatch, caplog):
    """A host on which a pass of more than 24 tokens does not fit."""
    expected, _ = update_of(learner_of(CASES["gae"]))
    learner, tokens = learner_of(CASES["gae"]), [0]
    monkeypatch.setattr(host_memory, "_SMALL", 0)
    monkeypatch.setattr(host_memory, "free_memory", lambda: 0 if tokens[-1] > 24 else math.inf)
    for module in (learner.model, learner.critic):
        module.register_forward_pre_hook(
            lambda _, given: tokens.append(given[0].numel() if torch.is_grad_enabled() else 0)
        )
    found, _ = update_of(learner)
    assert_same_gradients(found, expected)
    assert max(tokens) > 24 >= tokens[-1]
    assert learner.runner.token_budget < 1000
    assert "learner.tokens_per_microbatch is" in caplog.text
