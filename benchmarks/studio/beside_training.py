"""Prints what an open page of the studio costs a run that trains: `python -m benchmarks.studio.beside_training`.

The same recipe is trained with and without `turnwise studio` and a browser that follows its curves, in turn, in pairs.
The CPU time of the training process is what the studio could change in it; other work on the machine hardly can.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console

from benchmarks.studio.__main__ import Server, find_id, serving

_RECIPE: Final = ("games-bandit", "sft.demonstrations=320", "steps=60")
_FLAGS: Final = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One run: CPU seconds of its process, steps per second once it trains, and CPU seconds beside it."""

    cpu: float
    speed: float
    server: float = 0.0
    page: float = 0.0


def train(folder: Path, overrides: Sequence[str], *, watched: bool) -> Trained:
    """Trains into `folder / "run"`, the page open from the run's first record on."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "turnwise", "train", *_RECIPE, *overrides, "--run", str(folder / "run")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if not watched:
        return Trained(cpu=_cpu_at_end(process), speed=_speed(folder))
    while not (folder / "run" / "metrics.jsonl").exists():
        assert psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE, "training ended before it began"
        time.sleep(0.1)
    with serving(folder) as server, _page(server, find_id(server.ask, "run")) as browser:
        cpu = _cpu_at_end(process)
        page = sum(sum(one.cpu_times()[:2]) for one in [browser, *browser.children(recursive=True)])
        return Trained(cpu=cpu, speed=_speed(folder), server=server.cpu, page=page)


@contextmanager
def _page(server: Server, run: str) -> Iterator[psutil.Process]:
    """Chromium, signed in and at the run's curves; it stays open for its debugger, who never comes."""
    address = f"{server.url}/?token=bench#/run/{run}/curves"
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = (*_FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0")
        browser = subprocess.Popen([program, *options, address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield psutil.Process(browser.pid)
        finally:
            browser.terminate()
            browser.wait()


def _cpu_at_end(process: "subprocess.Popen[bytes]") -> float:
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"training ended with {process.returncode}"
    return usage.ru_utime + usage.ru_stime


def _speed(folder: Path) -> float:
    records = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    times = [float(record["time"]) for record in records if record["stage"] == "train"]
    return (len(times) - 1) / (times[-1] - times[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("overrides", nargs="*", help="of the recipe games-bandit")
    options = parser.parse_args()

    def say(line: str) -> None:
        Console().print(line, markup=False, highlight=False, soft_wrap=True)

    pairs: list[tuple[Trained, Trained]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.pairs):
            # Who comes first changes, so that a machine that grows busier favours neither.
            order = (False, True) if number % 2 else (True, False)
            runs = {watched: train(Path(folder) / "runs", options.overrides, watched=watched) for watched in order}
            alone, open_page = runs[False], runs[True]
            pairs.append((alone, open_page))
            say(
                f"pair {number + 1}: CPU of training {alone.cpu:.2f} s alone, {open_page.cpu:.2f} s with the page; "
                f"{alone.speed:.2f} and {open_page.speed:.2f} steps/s; "
                f"server {open_page.server:.2f} s, browser {open_page.page:.2f} s"
            )
    figures: tuple[tuple[str, Callable[[Trained], float]], ...] = (
        ("CPU of training", lambda one: one.cpu),
        ("steps per second", lambda one: one.speed),
    )
    for what, of in figures:
        changes = sorted(of(watched) / of(alone) - 1 for alone, watched in pairs)
        middle = statistics.median(changes)
        say(f"{what} with the page: median {middle:+.1%}, from {changes[0]:+.1%} to {changes[-1]:+.1%}")
    shares = [one.server / one.cpu for _, one in pairs]
    say(f"CPU of the server beside it: median {statistics.median(shares):.1%} of training's")


if __name__ == "__main__":
    main()
