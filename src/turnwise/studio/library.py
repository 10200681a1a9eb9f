"""The runs under the folders that the studio was given, each by an id that its path decides.

Invariant: whatever a request names, only files within a run that was found are opened: a link that leads out of its
run's folder is refused.
"""

import hashlib
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turnwise.errors import RunError
from turnwise.runs.directory import RunDirectory
from turnwise.runs.episodes import trajectory_files
from turnwise.runs.listing import find_runs

_RESCAN_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: `Run(id="demo-1a2b3c", name="sweep/demo", directory=RunDirectory(...))`."""

    id: str
    name: str
    """Its path within the folder it was found in."""
    directory: RunDirectory

    def confined(self, path: Path) -> Path:
        """The path itself, if it lies in the run's folder once links are followed."""
        if not path.resolve().is_relative_to(self.directory.path.resolve()):
            raise RunError(f"{path}: leads out of the run's folder; the studio opens nothing outside")
        return path

    @property
    def findings(self) -> Path:
        return self.confined(self.directory.path / "findings.jsonl")

    @property
    def metrics(self) -> Path:
        return self.confined(self.directory.metrics)

    @property
    def config(self) -> Path:
        return self.confined(self.directory.config)

    @property
    def versions(self) -> Path:
        return self.confined(self.directory.versions)

    def trajectory_files(self, problems: list[str]) -> list[Path]:
        """Its trajectory files in the order they were written; those that lead elsewhere are named in `problems`."""
        found = []
        folder = self.directory.trajectories
        leads_out = not folder.resolve().is_relative_to(self.directory.path.resolve())
        for path in trajectory_files(self.directory):
            try:
                # Of thousands of files nearly all are files, which lie where their folder does.
                found.append(self.confined(path) if leads_out or path.is_symlink() else path)
            except RunError as error:
                problems.append(str(error))
        return found

    def checkpoint_steps(self) -> list[int]:
        """The steps whose checkpoints are there now."""
        names = (path.name.removeprefix("step-") for path in self.directory.checkpoints.glob("step-*"))
        return sorted(int(name) for name in names if name.isdecimal())


class Library:
    """`Library([Path("runs")])`: looks for new runs when it is asked, at most every two seconds."""

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise RunError(f"{folder}: no such folder; give folders with runs in them, or runs")
        self._folders = [folder.resolve() for folder in folders]
        self._lock = threading.Lock()
        self._runs: dict[str, Run] = {}
        self._scanned = -_RESCAN_SECONDS

    def runs(self) -> list[Run]:
        """All runs there are now."""
        with self._lock:
            if time.monotonic() - self._scanned >= _RESCAN_SECONDS:
                self._runs = {run.id: run for folder in self._folders for run in _find(folder)}
                self._scanned = time.monotonic()
            return list(self._runs.values())

    def find(self, run_id: str) -> Run:
        """The run of an id, which may have appeared a moment ago."""
        run = self._runs.get(run_id) or next((run for run in self.runs() if run.id == run_id), None)
        if run is None:
            raise RunError(f"there is no run '{run_id[:80]}' in the folders of this studio")
        return run


def _find(folder: Path) -> list[Run]:
    """The folder itself, if it is a run whose files are still to come, and all runs in it."""
    paths = list(find_runs(folder)) or ([folder] if (folder / "config.yaml").is_file() else [])
    return [_make_run(folder, path) for path in paths]


def _make_run(folder: Path, path: Path) -> Run:
    name = path.name if path == folder else str(path.relative_to(folder))
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", path.name).strip("-.") or "run"
    digest = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:6]
    return Run(id=f"{slug}-{digest}", name=name, directory=RunDirectory(path))
