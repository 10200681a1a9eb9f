"""docs/first-hour.md from top to bottom as printed: a wheel, a fresh virtual environment, an empty folder.

`make test-newcomer` names this file; `make test` does not find it, since it trains two agents to their end.
The dependencies are borrowed from the environment that runs the test, so that nothing is downloaded; with
NEWCOMER_ONLINE=1 pip installs them from its index.
"""

import json
import os
import shlex
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from snippets import Snippet, snippets_of

ROOT = Path(__file__).parents[3]
MINUTES = 15
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
INSIDE = 'test "${VIRTUAL_ENV:-}" = "$HOUR/.venv"  # else pip would change another environment than the new one'
ONLINE = os.environ.get("NEWCOMER_ONLINE") == "1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Empty, but for the wheel."""
    folder = tmp_path_factory.mktemp("newcomer")
    command = (
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "--quiet",
        "--wheel-dir",
        folder,
    )
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE", "src"):
        subprocess.run(["cp", "-r", ROOT / name, tree], check=True)
    subprocess.run([sys.executable, *map(str, command), str(tree)], check=True)
    return folder


@pytest.fixture(scope="module")
def dependencies(tmp_path_factory):
    """The packages of this environment but turnwise itself: what pip finds there it need not install."""
    folder = tmp_path_factory.mktemp("dependencies")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "turnwise" not in path.name and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    return folder


def script_of(page: list[Snippet]) -> str:
    """The page as one shell script: files are written, commands typed, and the first that fails ends it."""
    lines = ["set -eu"]
    for snippet in page:
        if snippet.kind == "file":
            lines.append(f"cat > {shlex.quote(snippet.file)} <<'END_OF_FILE'\n{snippet.text}\nEND_OF_FILE")
        else:
            assert snippet.kind == "shell", f"{snippet}: neither a command nor a file"
            if snippet.text.startswith("pip "):
                lines.append(INSIDE)
            lines += [f"echo {shlex.quote(f'$ {snippet.text}')}", snippet.text]
    return "\n".join(lines) + "\n"


def only_python(tmp_path_factory) -> Path:
    """A folder of programs with the Python beneath this environment, and nothing of the environment itself."""
    programs = tmp_path_factory.mktemp("programs")
    script = programs / "python3"
    script.write_text(f'#!/bin/sh\nexec "{Path(sys.base_prefix) / "bin" / f"python{VERSION}"}" "$@"\n')
    script.chmod(0o755)
    return programs


@pytest.fixture(scope="module")
def played(folder, dependencies, tmp_path_factory):
    """The folder after the hour, with what was printed and how long it took."""
    page = snippets_of(ROOT / "docs" / "first-hour.md")
    variables = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    variables |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "COLUMNS": "120", "HF_HUB_OFFLINE": "1"}
    if not ONLINE:
        variables |= {"PYTHONPATH": str(dependencies), "PIP_NO_INDEX": "1"}
    variables |= {"HOUR": str(folder), "PATH": f"{only_python(tmp_path_factory)}:/usr/bin:/bin"}
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", script_of(page)],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder, done.stdout, time.monotonic() - began


def successes(run: Path) -> list[float]:
    """The held-out success of a run's evaluations, in order."""
    records = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [record["evaluate/success"] for record in records if record["stage"] == "evaluate"]


def test_it_was_the_wheel_that_ran(played):
    folder, printed, _ = played
    command = [folder / ".venv/bin/python", "-c", "import turnwise; print(turnwise.__file__)"]
    found = subprocess.run(command, env={}, capture_output=True, text=True)
    assert Path(found.stdout.strip()).is_relative_to(folder / ".venv")
    assert "4 passed" in printed


@pytest.mark.parametrize("run", ["recipe", "switchboard"])
def test_the_agent_has_learnt(played, run):
    before, *_, after = successes(played[0] / "shop" / "runs" / run)
    assert before < 0.5
    assert after >= 0.9


def test_it_took_less_than_a_quarter_of_an_hour(played):
    assert played[2] < 60 * MINUTES
