"""When CUDA graphs are captured and replayed, and what a capture leaves alone; torch's own calls are stood in for."""

from contextlib import nullcontext

import pytest
import torch

from turnwise.compute import device
from turnwise.compute.device import Graphs


class FakeGraph:
    def __init__(self, done):
        self._done = done

    def capture_begin(self, pool, capture_error_mode):
        self._done.append(("begin", pool, capture_error_mode))

    def capture_end(self):
        self._done.append("end")

    def replay(self):
        self._done.append("replay")


@pytest.fixture
def done(monkeypatch):
    """What was done, in order; 8 GiB are free."""
    done = []
    for name, value in {
        "graph_pool_handle": lambda: "pool",
        "CUDAGraph": lambda: FakeGraph(done),
        "Stream": object,
        "stream": lambda stream: nullcontext(),
        "synchronize": lambda: done.append("synchronize"),
        "mem_get_info": lambda: (2**33, 2**36),
        "empty_cache": lambda: done.append("empty_cache"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return done


def step(done):
    done.append("step")
    return (torch.zeros(1),)


def test_a_step_runs_then_is_captured_and_replayed(done):
    graphs = Graphs(torch.device("cuda"))
    found = [graphs.run("key", lambda: step(done)) for _ in range(3)]
    begin = ("begin", "pool", "thread_local")
    assert done == ["step", "synchronize", begin, "step", "end", "replay", "replay"]
    assert found[1][0] is found[2][0], "where the captured step wrote"
    assert found[0][0] is not found[1][0]


def test_cached_memory_is_given_back_only_where_the_device_is_full(done, monkeypatch):
    """Else the learner would have to allocate its own again after every new size."""
    graphs = Graphs(torch.device("cuda"))
    for key in ("one", "two"):
        if key == "two":
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (device._SPARE_BYTES - 1, 2**36))
        for _ in range(2):
            graphs.run(key, lambda: step(done))
    assert done.count("empty_cache") == 1
    assert done.index("empty_cache") > done.index("replay"), "for the second"


def test_a_capture_that_fails_is_ended(done):
    graphs = Graphs(torch.device("cuda"))
    graphs.run("key", lambda: step(done))
    with pytest.raises(ZeroDivisionError):
        graphs.run("key", lambda: 1 / 0)
    assert done[-1] == "end"
