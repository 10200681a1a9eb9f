"""Training in a process of its own, for tests that send it signals."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import yaml

import turnwise
from tiny_runs import tiny_data

OUTPUT = "output.txt"
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["pytest", "turnwise.cli.main", "turnwise.training.trainer", "turnwise.runs.report", "transformers", "peft"]
)


def begin_training(folder: Path, *options: str, **sections: object) -> "subprocess.Popen[str]":
    """`turnwise train` of a tiny recipe in `folder / "run"`, with this process's number of threads, so sums agree."""
    command = [sys.executable, "-m", "turnwise", *_train(folder, options, sections)]
    own = {"OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONPATH": str(Path(turnwise.__file__).parents[1])}
    return subprocess.Popen(
        command, env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def fork_training(folder: Path, *options: str, **sections: object) -> BaseProcess:
    """The same, forked from a process that has imported everything and run nothing: a start costs no five seconds."""
    process = _FORKS.Process(
        target=_run_command, args=(_train(folder, options, sections), folder / OUTPUT, torch.get_num_threads())
    )
    process.start()
    return process


def _train(folder: Path, options: tuple[str, ...], sections: dict[str, object]) -> list[str]:
    recipe = folder / "recipe.yaml"
    data = tiny_data(**sections)
    if "name" in data["model"]:
        del data["model"]["small"]
    recipe.write_text(yaml.safe_dump(data))
    return ["train", str(recipe), "--run", str(folder / "run"), *options]


def _run_command(command: list[str], output: Path, threads: int) -> None:
    with output.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(threads)
    from turnwise.cli.main import main

    sys.exit(main(command))


def wait_until(holds: Callable[[], bool], process: "subprocess.Popen[str] | None" = None) -> None:
    """Waits for a moment of a run; fails if its process ends before."""
    deadline = time.monotonic() + 120
    while not holds():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


class SignalledAt:
    """Sends this process a signal at a moment of the run, and at no other."""

    def __init__(self, number: signal.Signals, event: str, count: int) -> None:
        self.number, self.moment = number, (event, count)

    def __call__(self, event: str, count: int) -> bool:
        if (event, count) == self.moment:
            os.kill(os.getpid(), self.number)
        return False
