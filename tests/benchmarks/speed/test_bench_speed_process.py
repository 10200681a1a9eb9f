"""How a side is started, and what is said when it does not answer."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.harness import worker
from benchmarks.harness.jobs import JobFolders
from benchmarks.speed.process import (
    VARIABLES,
    find_own_variables,
    last_line,
    main,
    measure_ours,
    measure_peer,
    run_command,
    run_side,
)
from turnwise.errors import RunError


def script(tmp_path, text):
    file = tmp_path / "side.py"
    file.write_text(text)
    return [sys.executable, str(file)]


def test_the_last_line_is_the_answer_and_the_rest_is_kept(tmp_path):
    side = "import sys\nprint('loading')\nprint('careful', file=sys.stderr)\nprint('{\"seconds\": [1.5, 2]}\\n')"
    assert run_side(script(tmp_path, side), tmp_path) == {"seconds": [1.5, 2]}
    assert (tmp_path / "stdout.txt").read_text().startswith("loading\n")
    assert (tmp_path / "stderr.txt").read_text() == "careful\n"


def test_every_side_has_the_same_threads_and_allocator(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    told = run_side(script(tmp_path, "import json, os\nprint(json.dumps(dict(os.environ)))"), tmp_path)
    assert {name: told[name] for name in VARIABLES} == VARIABLES
    assert VARIABLES["OMP_NUM_THREADS"] == "2"
    assert VARIABLES["MALLOC_TRIM_THRESHOLD_"] == "34359738368"


def test_a_side_that_fails_is_told_by_the_last_line_it_said(tmp_path):
    command = script(tmp_path, "print('{}')\nimport no_such_package")
    with pytest.raises(RunError) as error:
        run_side(command, tmp_path)
    assert str(error.value) == (
        "side.py ended with exit code 1: ModuleNotFoundError: No module named 'no_such_package'"
    )


@pytest.mark.parametrize("printed", ["", "print('done')", "print('[1]')"])
def test_a_side_that_answers_nothing(tmp_path, printed):
    with pytest.raises(RunError, match=r"side\.py printed no line of JSON at its end; see .*stdout\.txt"):
        run_side(script(tmp_path, printed), tmp_path)


def test_a_command_of_ours_fails_by_its_name_and_its_one_line(tmp_path):
    command = [sys.executable, "-m", "turnwise", "train", "no-such-recipe"]
    with pytest.raises(RunError, match=r"train ended with exit code 2: .*no-such-recipe: no such recipe"):
        run_command(command, tmp_path, {})


def test_a_command_can_have_the_environment_that_the_benchmark_was_started_in(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    own = find_own_variables()
    assert (own["OMP_NUM_THREADS"], own["TOKENIZERS_PARALLELISM"]) == ("7", None)
    for name, value in worker.VARIABLES.items():  # as in a worker, where the command is started
        monkeypatch.setenv(name, value)
    printed = run_command(script(tmp_path, "import json, os\nprint(json.dumps(dict(os.environ)))"), tmp_path, own)
    told = json.loads(printed)
    assert {name: told.get(name) for name in own} == own


def test_a_python_that_is_not_there(tmp_path):
    with pytest.raises(RunError, match=r"no-python cannot be run: .*; give --peer the path of a python"):
        run_side([str(tmp_path / "no-python"), "side.py"], tmp_path)


def test_a_peer_is_given_its_options_as_words(tmp_path):
    command = script(tmp_path, "import json, sys\nprint(json.dumps({'told': sys.argv[1:]}))")
    settings = {"python": command[0], "script": command[1], "options": {"turn-tokens": 16, "learning-rate": 1e-5}}
    told = measure_peer(settings, JobFolders(own=tmp_path, before=None))
    assert told == {"told": ["--turn-tokens", "16", "--learning-rate", "1e-05"]}


def test_a_side_of_ours_runs_in_a_process_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "one_side.py").write_text(
        "import os, torch\n"
        "def measure(settings):\n"
        "    return {**settings, 'threads': torch.get_num_threads(), 'process': os.getpid()}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    job = {"measurement": "one_side:measure", "settings": {"rows": 3}}
    found = measure_ours(job, JobFolders(own=tmp_path, before=None))
    assert (found["rows"], found["threads"]) == (3, 2)
    assert found["process"] != os.getpid()


def test_main_prints_one_line(monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    main(["turnwise.evaluation.intervals:student_t", "2"])
    assert json.loads(capsys.readouterr().out) == pytest.approx(4.303, abs=1e-3)


def test_what_was_started_ends_when_a_worker_is_stopped(tmp_path):
    """A worker is ended by SIGTERM; a measurement that went on alone would be in the options of the next one."""
    command = script(
        tmp_path, "import os, sys, time\nopen(sys.argv[1], 'w').write(f'{os.getpid()}\\n')\ntime.sleep(60)"
    )
    code = (
        "import json, sys; from pathlib import Path; from benchmarks.speed.process import run_side; "
        "run_side(json.loads(sys.argv[1]), Path(sys.argv[2]))"
    )
    started = json.dumps([*command, str(tmp_path / "pid")])
    worker = subprocess.Popen([sys.executable, "-c", code, started, str(tmp_path)])
    pid = tmp_path / "pid"
    deadline = time.monotonic() + 60
    while not (pid.exists() and pid.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_last_line():
    assert last_line("one\n  two \n\n") == "two"
    assert last_line("\n \n") == ""
