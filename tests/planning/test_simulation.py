"""Simulated fleets: a clock that jumps, the real scheduler, and what limits it."""

import asyncio
import logging
import math
import os
import time
from dataclasses import replace

import pytest

from turnwise.cli.main import main
from turnwise.errors import RunError
from turnwise.planning import simulation
from turnwise.planning.simulation import Load, make_pool, simulate, simulate_with_limits
from turnwise.planning.virtual_time import run_virtually
from turnwise.rollout.stream import RolloutStream

SMALL = Load(tokens=40.0, token_seconds=0.1, context_tokens=40, steps=10, group_size=4)
PERFECT = replace(SMALL, sigma=0.0, tool_seconds=0.0, weight_seconds=0.0, hours_between_deaths=math.inf)


def test_sleeping_costs_nothing_and_computing_what_it_takes():
    async def work():
        await asyncio.sleep(10_000)
        began = time.thread_time()
        while time.thread_time() - began < 0.05:
            pass
        await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    found, loop = run_virtually(work())
    assert time.monotonic() - began < 60
    assert 10_000.05 <= found < 10_001
    assert 0.05 <= loop.computed < 1
    free, _ = run_virtually(work(), counts_computing=False)
    assert free == 10_000


def test_sleepers_wake_in_the_order_of_their_times():
    async def work():
        woken = []

        async def sleep(seconds):
            await asyncio.sleep(seconds)
            woken.append(seconds)

        await asyncio.gather(*(sleep(seconds) for seconds in (30, 10, 20)))
        return woken

    assert run_virtually(work())[0] == [10, 20, 30]


def test_waiting_for_what_will_not_happen_is_an_error():
    async def work():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RunError, match="something that will not happen"):
        run_virtually(work())


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_without_anything_that_costs_time_throughput_is_ideal(mode):
    found = simulate(PERFECT, 4, mode, counts_computing=False)
    assert found.share == pytest.approx(1.0, abs=0.02)
    assert found.lost == 0


def test_a_simulation_follows_from_its_seed():
    one, again = (simulate(SMALL, 4, "asynchronous", counts_computing=False) for _ in range(2))
    assert one.step_seconds == again.step_seconds
    assert simulate(replace(SMALL, seed=1), 4, "asynchronous", counts_computing=False) != one


def test_lengths_are_log_normal_with_the_mean_that_was_asked_for():
    pool = make_pool(replace(SMALL, tokens=400.0, sigma=0.75, group_size=32))
    tokens = [one.action_tokens for group in pool for one in group.trajectories]
    assert sum(tokens) / len(tokens) == pytest.approx(400, rel=0.1)
    logs = [math.log(count) for count in tokens]
    centre = sum(logs) / len(logs)
    assert math.sqrt(sum((one - centre) ** 2 for one in logs) / len(logs)) == pytest.approx(0.75, rel=0.1)


@pytest.mark.parametrize(
    "worse",
    [
        {"sigma": 1.2},
        {"weight_seconds": 20.0},
        {"hours_between_deaths": 0.01, "restart_seconds": 60.0},
    ],
    ids=["stragglers", "weights", "deaths"],
)
def test_what_costs_time_costs_throughput(worse, caplog):
    caplog.set_level(logging.ERROR, "turnwise.rollout.fleet")
    found = simulate(replace(PERFECT, **worse), 4, "asynchronous", counts_computing=False)
    assert found.share < 0.95
    assert (found.lost > 0) == ("hours_between_deaths" in worse)


def test_the_schedulers_own_time_counts(monkeypatch):
    monkeypatch.setattr(simulation, "measure_receiving", lambda pool: 2.0)
    found = simulate(PERFECT, 4, "asynchronous")
    groups = 4 * PERFECT.places * PERFECT.rounds
    assert found.scheduler_seconds == pytest.approx(2.0 * groups, rel=0.2)
    assert found.share < 0.9


def test_limits_are_found_by_taking_each_away(monkeypatch, caplog):
    caplog.set_level(logging.ERROR, "turnwise.rollout.fleet")
    found = simulate_with_limits(replace(PERFECT, weight_seconds=20.0), 2, "asynchronous")
    assert max(found.limits, key=found.limits.get) == "weights"
    assert found.limits["weights"] > 0.1


def test_a_batch_is_looked_at_a_few_times_however_many_groups_it_has(monkeypatch):
    """Not once for each group that ends: with thousands under way the scheduler would be the limit."""
    looks, count = [], RolloutStream._count_lacking
    monkeypatch.setattr(RolloutStream, "_count_lacking", lambda *given, **how: looks.append(1) or count(*given, **how))
    load = replace(SMALL, rounds=8.0)
    simulate(load, 8, "asynchronous", counts_computing=False)
    groups = 8 * load.places * load.rounds * load.steps
    assert len(looks) < groups / 10


@pytest.mark.skipif(os.environ.get("TURNWISE_SCALE") != "long", reason="minutes: make test-scale")
@pytest.mark.parametrize(("workers", "least"), [(8, 0.9), (64, 0.9), (512, 0.75)])
def test_asynchronous_fleets_reach_their_share_of_ideal(workers, least, caplog):
    """With tool waits, deaths, log-normal lengths and weights to send, and the scheduler's time counted."""
    caplog.set_level(logging.ERROR, "turnwise.rollout.fleet")
    assert simulate(Load(), workers, "asynchronous").share >= least


def test_the_command_prints_shares_and_limits(capsys, caplog):
    caplog.set_level(logging.ERROR, "turnwise.rollout.fleet")
    assert main(["plan", "gpu-multihop-qwen-500m", "engine.slots=16", "--gpus", "1", "--simulate", "2"]) == 0
    shown = capsys.readouterr().out
    assert "share of ideal" in shown
    assert "synchronous" in shown
    assert main(["plan", "gpu-multihop-qwen-500m", "--simulate", "many"]) == 2
