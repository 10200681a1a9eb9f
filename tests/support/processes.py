"""Training in a process of its own, for tests that send it signals."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import yaml

import turnwise
from tiny_runs import tiny_data


def begin_training(folder: Path, *options: str, **sections: object) -> "subprocess.Popen[str]":
    """`turnwise train` of a tiny recipe in `folder / "run"`, with this process's number of threads, so sums agree."""
    recipe = folder / "recipe.yaml"
    data = tiny_data(**sections)
    if "name" in data["model"]:
        del data["model"]["small"]
    recipe.write_text(yaml.safe_dump(data))
    command = [sys.executable, "-m", "turnwise", "train", str(recipe), "--run", str(folder / "run"), *options]
    own = {"OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONPATH": str(Path(turnwise.__file__).parents[1])}
    return subprocess.Popen(
        command, env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


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
