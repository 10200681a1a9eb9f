"""Prints what an open page of the studio costs a run that trains: `python -m benchmarks.studio.beside_training`.

One run trains all the time; beside it are `turnwise studio` and a page that follows the run, which is opened and closed
in turn. Steps are alike: an untrained model that learns nothing writes as many tokens as it may, and checkpoints and
evaluations are left out. The estimator is in `windows.py`.

    --browser                in Chromium, rather than in a client that asks what the page asks (`page.py`)
    --pages 10               so many at once, without a browser: they cost more than the noise, and one a tenth of it
    --pairs 48 | --minutes 8   how long: so many pairs of a closed and an open window, or so many minutes in all
    --save FILE              the windows as JSON, after every block
    --join FILE...           measures nothing: the verdict of all these runs together
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

import psutil
from rich.console import Console

from benchmarks.studio.__main__ import TOKEN, Server, find_id, serving
from benchmarks.studio.page import Page
from benchmarks.studio.windows import ORDER, Block, make_window, read_blocks, read_steps, report, save_blocks

_RECIPE: Final = (
    "games-bandit",
    "sft=null",
    "steps=1000000",
    "learner.optimizer.lr=1e-12",
    "checkpoint.every=1000000",
    "evaluate.tasks=1",
)
_FLAGS: Final = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
_WARM_UP: Final = 5.0
_STEPS_FILE: Final = "steps.jsonl"
_PATIENCE: Final = 600.0


class Viewer(Protocol):
    """What opens and closes the page."""

    settles: float
    """Seconds after opening, or closing, that belong to no window: the page loads, once."""

    def open(self) -> None: ...
    def close(self) -> None: ...
    @property
    def cpu(self) -> float: ...


class Client:
    """The page without a browser, as often as is asked for."""

    settles = 1.0

    def __init__(self, server: Server, run_id: str, pages: int) -> None:
        self._url, self._run_id, self._count = server.url, run_id, pages
        self._pages: list[Page] = []

    def open(self) -> None:
        self._pages = [Page(self._url, TOKEN, self._run_id) for _ in range(self._count)]

    def close(self) -> None:
        for page in self._pages:
            page.close()

    @property
    def cpu(self) -> float:
        return time.process_time()


class Browser:
    """Chromium, whose tabs are opened and closed over its debugger's HTTP."""

    settles = 4.0

    def __init__(self, process: psutil.Process, port: int, page: str) -> None:
        self._process, self._address, self._page = process, f"http://127.0.0.1:{port}/json", page
        self._tab = ""

    def open(self) -> None:
        self._tab = str(json.loads(self._ask(f"new?{quote(self._page, safe='')}", "PUT"))["id"])

    def close(self) -> None:
        self._ask(f"close/{self._tab}", "GET")

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
def viewing(server: Server, *, in_browser: bool, pages: int) -> Iterator[Viewer]:
    run_id = find_id(server.ask, "run")
    if not in_browser:
        yield Client(server, run_id, pages)
        return
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = (*_FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0")
        process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port = Path(profile) / "DevToolsActivePort"
            _wait_for(port)
            page = f"{server.url}/?token={TOKEN}#/run/{run_id}/curves"
            yield Browser(psutil.Process(process.pid), int(port.read_text().split()[0]), page)
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
        assert not psutil.Process(process.pid).children(), "the CPU of its processes is not measured"
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


def measure_block(server: Server, viewer: Viewer, steps_file: Path, seconds: float) -> Block:
    was_open, seen = False, []
    for is_open in ORDER:
        if is_open is not was_open:
            (viewer.open if is_open else viewer.close)()
            time.sleep(viewer.settles)
        began, before = time.monotonic(), (server.cpu, viewer.cpu)
        time.sleep(seconds)
        seen.append((is_open, began, time.monotonic(), server.cpu - before[0], viewer.cpu - before[1]))
        was_open = is_open
    steps = read_steps(steps_file)
    return tuple(
        make_window(steps, began, ended, is_open=is_open, server=server_cpu, page=page_cpu)
        for is_open, began, ended, server_cpu, page_cpu in seen
    )


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> list[Block]:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that training and the server end with it
    started, blocks = time.monotonic(), list[Block]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "runs"
        with (
            training(folder, options.overrides),
            serving(folder) as server,
            viewing(server, in_browser=options.browser, pages=options.pages) as viewer,
        ):
            time.sleep(_WARM_UP)
            length = len(ORDER) * options.seconds + 2 * viewer.settles
            while not _is_over(options, len(blocks), time.monotonic() - started + length):
                blocks.append(block := measure_block(server, viewer, folder / _STEPS_FILE, options.seconds))
                cpu = ", ".join(f"{window.cpu:.4f}" for window in block)
                say(f"block {len(blocks)}: CPU seconds of a step closed, open, open, closed: {cpu}")
                if options.save:
                    save_blocks(options.save, blocks)
    return blocks


def _is_over(options: argparse.Namespace, blocks: int, seconds: float) -> bool:
    """Whether another block, after which so many seconds are gone, is too many; one is always measured."""
    if options.minutes is not None:
        return blocks > 0 and seconds > 60 * options.minutes
    return 2 * blocks >= int(options.pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=48, help="of windows, two in a block")
    parser.add_argument("--minutes", type=float, help="in all, in place of --pairs")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each window")
    parser.add_argument("--browser", action="store_true", help="Chromium rather than a client")
    parser.add_argument("--pages", type=int, default=1, help="open at once, without a browser")
    parser.add_argument("--save", type=Path, metavar="FILE")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("overrides", nargs="*", help="of the recipe games-bandit")
    options = parser.parse_args()

    def say(line: str) -> None:
        Console().print(line, markup=False, highlight=False, soft_wrap=True)

    if options.join:
        report([block for file in options.join for block in read_blocks(file)], say, pages=options.pages)
    elif options.browser and options.pages != 1:
        parser.error("--pages: a browser opens one")
    else:
        report(measure(options, say), say, pages=options.pages)


if __name__ == "__main__":
    main()
