"""The long form of two promises: SIGKILL at any moment of any phase, and damage of any kind to any file.

With TURNWISE_FAULTS=long 200 kills and 100 damages; in `make test` a few damages, and the kills of other files.
"""

import json
import os
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import save_file

from processes import OUTPUT, fork_training, wait_until
from tiny_runs import DRAWING, Died, model_folder, records, run_tiny, same_weights, trajectories, weights
from turnwise.runs import Checkpoints, RunDirectory
from turnwise.runs.findings import read_findings
from turnwise.runs.lock import LOCK
from turnwise.runs.store import SCHEMA

LONG = os.environ.get("TURNWISE_FAULTS") == "long"
KILLS, DAMAGES = (200, 100) if LONG else (1, 4)
STEPS, SFT_STEPS = 4, 16
LONG_ONLY = pytest.mark.skipif(not LONG, reason="takes minutes: TURNWISE_FAULTS=long")
KILLS_OF_A_KIND = 14
KINDS = {
    "critic": {
        "credit": {"estimator": "gae"},
        "loss": {"kl_coef": 0.05},
        "learner": {"epochs": 2, "optimizer": {"lr": 3e-3}, "critic": {"optimizer": {"lr": 1e-2}, "warmup": 1}},
    },
    "starpo-s": {"stability": {"mode": "always"}},
    "async_save": {"checkpoint": {"every": 1, "keep": 3, "sft_every": 3, "async_save": True}},
    "two-updates": {
        "checkpoint": {"every": 2, "keep": 3, "sft_every": 3},
        "rollout": {"group_size": 4, "turn_tokens": 4, "max_turns": 3, "updates_per_rollout": 2},
    },
}
"""What a run may have besides, each with state of its own to save. Not `env.workers`: on a busy machine their calls
come back in another order, which changes the last digits of sums."""
PHASES = ("preparation", "untrained", "demonstrations", "cold start", "evaluation", "training", "checkpoint")


@pytest.fixture(scope="module")
def settings(cold):
    """Every phase that a run can have; half of the time in the cold start."""
    return {
        "env": {"name": DRAWING},
        "model": {"name": str(cold), "lora": {"rank": 4, "dropout": 0.1}},
        "steps": STEPS,
        "sft": {"demonstrations": 4 * SFT_STEPS, "batch": 4, "optimizer": {"lr": 1e-2, "schedule": "cosine"}},
        "checkpoint": {"every": 1, "keep": 3, "sft_every": 3},
        "evaluate": {"tasks": 4, "every": 2, "untrained": True},
    }


def of_kind(kind: str, settings: dict[str, object]) -> dict[str, object]:
    """Adapters are written in place, so a run that writes behind itself has none."""
    model = settings["model"]
    assert isinstance(model, dict)
    return {**settings, **KINDS[kind], **({"model": {"name": model["name"]}} if kind == "async_save" else {})}


@pytest.fixture(scope="module")
def unbroken(settings, tmp_path_factory):
    return run_tiny(tmp_path_factory.mktemp("unbroken") / "run", **settings)


@pytest.fixture(scope="module")
def unbroken_of(settings, tmp_path_factory):
    """Runs of other kinds, made once each."""
    made: dict[str, RunDirectory] = {}

    def make(kind: str) -> RunDirectory:
        if kind not in made:
            made[kind] = run_tiny(tmp_path_factory.mktemp(kind) / "run", **of_kind(kind, settings))
        return made[kind]

    return make


def assert_equal(run: RunDirectory, other: RunDirectory, what: str) -> None:
    """Weights of every checkpoint bit for bit, and whatever was recorded, apart from times.

    A run that was resumed also keeps the checkpoint that it was resumed from.
    """
    kept, others = ({path.name for path in one.checkpoints.glob("step-*")} for one in (run, other))
    assert kept >= others, what
    for step in sorted(int(name.removeprefix("step-")) for name in others):
        assert same_weights(weights(run, step), weights(other, step)), f"{what}: step {step}"
    assert records(run) == records(other), what
    assert read_findings(run.path / "findings.jsonl") == read_findings(other.path / "findings.jsonl"), what
    assert trajectories(run) == trajectories(other), what


def change_a_weight(run: RunDirectory) -> None:
    file = model_folder(run, 0) / "model.safetensors"
    tensors = weights(run, 0)
    name = min(tensors)
    tensors[name].view(-1)[0] += 1e-6
    save_file(tensors, file)


def change_a_metric(run: RunDirectory) -> None:
    lines = run.metrics.read_text().splitlines()
    place, record = next((n, json.loads(line)) for n, line in enumerate(lines) if "policy/loss" in line)
    lines[place] = json.dumps(record | {"policy/loss": record["policy/loss"] + 1e-9})
    run.metrics.write_text("\n".join(lines) + "\n")


def double_a_record(run: RunDirectory) -> None:
    lines = run.metrics.read_text().splitlines()
    run.metrics.write_text("\n".join([*lines[:-1], *lines[-2:]]) + "\n")


def change_a_logprob(run: RunDirectory) -> None:
    file = run.trajectory_file("train", 2)
    rows = pq.read_table(file).to_pylist()
    rows[-1]["turns"][-1]["logprobs"][-1] -= 1e-3
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), file)


def lose_a_file(run: RunDirectory) -> None:
    run.trajectory_file("evaluate", 2).unlink()


def add_a_finding(run: RunDirectory) -> None:
    (run.path / "findings.jsonl").write_text('{"step": 1, "kind": "made", "sentence": "made"}\n')


@pytest.mark.parametrize(
    "change", [change_a_weight, change_a_metric, double_a_record, change_a_logprob, lose_a_file, add_a_finding]
)
def test_the_comparison_of_runs_sees_any_difference(change, unbroken, tmp_path):
    run = RunDirectory(shutil.copytree(unbroken.path, tmp_path / "run"))
    assert_equal(run, unbroken, "a copy")
    change(run)
    with pytest.raises(AssertionError, match="changed"):
        assert_equal(run, unbroken, "changed")


@pytest.mark.parametrize(
    ("restores", "moment"),
    [
        ("turnwise.learner.optimizer.Optimizer.load_state_dict", ("training", 3)),
        ("turnwise.rollout.task_sampler.TaskSampler.load_state_dict", ("training", 3)),
        ("turnwise.training.trainer.restore_rng", ("training", 3)),
        ("turnwise.training.cold_start.restore_rng", ("cold start", 11)),
    ],
)
def test_a_resume_that_forgets_a_part_of_the_state_is_seen(restores, moment, settings, unbroken, tmp_path, monkeypatch):
    with pytest.raises(Died):
        run_tiny(tmp_path / "run", die=lambda *met: met == moment, **settings)
    monkeypatch.setattr(restores, lambda *_: None)
    run = run_tiny(tmp_path / "run", resume=True, **settings)
    with pytest.raises(AssertionError, match="forgot"):
        assert_equal(run, unbroken, "forgot")


def begun(phase: str, run: Path, since: float) -> bool:
    """Whether a run has come to a phase, by what it has written; a checkpoint is one that was begun `since` then."""
    metrics, checkpoints = run / "metrics.jsonl", run / "checkpoints"
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    stages = [json.loads(line)["stage"] for line in lines if line.endswith("\n")]
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
            return stages.count("sft") == SFT_STEPS
        case "training":
            return (checkpoints / "step-000000").exists()
        case _:
            return any(is_written(folder, since) for folder in (checkpoints, checkpoints / "sft"))


def is_written(folder: Path, since: float) -> bool:
    with suppress(FileNotFoundError):  # it has become a checkpoint by now
        return any(path.stat().st_mtime >= since for path in folder.glob(".step-*.tmp"))
    return False


def phase_of(run: Path, since: float) -> str:
    """The last phase that a run has come to."""
    return next(phase for phase in reversed(PHASES) if begun(phase, run, since))


def kill_within(phase: str, delay: float, folder: Path, settings: dict[str, object]) -> str | None:
    """Trains until a while after a phase began, or has begun before; the phase it was killed in.

    None if the run ended before. A process that does not hold the lock yet is still starting, so it is not killed.
    """
    since = time.time()
    run, process = folder / "run", fork_training(folder, "--resume=auto", **settings)

    def is_there() -> bool:
        return is_held_by(run / LOCK, process.pid) and begun(phase, run, since)

    wait_until(lambda: process.exitcode is not None or is_there())
    time.sleep(delay)
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGSTOP)  # so that it does not go on while its files are read
    reached = phase_of(run, since) if is_held_by(run / LOCK, process.pid) else None
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), (folder / OUTPUT).read_text()
    return reached if process.exitcode else None


def is_held_by(lock: Path, pid: int | None) -> bool:
    with suppress(FileNotFoundError, ValueError):
        return bool(json.loads(lock.read_text())["pid"] == pid)
    return False


def kill_and_compare(number: int, settings: dict[str, object], unbroken: RunDirectory, folder: Path) -> str:
    """Killed up to three times, first in the phase whose turn it is; the same command goes on until it is done.

    Returns the phases in which it was killed.
    """
    chance = random.Random(f"{number} {time.time_ns()}")
    phases = [PHASES[number % len(PHASES)], *chance.choices(PHASES, k=chance.randrange(3))]
    delays = [chance.choice((0.0, chance.random() * 0.3)) for _ in phases]  # at once, for phases of milliseconds
    struck = [kill_within(phase, delay, folder, settings) for phase, delay in zip(phases, delays, strict=True)]
    while not any(struck):  # it ended before it could be killed: once more, sooner
        shutil.rmtree(folder / "run")
        struck = [kill_within(phases[0], 0.0, folder, settings)]
    last = fork_training(folder, "--resume=auto", **settings)
    last.join(600)
    assert last.exitcode == 0, f"{struck}: {(folder / OUTPUT).read_text()}"
    assert_equal(RunDirectory.open(folder / "run"), unbroken, f"killed in {struck}")
    return ", ".join(filter(None, struck))


@LONG_ONLY
@pytest.mark.parametrize("number", range(KILLS))
def test_a_run_that_was_killed_in_any_phase_goes_on_as_if_it_had_not(
    number, settings, unbroken, tmp_path, record_property
):
    record_property("killed in", kill_and_compare(number, settings, unbroken, tmp_path))


@LONG_ONLY
@pytest.mark.parametrize("number", range(KILLS_OF_A_KIND))
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_another_kind_that_was_killed_goes_on_as_if_it_had_not(
    kind, number, settings, unbroken_of, tmp_path, record_property
):
    record_property("killed in", kill_and_compare(number, of_kind(kind, settings), unbroken_of(kind), tmp_path))


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
