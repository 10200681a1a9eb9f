"""A game of two turns, and runs of it so small that a test can afford several."""

import fcntl
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import torch
from rich.console import Console
from safetensors.torch import load_file

from turnwise.config import Config, check_config
from turnwise.envs.base import Env
from turnwise.errors import EnvError
from turnwise.runs import PlainDisplay, Record, RunDirectory, read_metrics
from turnwise.seeds import derive_seed
from turnwise.settings import parse_settings
from turnwise.training.trainer import run_training
from turnwise.types import Message, Step, Task

if TYPE_CHECKING:
    import pytest

WORDS = ("up", "down", "left", "right")
CUES = {"sun": "up", "sea": "left"}
"""What is shown, turn by turn, and the word that is right; guesses win both turns once in sixteen."""


class Signals(Env):
    """Shows a cue, and after the first word the other; half a point for each word that is right."""

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(id=f"{split}-{place}") for place in range(8)]

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        self._cues = list(CUES)
        self._right: list[bool] = []
        self._guesses = random.Random(derive_seed(episode_seed, "guesses"))
        return [Message(role="user", content=self._cues[0])]

    async def step(self, message: Message) -> Step:
        if len(self._right) == len(self._cues):
            raise EnvError("the game is over: reset it first")
        self._right.append(message.content == CUES[self._cues[len(self._right)]])
        paid = {"right": 0.5 * self._right[-1]}
        if len(self._right) < len(self._cues):
            return Step(messages=(Message(role="user", content=self._cues[1]),), rewards=paid)
        return Step(rewards=paid, done=True, metrics={"success": float(all(self._right))})

    def state_key(self) -> str:
        return " ".join(self._cues[: len(self._right) + 1])

    def expert(self) -> Message:
        """Knows the words and guesses which: chance is all that can be learnt from it."""
        return Message(role="assistant", content=self._guesses.choice(WORDS))


class Drawing(Signals):
    """Draws from the process's own generators, as environments of others do."""

    async def step(self, message: Message) -> Step:
        step = await super().step(message)
        drawn = random.random() + np.random.random() + torch.rand(()).item()
        return replace(step, metrics={**step.metrics, "drawn": drawn}) if step.done else step


SIGNALS, DRAWING = (f"{Path(__file__).resolve()}:{name}" for name in ("Signals", "Drawing"))
"""The games as a recipe names them."""

SMALLEST = {"layers": 1, "width": 32, "heads": 2, "positions": 64, "vocabulary": 300, "induction": False}
_BASE: Mapping[str, object] = {
    "env": {"name": SIGNALS},
    "model": {"small": SMALLEST},
    "steps": 1,
    "rollout": {"groups_per_step": 4, "group_size": 4, "turn_tokens": 4, "max_turns": 3},
    "learner": {"optimizer": {"lr": 3e-3}},
    "evaluate": {"tasks": 4},
}
_CRITIC: Mapping[str, object] = {"critic": {"optimizer": {"lr": 1e-2}}}
"""Of runs that have one, or may get one: elsewhere it would be a setting that nothing reads."""
_WITH_CRITIC = ("gae", "turn-gae", "bilevel-gae")
_STARPO_S = ("auto", "always")
SFT: Mapping[str, object] = {"demonstrations": 512, "batch": 16, "optimizer": {"lr": 1e-2, "schedule": "cosine"}}
"""Enough for the words to be known, and none of them preferred."""


def tiny_data(**sections: object) -> dict[str, object]:
    """A recipe's data; a section given as a mapping is laid over the base's own."""
    data = dict(_BASE)
    for name, values in sections.items():
        below = data.get(name)
        joins = isinstance(below, Mapping) and isinstance(values, Mapping)
        data[name] = {**below, **values} if joins else values
    if data.get("credit", {}).get("estimator") in _WITH_CRITIC or data.get("stability", {}).get("mode") in _STARPO_S:
        data["learner"] = {**_CRITIC, **data["learner"]}
    return data


def tiny_config(**sections: object) -> Config:
    return check_config(parse_settings(Config, tiny_data(**sections), source="the test"))


def run_tiny(folder: Path, *, resume: bool = False, die: Callable[[str, int], bool] | None = None, **sections: object):
    """Trains in silence; `die(event, number)` says when it ends in the middle."""
    return run_training(tiny_config(**sections), folder, resume=resume, display=Silent(die))


class Died(Exception):
    """What a run that was to die in the middle died of; within a rollout it comes in an ExceptionGroup."""


class Silent(PlainDisplay):
    """Shows nothing, and may end the run at one of the events it is told of."""

    def __init__(self, die: Callable[[str, int], bool] | None = None) -> None:
        super().__init__(Console(quiet=True))
        self._die = die or (lambda event, number: False)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        super().step(step, metrics)
        self._meet(self._stage.name, step)

    def progress(self, done: int, total: int, what: str) -> None:
        self._meet(what, done)

    def _meet(self, event: str, number: int) -> None:
        if self._die(event, number):
            raise Died(f"{event} {number}")


def cold_model(factory: "pytest.TempPathFactory") -> Path:
    """A model that knows the words of the game: trained once for all tests, whichever process comes first."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "cold.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = RunDirectory(shared / "cold")
        if not (shared / "cold.done").exists():
            run = run_tiny(shared / "cold", steps=0, sft=SFT)
            (shared / "cold.done").touch()
    return model_folder(run, 0)


def model_folder(run: RunDirectory, step: int) -> Path:
    return run.checkpoints / f"step-{step:06d}" / "model"


def weights(run: RunDirectory, step: int) -> dict[str, torch.Tensor]:
    return load_file(model_folder(run, step) / "model.safetensors")


def same_weights(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def trajectories(run: RunDirectory) -> dict[str, list[object]]:
    """What a run stored of its episodes, by file, apart from how long they took."""
    return {file.name: _timeless(pq.read_table(file).to_pylist()) for file in sorted(run.trajectories.iterdir())}


def _timeless(value: object) -> object:
    if isinstance(value, dict):
        return {name: _timeless(inner) for name, inner in value.items() if not name.endswith("seconds")}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value


def records(run: RunDirectory, stage: str | None = None) -> list[Record]:
    """What a run measured, apart from how long it took."""
    timeless = [
        {name: value for name, value in record.items() if not (name.startswith("time") or "_second" in name)}
        for record in read_metrics(run.metrics)
    ]
    return [record for record in timeless if stage is None or record["stage"] == stage]
