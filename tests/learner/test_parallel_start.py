"""How a process joins others, and what it makes of errors, without any other process."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from turnwise.errors import TurnwiseError
from turnwise.learner.parallel import DataParallel, data_parallel, host_store, join, join_by, reach_store


@pytest.mark.parametrize(("gpus", "backend", "device"), [(2, "cpu:gloo,cuda:nccl", [1]), (0, "gloo", [])])
def test_each_rank_takes_a_gpu_of_its_own_where_there_are_some(gpus, backend, device, monkeypatch):
    chosen, begun = [], []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(data_parallel, "_meet", lambda: (dist.HashStore(), 1, 2))
    monkeypatch.setattr(dist, "init_process_group", lambda name, **given: begun.append((name, given)))
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    assert join() == DataParallel(rank=1, world=2)
    assert chosen == device
    ((name, given),) = begun
    assert name == backend
    assert (given["rank"], given["world_size"], given["timeout"]) == (1, 2, timedelta(hours=2))


def test_a_process_that_others_find_by_a_store_takes_the_first_gpu_it_sees(monkeypatch):
    """Ray lets each process see its own GPU alone."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(dist, "init_process_group", lambda name, **given: None)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    assert join_by(dist.HashStore(), rank=1, world=2, started_by="ray") == DataParallel(rank=1, world=2)
    assert chosen == [0]


def test_a_store_is_reached_at_the_port_that_its_host_chose():
    hosted, port = host_store("127.0.0.1")
    assert port > 1023
    hosted.set("word", "here")
    reached = reach_store("127.0.0.1", port)
    assert reached.get("word") == b"here"


def test_an_error_without_words_is_named_by_its_type():
    with pytest.raises(TurnwiseError, match=r"has ended \(DistError\)"), data_parallel._peers_alive():
        raise dist.DistError


def test_processes_that_cannot_meet_are_one_line(monkeypatch):
    def fail():
        raise RuntimeError("no route\nto the host")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(data_parallel, "_meet", fail)
    with pytest.raises(TurnwiseError, match=r"^torchrun: its processes cannot reach each other \(no route\)$"):
        join()


@pytest.mark.parametrize("sign", ["Connection closed by peer", "Connection reset by peer", "Timed out waiting"])
def test_a_dead_peer_is_told_from_an_error_of_ones_own(sign):
    with pytest.raises(TurnwiseError, match="another process of this run has ended"), data_parallel._peers_alive():
        raise RuntimeError(f"gloo: {sign} [127.0.0.1]")
    with pytest.raises(RuntimeError, match=r"^shapes differ$"), data_parallel._peers_alive():
        raise RuntimeError("shapes differ")
    with pytest.raises(TurnwiseError, match="lost it"), data_parallel._peers_alive():
        raise dist.DistError("lost it")


def test_leaving_ends_the_exchange(monkeypatch):
    ended = []
    monkeypatch.setattr(dist, "destroy_process_group", lambda: ended.append(1))
    DataParallel(rank=0, world=2).leave()
    assert ended == [1]
