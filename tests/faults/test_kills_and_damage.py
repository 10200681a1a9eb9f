"""The long form of two promises: SIGKILL at any moment of any phase, and damage of any kind to any file.

With TURNWISE_FAULTS=long 200 kills and 100 damages; in `make test` a few damages, and the kills of other files.
"""

import json
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from processes import begin_training, wait_until
from tiny_runs import Died, records, run_tiny, same_weights, weights
from turnwise.runs import Checkpoints, RunDirectory

LONG = os.environ.get("TURNWISE_FAULTS") == "long"
KILLS, DAMAGES = (200, 100) if LONG else (1, 4)
STEPS = 4
PHASES = ("preparation", "untrained", "demonstrations", "cold start", "evaluation", "training", "checkpoint")


@pytest.fixture(scope="module")
def settings(cold):
    """Every phase that a run can have; half of the time in the cold start."""
    return {
        "model": {"name": str(cold), "lora": {"rank": 4, "dropout": 0.1}},
        "steps": STEPS,
        "sft": {"demonstrations": 64, "batch": 4, "optimizer": {"lr": 1e-2, "schedule": "cosine"}},
        "checkpoint": {"every": 1, "keep": 3, "sft_every": 3},
        "evaluate": {"tasks": 4, "every": 2, "untrained": True},
    }


@pytest.fixture(scope="module")
def unbroken(settings, tmp_path_factory):
    return run_tiny(tmp_path_factory.mktemp("unbroken") / "run", **settings)


def assert_equal(run: RunDirectory, other: RunDirectory, what: str) -> None:
    assert same_weights(weights(run, STEPS), weights(other, STEPS)), what
    assert records(run) == records(other), what
    names = [sorted(path.name for path in one.trajectories.iterdir()) for one in (run, other)]
    assert names[0] == names[1], what


def begun(phase: str, run: Path) -> bool:
    """Whether a run has come to a phase, by what it has written."""
    metrics, checkpoints = run / "metrics.jsonl", run / "checkpoints"
    stages = [json.loads(line)["stage"] for line in metrics.read_text().splitlines()[:-1]] if metrics.exists() else []
    match phase:
        case "preparation":
            return (run / ".lock").exists()
        case "untrained":
            return metrics.exists()
        case "demonstrations":
            return "untrained" in stages
        case "cold start":
            return (checkpoints / "sft").exists()
        case "evaluation":
            return "sft" in stages
        case "training":
            return (checkpoints / "step-000000").exists()
        case _:
            return any(checkpoints.glob(".step-*.tmp")) or (checkpoints / "step-000002").exists()


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="takes minutes: TURNWISE_FAULTS=long")
@pytest.mark.parametrize("number", range(KILLS))
def test_a_run_that_was_killed_in_any_phase_goes_on_as_if_it_had_not(number, settings, unbroken, tmp_path):
    """Killed up to three times, a while after a phase began; the same command goes on until it is done."""
    chance = random.Random(f"{number} {time.time_ns()}")
    kills = [(chance.choice(PHASES), chance.random() * 0.5) for _ in range(chance.randint(1, 3) if LONG else 1)]
    for phase, delay in kills:
        process = begin_training(tmp_path, "--resume=auto", **settings)
        wait_until(lambda phase=phase, process=process: begun(phase, tmp_path / "run") or process.poll() is not None)
        time.sleep(delay)
        process.kill()
        process.communicate()
    last = begin_training(tmp_path, "--resume=auto", **settings)
    error = last.communicate(timeout=600)[1]
    assert last.returncode == 0, f"{kills}: {error}"
    assert_equal(RunDirectory.open(tmp_path / "run"), unbroken, f"killed at {kills}")


def flip(file: Path, chance: random.Random, other: Path) -> None:
    content = bytearray(file.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def truncate(file: Path, chance: random.Random, other: Path) -> None:
    file.write_bytes(file.read_bytes()[: chance.randrange(file.stat().st_size)])


def remove(file: Path, chance: random.Random, other: Path) -> None:
    file.unlink()


def swap(file: Path, chance: random.Random, other: Path) -> None:
    ours, theirs = file.read_bytes(), other.read_bytes()
    file.write_bytes(theirs)
    other.write_bytes(ours)


@pytest.mark.parametrize("number", range(DAMAGES))
def test_damage_of_any_kind_is_noticed_and_survived(number, settings, unbroken, tmp_path, caplog):
    """A random file of the newest checkpoint; the run goes on from a whole one to the same weights and metrics."""
    chance = random.Random(f"{number} {time.time_ns()}")
    shutil.copytree(unbroken.path, tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    newest, before = (run.checkpoints / f"step-{step:06d}" for step in (STEPS, STEPS - 1))
    files = [path for path in newest.rglob("*") if path.is_file() and not path.name.startswith(".")]
    equal = {path for path in files if path.read_bytes() == (before / path.relative_to(newest)).read_bytes()}
    damage = (flip, truncate, remove, swap)[number % 4]
    file = chance.choice([path for path in files if damage is not swap or path not in equal])
    damage(file, chance, before / file.relative_to(newest))
    what = f"{damage.__name__} {file.relative_to(newest)}"
    found = Checkpoints(run.checkpoints).newest_whole()
    assert found is not None, what
    assert found.name == ("step-000002" if damage is swap else before.name), what
    if number == 0 or LONG:
        run_tiny(run.path, resume=True, **settings)
        assert "is broken" in caplog.text, what
        assert_equal(run, unbroken, what)


@pytest.mark.parametrize("number", range(DAMAGES // 3))
def test_damage_in_the_cold_start_is_noticed_and_survived(number, settings, unbroken, tmp_path):
    chance = random.Random(f"{number} {time.time_ns()}")
    with pytest.raises(Died):
        run_tiny(tmp_path / "run", die=lambda *met: met == ("cold start", 11), **settings)
    run = RunDirectory.open(tmp_path / "run")
    newest, before = (run.sft_checkpoints / f"step-{step:06d}" for step in (9, 6))
    file = chance.choice([path for path in newest.rglob("*") if path.is_file()])
    (flip, truncate, remove)[number % 3](file, chance, before)
    assert Checkpoints(run.sft_checkpoints).newest_whole() == before
    assert_equal(run_tiny(run.path, resume=True, **settings), unbroken, str(file.relative_to(newest)))
