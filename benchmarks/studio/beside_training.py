"""Prints what an open page of the studio costs a run that trains: `python -m benchmarks.studio.beside_training`.

One run trains all the time, at a learning rate so small that each step is the same work; beside it are `turnwise
studio` and a browser, in which the page that follows the run is opened and closed in turn. Neighbouring windows make a
pair. The CPU time of a step is what the page could change within the training process; its clock time is what a user
would notice.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import psutil
from rich.console import Console

from benchmarks.studio.__main__ import Server, find_id, serving
from benchmarks.studio.windows import Step, Window, compare, mean_in, read_steps

_RECIPE: Final = (
    "games-bandit",
    "sft.demonstrations=320",
    "steps=1000000",
    "learner.optimizer.lr=1e-12",
    "checkpoint.every=20",
)
_FLAGS: Final = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
_SETTLES: Final = 3.0
"""Seconds after opening or closing that belong to no window: the page loads, once."""
_STEPS_FILE: Final = "steps.jsonl"
_PATIENCE: Final = 600.0


class Browser:
    """Chromium, whose tabs are opened and closed over its debugger's HTTP."""

    def __init__(self, process: psutil.Process, port: int) -> None:
        self._process, self._address = process, f"http://127.0.0.1:{port}/json"
        self._page: str | None = None

    def show(self, address: str | None) -> None:
        """Has this page open and no other; None for no page."""
        if self._page is not None:
            self._ask(f"close/{self._page}", "GET")
        self._page = (
            None if address is None else str(json.loads(self._ask(f"new?{quote(address, safe='')}", "PUT"))["id"])
        )

    @property
    def cpu(self) -> float:
        """Seconds that its processes have computed; those of a tab that was closed are gone, so take differences."""
        seconds = 0.0
        for one in [self._process, *self._process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # of a tab that closes just now
                seconds += sum(one.cpu_times()[:2])
        return seconds

    def _ask(self, path: str, method: str) -> bytes:
        with urllib.request.urlopen(
            urllib.request.Request(f"{self._address}/{path}", method=method), timeout=60
        ) as got:
            return bytes(got.read())


@contextmanager
def browsing() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = (*_FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0")
        process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port = Path(profile) / "DevToolsActivePort"
            _wait_for(port)
            yield Browser(psutil.Process(process.pid), int(port.read_text().split()[0]))
        finally:
            process.terminate()
            process.wait()


@contextmanager
def training(folder: Path, overrides: Sequence[str]) -> Iterator[None]:
    """Trains into `folder / "run"` from its first step until the end of the block."""
    folder.mkdir(parents=True)
    stopwatch = json.dumps({"name": "benchmarks.studio.windows:Stopwatch", "args": {"file": str(folder / _STEPS_FILE)}})
    command = [sys.executable, "-m", "turnwise", "train", *_RECIPE, f"callbacks=[{stopwatch}]", *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, "--run", str(folder / "run")], stdout=subprocess.DEVNULL, env=environment)
    try:
        _wait_for(folder / _STEPS_FILE, process)
        yield
        assert process.poll() is None, "training ended before its last window"
    finally:
        process.kill()
        process.wait()


def _wait_for(file: Path, process: "subprocess.Popen[bytes] | None" = None) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not (file.exists() and file.stat().st_size):
        if process is not None and process.poll() is not None:
            raise SystemExit(f"training ended with {process.returncode}")
        if time.monotonic() > deadline:
            raise SystemExit(f"{file.name} did not appear within {_PATIENCE:.0f} s")
        time.sleep(0.1)


def watch(server: Server, browser: Browser, address: str, *, is_open: bool, seconds: float) -> Window:
    browser.show(address if is_open else None)
    time.sleep(_SETTLES)
    began, before = time.monotonic(), (server.cpu, browser.cpu)
    time.sleep(seconds)
    return Window(
        is_open=is_open,
        began=began,
        ended=time.monotonic(),
        server=server.cpu - before[0],
        browser=browser.cpu - before[1],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each window")
    parser.add_argument("overrides", nargs="*", help="of the recipe games-bandit")
    options = parser.parse_args()

    def say(line: str) -> None:
        Console().print(line, markup=False, highlight=False, soft_wrap=True)

    pairs: list[tuple[Window, Window]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "runs"
        with training(folder, options.overrides), serving(folder) as server, browsing() as browser:
            address = f"{server.url}/?token=bench#/run/{find_id(server.ask, 'run')}/curves"
            for number in range(options.pairs):
                order = (False, True) if number % 2 else (True, False)
                first, second = (
                    watch(server, browser, address, is_open=is_open, seconds=options.seconds) for is_open in order
                )
                pairs.append((first, second))
                say(describe(number + 1, (first, second), read_steps(folder / _STEPS_FILE)))
        steps = read_steps(folder / _STEPS_FILE)
    report(pairs, steps, say)


def describe(number: int, pair: tuple[Window, Window], steps: Sequence[Step]) -> str:
    closed, opened = sorted(pair, key=lambda window: window.is_open)
    cpu, clock = (
        [mean_in(window, steps, of) for window in (closed, opened)]
        for of in (lambda step: step.cpu, lambda step: step.seconds)
    )
    return (
        f"pair {number}: CPU of a step {cpu[0]:.4f} s closed, {cpu[1]:.4f} s open; "
        f"time of a step {clock[0]:.3f} s closed, {clock[1]:.3f} s open"
    )


def report(pairs: Sequence[tuple[Window, Window]], steps: Sequence[Step], say: Callable[[str], None]) -> None:
    windows = [window for pair in pairs for window in pair]
    seconds = sum(window.ended - window.began for window in windows) / 2
    say(f"{len(pairs)} pairs of windows of {seconds / len(pairs):.0f} s beside {len(steps)} steps of training")
    say(f"CPU of a step with the page: {compare(pairs, steps, lambda step: step.cpu)}")
    say(f"time of a step with the page: {compare(pairs, steps, lambda step: step.seconds)}")
    for what, is_open in (("closed", False), ("open", True)):
        seen = [window for window in windows if window.is_open is is_open]
        server, browser = sum(one.server for one in seen) / seconds, sum(one.browser for one in seen) / seconds
        say(f"page {what}: server {server:.2%} of a core, browser {browser:.2%}")


if __name__ == "__main__":
    main()
