"""Ctrl-C, SIGTERM and SIGHUP finish the step, save and exit with 75; the run goes on as one that never stopped."""

import os
import pty
import signal
import subprocess
import sys
import threading

import pytest

from processes import SignalledAt, begin_training, wait_until
from tiny_runs import records, run_tiny, same_weights, weights
from turnwise.cli.arguments import accept_rest
from turnwise.cli.main import make_parser
from turnwise.errors import RunError, RunInterrupted
from turnwise.runs import Checkpoints, RunDirectory
from turnwise.training.interruption import StopSignal

STEPS = 6
NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


@pytest.fixture(scope="module")
def unbroken(sections, tmp_path_factory):
    run = run_tiny(tmp_path_factory.mktemp("unbroken") / "run", **sections)
    assert not same_weights(weights(run, 5), weights(run, STEPS)), "each step learns, so a lost one would show"
    return run


def assert_equal(run: RunDirectory, other: RunDirectory) -> None:
    assert same_weights(weights(run, STEPS), weights(other, STEPS))
    assert records(run) == records(other)


MOMENTS = [("training", 2), ("episodes", 7), ("evaluation after step 0", 1)]


@pytest.mark.parametrize(
    ("number", "moment"),
    [*((number, MOMENTS[0]) for number in NAMES), *((signal.SIGTERM, moment) for moment in MOMENTS[1:])],
)
def test_a_signal_at_any_moment_saves_the_step_and_the_run_goes_on(number, moment, unbroken, sections, tmp_path):
    with pytest.raises(RunInterrupted, match=f"{NAMES[number]}: stopped after step ., which is saved"):
        run_tiny(tmp_path / "run", die=SignalledAt(number, *moment), **sections)
    saved = Checkpoints(tmp_path / "run" / "checkpoints").steps()[-1]
    assert saved == {"training": 2, "episodes": 1, "evaluation after step 0": 0}[moment[0]]
    default = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
    assert signal.getsignal(number) is default
    assert_equal(run_tiny(tmp_path / "run", resume="auto", **sections), unbroken)


def test_samples_that_wait_are_trained_on_before_the_run_stops(sections, tmp_path):
    """Two updates share a rollout: after the first there is no state that could be saved."""
    sections = {**sections, "rollout": {"updates_per_rollout": 2}, "checkpoint": {"every": STEPS}}
    unbroken = run_tiny(tmp_path / "unbroken", **sections)
    with pytest.raises(RunInterrupted, match="after step 4"):
        run_tiny(tmp_path / "run", die=SignalledAt(signal.SIGTERM, "training", 3), **sections)
    assert_equal(run_tiny(tmp_path / "run", resume=True, **sections), unbroken)


def test_a_signal_in_the_last_step_is_too_late(unbroken, sections, tmp_path):
    run = run_tiny(tmp_path / "run", die=SignalledAt(signal.SIGTERM, "training", STEPS), **sections)
    assert_equal(run, unbroken)


@pytest.mark.slow
def test_a_process_that_is_asked_to_end_exits_with_75_and_one_command_goes_on(unbroken, sections, tmp_path):
    """What a scheduler does: the same command again and again, until the exit code is 0."""
    process = begin_training(tmp_path, "--resume=auto", **sections)
    wait_until(lambda: (tmp_path / "run" / "checkpoints" / "step-000000").exists(), process)
    process.send_signal(signal.SIGTERM)
    error = process.communicate(timeout=120)[1]
    assert process.returncode == 75, error
    assert "SIGTERM: stopped after step" in error
    assert error.strip().endswith("continue with --resume")
    again = begin_training(tmp_path, "--resume=auto", **sections)
    error = again.communicate(timeout=120)[1]
    assert again.returncode == 0, error
    assert_equal(RunDirectory.open(tmp_path / "run"), unbroken)


def test_a_second_signal_stops_at_once(tmp_path):
    """In the middle of a call of Python that would last for ever."""
    script = (
        "import time\nfrom turnwise.training.interruption import StopSignal\n"
        "with StopSignal() as stop:\n"
        "    print('ready', flush=True)\n"
        "    while stop.received is None: time.sleep(.01)\n"
        "    print(stop.received.name, flush=True)\n"
        "    sum(range(10**18))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "SIGTERM\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == -signal.SIGTERM
    process.communicate()


@pytest.mark.slow
def test_a_script_exits_with_75_too(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys, turnwise\n"
        "from turnwise.training.callbacks import Callback\n"
        "from tiny_runs import SIGNALS, SMALLEST\n"
        "class Stop(Callback):\n"
        "    def on_step_end(self, step, metrics):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "turnwise.train(env=SIGNALS, model={'small': SMALLEST}, steps=2, run=sys.argv[1], resume='auto',\n"
        "    rollout={'groups_per_step': 2, 'group_size': 2, 'turn_tokens': 4, 'max_turns': 3}, callbacks=[Stop()])\n"
    )
    path = os.pathsep.join(sys.path)
    command = [sys.executable, str(script), str(tmp_path / "run")]
    codes = [
        subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False).returncode
        for _ in range(2)
    ]
    assert codes == [75, 0], "the second step is the last"


def test_a_closed_terminal_is_a_hangup_that_the_run_survives(tmp_path):
    """Every later line to that terminal would fail."""
    master, terminal = pty.openpty()
    script = (
        "import fcntl, os, sys, pathlib, termios, time\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "from turnwise.training.interruption import StopSignal\n"
        "with StopSignal() as stop:\n"
        "    print('ready', flush=True)\n"
        "    while stop.received is None: time.sleep(.01)\n"
        "    print('to nobody', flush=True); print('to nobody', file=sys.stderr, flush=True)\n"
        "    pathlib.Path(sys.argv[1]).write_text(stop.received.name)\n"
    )
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{script}",
            tmp_path / "x",
        ],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    assert b"ready" in os.read(master, 100)
    os.close(master)
    process.wait(timeout=60)
    assert (tmp_path / "x").read_text() == "SIGHUP"


def test_handlers_of_others_and_ignored_signals_stay():
    own = signal.signal(signal.SIGTERM, lambda *_: None)
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
        with StopSignal():
            assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)) == before
    finally:
        signal.signal(signal.SIGTERM, own)
        signal.signal(signal.SIGHUP, ignored)


def test_another_thread_than_the_main_one_may_train():
    met: list[signal.Signals | None] = []

    def train() -> None:
        with StopSignal() as stop:
            met.append(stop.received)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert met == [None]


def test_auto_starts_and_goes_on_and_leaves_a_finished_run_alone(tmp_path):
    first = run_tiny(tmp_path / "run", resume="auto", steps=1)
    before = first.metrics.read_bytes()
    run_tiny(tmp_path / "run", resume="auto", steps=1)
    assert first.metrics.read_bytes() == before
    run_tiny(tmp_path / "run", resume="auto", steps=2)
    assert [record["step"] for record in records(first, "train")] == [1, 2]
    with pytest.raises(RunError, match="cannot resume with another config"):
        run_tiny(tmp_path / "run", resume="auto", steps=2, seed=7)
    with pytest.raises(RunError, match="give True, False or 'auto'"):
        run_tiny(tmp_path / "run", resume="yes", steps=2)


@pytest.mark.parametrize(("typed", "resume"), [([], False), (["--resume"], True), (["--resume=auto"], "auto")], ids=str)
def test_the_option_takes_no_word_that_follows_it(typed, resume):
    options, rest = make_parser().parse_known_args(["train", *typed, "recipe.yaml", *typed, "steps=3"])
    accept_rest(options, rest)
    assert (options.resume, options.recipe, options.overrides) == (resume, "recipe.yaml", ["steps=3"])
