"""Branches that the page asks for: each is a `turnwise replay` in a process of its own, which can be killed.

Invariant: one plays at a time; the server itself never loads a model, and a run's folder is not written to. Branches
are kept in a temporary folder that ends with the server, the newest ones alone.
"""

import math
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from turnwise.errors import ConfigError, RunError
from turnwise.runs.episodes import StoredEpisode, read_episode_file
from turnwise.spelling import suggest
from turnwise.studio.episode import find_episode
from turnwise.studio.library import Run
from turnwise.types import Json

_SECONDS: Final = 900.0
_MOST: Final = 40
_FILE: Final = "branch-000000.parquet"
_WORDS: Final = ("trajectory", "parent", "edit_result", "action")
_WHOLE: Final = ("from_turn", "checkpoint", "seed", "turns")


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRequest:
    """What to branch, where and how: the arguments of `turnwise replay`."""

    trajectory: str
    from_turn: int
    checkpoint: int | None = None
    temperature: float | None = None
    seed: int | None = None
    edit_result: str | None = None
    action: str | None = None
    turns: int | None = None
    parent: str | None = None
    """A branch to go on from, in place of the trajectory."""

    def options(self) -> list[str]:
        """`["--from-turn=2", "--temperature=0.5"]`; joined, so that no value can be read as an option."""
        names = ("from_turn", "checkpoint", "temperature", "seed", "edit_result", "action", "turns")
        given = ((name, getattr(self, name)) for name in names)
        return [f"--{name.replace('_', '-')}={value}" for name, value in given if value is not None]


def parse_branch(asked: Mapping[str, object]) -> BranchRequest:
    """A request from the page; what is wrong with it is an error that names the field."""
    known = (*_WORDS, *_WHOLE, "temperature")
    for name, value in asked.items():
        if name not in known:
            raise ConfigError(f"branch: no field '{name[:40]}'{suggest(name[:40], known)}")
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if name in _WORDS and not isinstance(value, str):
            raise ConfigError(f"{name}: give a text")
        if name in _WHOLE and not (number and isinstance(value, int)):
            raise ConfigError(f"{name}: give a whole number")
        if name == "temperature" and not (number and isinstance(value, int | float) and value >= 0):
            raise ConfigError("temperature: give a number from 0 up")
    if not isinstance(asked.get("trajectory"), str) or not isinstance(asked.get("from_turn"), int):
        raise ConfigError("branch: give a trajectory and from_turn")
    return BranchRequest(**{name: value for name, value in asked.items() if value is not None})  # type: ignore[arg-type]


@dataclass(slots=True, kw_only=True)
class Branch:
    """One branch: `queued`, `playing`, `done`, or `failed` with the reason in `line`."""

    run: Run
    request: BranchRequest
    folder: Path
    state: str = "queued"
    line: str = ""
    made: threading.Event = field(default_factory=threading.Event)

    def describe(self) -> dict[str, Json]:
        asked = {name: getattr(self.request, name) for name in BranchRequest.__dataclass_fields__}
        return {"state": self.state, "line": self.line, "run": self.run.id, "asked": asked}


class Branches:
    """All branches of a server."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "turnwise.cli", "replay")) -> None:
        self._command = command
        self._folder = tempfile.TemporaryDirectory(prefix="turnwise-branches-", ignore_cleanup_errors=True)
        self._branches: dict[str, Branch] = {}
        self._lock, self._turn = threading.Lock(), threading.Lock()

    def start(self, run: Run, request: BranchRequest) -> str:
        """Queues a branch and returns its id."""
        if request.parent is not None and self.find(request.parent).state != "done":
            raise RunError("the branch to go on from is not done")
        branch_id = secrets.token_hex(6)
        folder = Path(self._folder.name) / branch_id
        folder.mkdir()
        branch = Branch(run=run, request=request, folder=folder)
        with self._lock:
            self._branches[branch_id] = branch
            ended = [one for one, other in self._branches.items() if other.state in ("done", "failed")]
            for old in ended[: max(0, len(self._branches) - _MOST)]:
                shutil.rmtree(self._branches.pop(old).folder, ignore_errors=True)
        threading.Thread(target=self._play, args=(branch,), name=f"branch-{branch_id}", daemon=True).start()
        return branch_id

    def find(self, branch_id: str) -> Branch:
        branch = self._branches.get(branch_id)
        if branch is None:
            raise RunError("there is no such branch: they are kept until the studio stops; make it again")
        return branch

    def read(self, branch_id: str) -> StoredEpisode:
        """A branch that is done."""
        return read_episode_file(self.find(branch_id).folder / _FILE)

    def origin(self, branch: Branch) -> StoredEpisode:
        """What a branch left."""
        if branch.request.parent is not None:
            return self.read(branch.request.parent)
        return find_episode(branch.run, branch.request.trajectory)

    def _play(self, branch: Branch) -> None:
        source = branch.request.trajectory
        if branch.request.parent is not None:
            source = str(self.find(branch.request.parent).folder / _FILE)
        target = branch.folder / _FILE
        where = [str(branch.run.directory.path), source, f"--save={target}"]
        with self._turn:
            branch.state = "playing"
            try:
                done = subprocess.run(
                    [*self._command, *where, *branch.request.options()],
                    capture_output=True,
                    text=True,
                    timeout=_SECONDS,
                    stdin=subprocess.DEVNULL,
                )
            except (subprocess.TimeoutExpired, OSError) as error:
                branch.state, branch.line = "failed", str(error)
            else:
                told = (done.stderr if done.returncode else done.stdout).strip().splitlines()
                branch.line = told[-1].removeprefix("error: ") if told else ""
                if not done.returncode:
                    branch.line = next((line for line in reversed(told) if line.startswith("reward ")), branch.line)
                branch.state = "done" if done.returncode == 0 and target.is_file() else "failed"
        branch.made.set()
