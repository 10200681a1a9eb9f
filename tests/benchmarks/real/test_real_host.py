"""The local engine over a runner that replays: the stored turns come back, after as long as a GPU takes."""

import asyncio
import json
import time

import pytest

from benchmarks.real.__main__ import main
from benchmarks.real.replay_runner import Latency, ReplayRunner, replaying_engine
from tiny_runs import run_tiny
from turnwise.engines.base import Sampling
from turnwise.engines.settings import LocalEngineSettings
from turnwise.ledger import Ledger

TURNS = {7: (5, 6, 2), 8: (9, 2), 9: (4, 4, 4, 2)}


def play(latency, *, slots):
    runner = ReplayRunner(slots=slots, latency=latency, turns=TURNS)
    settings = LocalEngineSettings(slots=slots)
    with replaying_engine(settings, runner, context_limit=64, ledger=Ledger()) as engine:

        async def turns():
            samplings = [Sampling(max_tokens=8, stop_ids=(2,), seed=seed) for seed in TURNS]
            return await asyncio.gather(*(engine.generate(str(one.seed), [1] * 10, one) for one in samplings))

        began = time.monotonic()
        found = asyncio.run(turns())
    return [one.ids for one in found], runner.counts, time.monotonic() - began


@pytest.mark.parametrize("slots", [2, 3])
def test_every_session_samples_what_was_stored(slots):
    found, counts, _ = play(Latency(decode_step_seconds=0.0), slots=slots)
    assert found == list(TURNS.values())
    assert counts["decode_steps"] >= 3


def test_tokens_come_when_the_device_has_computed_them():
    """Prefills of 10 tokens, and of one each for two that copy the rest, at 300 a second; then three decode steps."""
    *_, seconds = play(Latency(prefill_tokens_per_second=300.0, decode_step_seconds=0.05), slots=3)
    assert seconds >= 12 / 300 + 3 * 0.05


def test_a_run_is_played_again(tmp_path, capsys):
    run_tiny(tmp_path / "run", steps=1)
    assert main(["host", str(tmp_path / "run")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 1
    assert found["launches"]["prefills"] >= 1
    assert {"environment", "render", "store", "whole"} <= set(found["seconds"])
