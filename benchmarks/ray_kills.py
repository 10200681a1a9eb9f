"""What losing a rollout worker costs: `python -m benchmarks.ray_kills --steps 60 --every 20`.

Trains on two rollout workers of Ray with slow tools, so that the processor is not the limit. The first `every` steps
are undisturbed; from then on a worker is killed (SIGKILL) once in `every` steps, a moment after one has ended. Prints
steps per second of both parts, and holds the run to having lost no episode.
"""

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pyarrow.parquet as parquet

from turnwise.api import train
from turnwise.envs.base import Env
from turnwise.runs import RunDirectory, read_metrics
from turnwise.training.callbacks import Callback
from turnwise.types import Message, Step, Task

_GROUPS, _SIZE, _TURNS = 4, 4, 3
_SMALL = {"layers": 1, "width": 32, "heads": 2, "positions": 256, "vocabulary": 300, "induction": False}


class SlowTools(Env):
    """Three turns that wait, as for a tool, and pay by the episode's seed."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(id=f"{split}-{place}") for place in range(8)]

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        self._turn, self._paid = 0, float(episode_seed % 2)
        return [Message(role="user", content="go")]

    async def step(self, message: Message) -> Step:
        await asyncio.sleep(self._seconds)
        self._turn += 1
        if self._turn < _TURNS:
            return Step(messages=(Message(role="user", content="on"),))
        return Step(done=True, rewards={"paid": self._paid}, metrics={"success": self._paid})


class Killer(Callback):
    """Notes when steps end, and kills a worker in the step after every so many of them."""

    def __init__(self, *, steps: int, every: int, after: float) -> None:
        self._steps, self._every, self._after = steps, every, after
        self.ends: list[float] = []
        self.killed = 0

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self.ends.append(time.monotonic())
        if step % self._every == 0 and step < self._steps:
            threading.Timer(self._after, self._kill).start()

    def _kill(self) -> None:
        workers = [one for one in psutil.Process().children(recursive=True) if _is_worker(one)]
        if workers:
            workers[self.killed % len(workers)].kill()
            self.killed += 1


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "ray::RolloutActor" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def count_episodes(run: RunDirectory) -> Counter[tuple[int, str]]:
    """Episodes by step and stop reason, of all that training stored."""
    tables = [parquet.read_table(file) for file in sorted(run.trajectories.glob("train-*.parquet"))]
    return Counter(
        (step, str(stop))
        for table in tables
        for step, stop in zip(table["step"].to_pylist(), table["stop"].to_pylist(), strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What losing a rollout worker costs.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5, help="what each of an episode's three turns waits")
    options = parser.parse_args()
    killer = Killer(steps=options.steps, every=options.every, after=options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        run = train(
            env=SlowTools(seconds=options.seconds),
            model={"small": _SMALL},
            steps=options.steps,
            rollout={"groups_per_step": _GROUPS, "group_size": _SIZE, "turn_tokens": 4, "max_turns": _TURNS},
            stability={"mode": "off"},
            evaluate={"tasks": 2},
            checkpoint={"every": options.every},
            cluster={"kind": "ray", "rollout_workers": 2},
            run=Path(folder) / "run",
            callbacks=[killer],
        )
        episodes = count_episodes(run)
        last = [one for one in read_metrics(run.metrics) if one["stage"] == "train"][-1]
    assert sum(episodes.values()) == options.steps * _GROUPS * _SIZE, "every episode of every step is there, once"
    assert all(episodes[step, stop] == _GROUPS * _SIZE for step, stop in episodes), "and none of them failed"
    quiet = (options.every - 1) / (killer.ends[options.every - 1] - killer.ends[0])
    struck = (options.steps - options.every) / (killer.ends[-1] - killer.ends[options.every - 1])
    sys.stdout.write(
        f"undisturbed {quiet:.3f} steps/s; a worker killed every {options.every} steps {struck:.3f} steps/s: "
        f"{1 - struck / quiet:.1%} lost\n{killer.killed} kills, {last['fleet/lost']:.0f} workers lost, "
        f"{last['fleet/replayed']:.0f} groups played again; {sum(episodes.values())} episodes of "
        f"{options.steps * _GROUPS * _SIZE} are there, none failed\n"
    )


if __name__ == "__main__":
    main()
