"""Prints how long the studio takes for large runs, and what it costs: `python -m benchmarks.studio`.

The server runs in a process of its own and is asked over HTTP, as a page asks it; each figure stands beside its bar.
"""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

from rich.console import Console

from benchmarks.studio.made_runs import NEEDLE, make_run, write_metrics
from benchmarks.studio.page import following, key_curves
from turnwise.runs.directory import RunDirectory

Ask: TypeAlias = Callable[[str], dict[str, object]]

TOKEN: Final = "bench"
_RUNS: Final = 100
_FOLLOWED_SECONDS: Final = 40.0
_LARGE: Final = (
    ("10,000 trajectories of 500 tokens open", "3"),
    ("they filter, the slowest of 5", "0.5"),
    ("a search inside them", "2"),
    ("the page of a run of 1,000 steps", "2"),
    ("one trajectory with its tokens", "2"),
)
"""What is measured, and the bar in seconds."""
_CURVES: Final = [*(f"made/metric_{place}" for place in range(10)), "rollout/reward", "evaluate/success"]


class Server:
    """`turnwise studio` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "turnwise.cli", "studio", str(folder), "--port", "0", "--token", TOKEN]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().split(" at ")[1].partition("?")[0].strip().rstrip("/")

    def ask(self, path: str) -> dict[str, object]:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            data: dict[str, object] = json.loads(answer.read())
        return data

    @property
    def memory(self) -> float:
        """The most it has held, in MB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    @property
    def cpu(self) -> float:
        """Seconds that it has computed, all its threads together, to the microsecond: clock_getcpuclockid(3)."""
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    try:
        yield server
    finally:
        server.stop()


@dataclass(frozen=True, slots=True, order=True)
class Taken:
    """Seconds of the wall clock, and of the server's CPU: other work on the machine lengthens the first alone."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:5.2f} s, {self.cpu:5.2f} s of CPU"


def timed(server: Server, work: Callable[[], object]) -> Taken:
    began, before = time.perf_counter(), server.cpu
    work()
    return Taken(time.perf_counter() - began, server.cpu - before)


def find_id(ask: Ask, name: str) -> str:
    runs = ask("/api/runs")["runs"]
    assert isinstance(runs, list)
    return next(str(run["id"]) for run in runs if run["name"] == name)


def open_all(ask: Ask, path: str) -> None:
    """Asks until no file is left to be read, as the page does."""
    while ask(path)["pending"]:
        pass


def measure_large_run(folder: Path, say: Callable[[str], None]) -> None:
    """The best of three servers that have read nothing yet: what else the machine does only ever adds to it."""
    run = make_run(folder / "large", trajectories=10_000, tokens=500)
    write_metrics(run, steps=1000)
    rounds = [_ask_large_run(folder, words) for words in (NEEDLE, NEEDLE[2:], NEEDLE[:-2])]
    for (what, bar), taken in zip(_LARGE, zip(*rounds, strict=True), strict=True):
        say(f"{what:42}{min(taken)}    bar {bar} s")


def _ask_large_run(folder: Path, words: str) -> list[Taken]:
    with serving(folder) as server:
        name = find_id(server.ask, "large")
        path = f"/api/runs/{name}/trajectories?limit=100"
        opening = timed(server, lambda: open_all(server.ask, path))
        filters = ("&stop=max_turns", "&success=failed", "&errors=1", "&channel=exact_match&least=1", "&sort=spread")
        slowest = max(timed(server, partial(server.ask, path + one)) for one in filters)
        searching = timed(server, partial(server.ask, f"{path}&text={quote(words)}"))
        parts = ("", "/series?" + "&".join(f"name={curve}" for curve in _CURVES), "/ledger")
        page = timed(server, lambda: [server.ask(f"/api/runs/{name}{part}") for part in parts])
        one = timed(server, partial(server.ask, f"/api/runs/{name}/trajectory/train-7/3/1"))
        return [opening, slowest, searching, page, one]


def measure_many_runs(folder: Path, say: Callable[[str], None]) -> None:
    first = make_run(folder / "run-000", trajectories=1000, tokens=500)
    write_metrics(first, steps=1000)
    for place in range(1, _RUNS):
        other = RunDirectory(folder / f"run-{place:03d}")
        subprocess.run(["cp", "-r", str(first.path), str(other.path)], check=True)
    with serving(folder) as server:
        listing = timed(server, partial(server.ask, "/api/runs"))
        runs = server.ask("/api/runs")["runs"]
        assert isinstance(runs, list)
        for run in runs:
            server.ask(f"/api/runs/{run['id']}/series?name=rollout/reward")
            open_all(server.ask, f"/api/runs/{run['id']}/trajectories?limit=1")
        say(f"{_RUNS} runs of 1,000 steps are listed         {listing}")
        say(f"memory after opening all {_RUNS}               {server.memory:5.0f} MB                    bar 500 MB")


def measure_following(folder: Path, say: Callable[[str], None]) -> None:
    """What a page costs the machine that trains: it follows a run of 1,000 steps which writes one every second."""
    run = make_run(folder / "followed", trajectories=200, tokens=500)
    write_metrics(run, steps=1000, curves=key_curves())
    line = run.metrics.read_bytes().splitlines(keepends=True)[-3]
    with serving(folder) as server, following(server.url, TOKEN, find_id(server.ask, "followed")) as page:
        before, began, asked = server.cpu, time.perf_counter(), page.refreshes
        while time.perf_counter() - began < _FOLLOWED_SECONDS:
            with run.metrics.open("ab") as file:
                file.write(line)
            time.sleep(1)
        seconds, asked = time.perf_counter() - began, page.refreshes - asked
        share = (server.cpu - before) / seconds
    say(f"a page that follows a run that trains     {share:.2%} of one core, {asked} requests  bar 1 % of training")


def main() -> None:
    def say(line: str) -> None:
        Console().print(line, markup=False, highlight=False, soft_wrap=True)

    with tempfile.TemporaryDirectory() as folder:
        measure_large_run(Path(folder) / "one", say)
        measure_many_runs(Path(folder) / "many", say)
        measure_following(Path(folder) / "live", say)


if __name__ == "__main__":
    main()
