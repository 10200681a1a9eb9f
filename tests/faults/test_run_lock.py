"""One process trains in a run directory; a second is refused in one line, and a dead one is in nobody's way."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from processes import begin_training, wait_until
from tiny_runs import records, run_tiny, tiny_config
from turnwise.errors import ConfigError, RunError
from turnwise.runs.lock import LOCK, lock_run, start_of_process
from turnwise.training.trainer import run_training

SLEEPER = "import time; time.sleep(600)"


@pytest.fixture
def live():
    """A live process of this host, which holds locks in these tests."""
    process = subprocess.Popen([sys.executable, "-c", SLEEPER])
    yield process
    process.kill()
    process.wait()


def write_lock(folder: Path, **fields: object) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / LOCK
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "started": "long ago", **fields}))
    return path


def test_the_lock_names_this_process_and_goes_with_it(tmp_path):
    with lock_run(tmp_path / "deep" / "run"):
        held = json.loads((tmp_path / "deep" / "run" / LOCK).read_text())
        assert (held["host"], held["pid"]) == (socket.gethostname(), os.getpid())
        assert held["started"] == start_of_process(os.getpid()) is not None
    assert not (tmp_path / "deep").exists(), "nothing was written, so nothing is left"


def test_a_folder_that_became_a_run_stays(tmp_path):
    with lock_run(tmp_path / "run"):
        (tmp_path / "run" / "config.yaml").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("resume", [False, True, "auto"])
def test_a_live_run_is_refused_to_a_second_process(resume, live, tmp_path):
    lock = write_lock(tmp_path / "run", pid=live.pid, started=start_of_process(live.pid))
    before = lock.read_text()
    with pytest.raises(RunError) as refused:
        run_tiny(tmp_path / "run", resume=resume)
    assert f"process {live.pid} on host {socket.gethostname()} is training this run" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert lock.read_text() == before
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK], "nothing was touched"


def test_one_process_cannot_train_a_run_twice_at_once(tmp_path):
    with lock_run(tmp_path), pytest.raises(RunError, match=f"process {os.getpid()} on host"):
        run_training(tiny_config(), tmp_path)


def test_the_dead_hold_nothing(live, tmp_path):
    """Gone; a pid that another process has now; killed and not yet waited for; killed while it wrote the lock."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    marks = {"gone": (gone.pid, "then"), "reused": (live.pid, f"{start_of_process(live.pid)}0")}
    marks["zombie"] = (live.pid, start_of_process(live.pid))
    for name, (pid, started) in marks.items():
        if name == "zombie":
            live.kill()
            os.waitid(os.P_PID, live.pid, os.WEXITED | os.WNOWAIT)
        write_lock(tmp_path / name, pid=pid, started=started)
        with lock_run(tmp_path / name):
            assert json.loads((tmp_path / name / LOCK).read_text())["pid"] == os.getpid()
    for content in ("", '{"host": "her'):
        (tmp_path / LOCK).write_text(content)
        with lock_run(tmp_path):
            pass


def test_another_host_is_refused_with_what_to_remove(tmp_path):
    lock = write_lock(tmp_path / "run", host="node-7", pid=4711)
    with pytest.raises(RunError, match=rf"process 4711 on host node-7 holds this run.*remove {lock} and try again"):
        run_tiny(tmp_path / "run")
    lock.unlink()
    run_tiny(tmp_path / "run", steps=0)


def test_of_many_that_start_at_once_one_trains(tmp_path):
    """All find the lock of a process that died."""
    write_lock(tmp_path, pid=2**22 + 1)
    script = (
        "import sys, pathlib, time\n"
        "from turnwise.errors import RunError\n"
        "from turnwise.runs.lock import lock_run\n"
        "sys.stdin.readline()\n"
        "try:\n"
        f"    with lock_run(pathlib.Path({str(tmp_path)!r})):\n"
        "        print('trains', flush=True); sys.stdin.readline()\n"
        "except RunError: print('refused', flush=True)\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [subprocess.Popen([sys.executable, "-c", script], **pipes) for _ in range(6)]
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    met = [racer.stdout.readline().strip() for racer in racers]
    for racer in racers:
        racer.communicate("end\n")
    assert sorted(met) == ["refused"] * 5 + ["trains"]


@pytest.mark.parametrize("meanwhile", ["taken", "released"])
def test_a_process_waits_while_another_looks_at_the_lock(meanwhile, live, tmp_path):
    """And then sees what that one did: it took the lock, or it removed its own."""
    path = write_lock(tmp_path, pid=2**22 + 1)
    met: list[str] = []

    def take() -> None:
        try:
            with lock_run(tmp_path):
                met.append(json.loads(path.read_text())["pid"] if path.exists() else "a file that is gone")
        except RunError as refused:
            met.append(str(refused))

    with path.open("r+") as looking:
        fcntl.flock(looking, fcntl.LOCK_EX)
        taking = threading.Thread(target=take)
        taking.start()
        taking.join(0.3)
        assert met == [], "it waits"
        if meanwhile == "taken":
            write_lock(tmp_path, pid=live.pid, started=start_of_process(live.pid))
        else:
            path.unlink()
    taking.join(20)
    if meanwhile == "taken":
        assert f"process {live.pid} on host" in met[0]
    else:
        assert met == [os.getpid()]


def test_a_mistake_leaves_no_folder_and_no_lock(tmp_path):
    with pytest.raises(ConfigError):
        run_tiny(tmp_path / "run", sft={"demonstrations": 8, "batch": 8, "chats": str(tmp_path / "none.jsonl")})
    assert not (tmp_path / "run").exists()
    with pytest.raises(RunError, match="no run to resume"):
        run_tiny(tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="a file, not a folder"):
        run_tiny(tmp_path / "file")


@pytest.mark.slow
def test_a_second_command_is_refused_while_the_first_trains_and_a_killed_run_resumes_at_once(tmp_path):
    first = begin_training(tmp_path, steps=5000)
    try:
        wait_until(lambda: (tmp_path / "run" / "metrics.jsonl").exists(), first)
        second = begin_training(tmp_path, "--resume", steps=5000)
        error = second.communicate(timeout=120)[1]
        assert second.returncode == 2
        assert f"process {first.pid} on host" in error.replace("\n", " ")
        assert first.poll() is None, "the first trains on"
    finally:
        first.send_signal(signal.SIGKILL)
    wait_until(lambda: start_of_process(first.pid) is None)  # not waited for: it is a zombie now
    assert (tmp_path / "run" / LOCK).exists()
    resumed = run_tiny(tmp_path / "run", resume=True, steps=1, sft=None)
    first.communicate()
    assert not (tmp_path / "run" / LOCK).exists()
    assert [record["step"] for record in records(resumed, "train")][:1] == [1]
