"""One folder holds everything about a run and can be read without turnwise.

    config.yaml  versions.json  metrics.jsonl  findings.jsonl  trajectories/*.parquet  checkpoints/step-*/
    report.html  summary.json  .lock (while a process trains)

Invariant: a folder is a run exactly when it holds `config.yaml`, and that file is what the run was trained with:
a run is never resumed under another config, except for the keys its caller allows.
"""

import logging
import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, Self

from turnwise.errors import RunError
from turnwise.runs.files import read_json, sweep, write_json, write_text
from turnwise.settings import leaves, load_yaml

logger = logging.getLogger(__name__)

_PACKAGES = ("turnwise", "torch", "transformers", "numpy", "safetensors", "pydantic", "pyarrow", "peft")
_ABSENT = object()

Resume = bool | Literal["auto"]


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The folder of one run: `RunDirectory.create("runs/demo", config_yaml)`, or `RunDirectory.open("runs/demo")`."""

    path: Path

    @classmethod
    def create(
        cls, path: str | Path, config_yaml: str, *, resume: bool = False, may_differ: Collection[str] = ()
    ) -> Self:
        """Starts a run, or with `resume` continues one whose config differs in the keys of `may_differ` alone.

        A key is the dotted name of a value or a section: `may_differ={"evaluate.every"}`.
        """
        run = cls(Path(path))
        run.check(config_yaml, resume=resume, may_differ=may_differ)
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            sweep(run.path)
            write_text(run.config, config_yaml)
            run.trajectories.mkdir(exist_ok=True)
            run.checkpoints.mkdir(exist_ok=True)
            run._record_versions()
        except OSError as error:
            raise RunError(f"{path}: cannot write a run here: {error.strerror}; choose another --run") from None
        return run

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """An existing run, for reading."""
        run = cls(Path(path))
        if not run.config.is_file():
            raise RunError(f"{path}: not a run (no config.yaml in it); give the folder that --run created")
        return run

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def trajectories(self) -> Path:
        return self.path / "trajectories"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def sft_checkpoints(self) -> Path:
        """Of the cold start, while it lasts."""
        return self.checkpoints / "sft"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def versions(self) -> Path:
        return self.path / "versions.json"

    def trajectory_file(self, stage: str, step: int) -> Path:
        """`trajectories/train-000010.parquet`: one file per training step or evaluation."""
        return self.trajectories / f"{stage}-{step:06d}.parquet"

    def write_summary(self, figures: Mapping[str, object]) -> None:
        """Final figures: `{"rl": 0.93, "questions": 200, "seconds": 171.2}`."""
        write_json(self.summary, figures)

    def read_summary(self) -> dict[str, object]:
        return read_json(self.summary)

    def resumes(self, asked: Resume) -> bool:
        """Whether to resume; "auto" where there is a run. To be asked while the run is locked, lest it change."""
        if asked == "auto":
            return self.config.is_file()
        if not isinstance(asked, bool):
            raise RunError(f"resume={asked!r}: give True, False or 'auto'")
        return asked

    def check(self, config_yaml: str, *, resume: bool = False, may_differ: Collection[str] = ()) -> None:
        """Raises whatever `create` would raise and writes nothing: to be called before any long work."""
        if resume:
            self._check_same_config(config_yaml, may_differ)
        else:
            self._check_unused()

    def _check_unused(self) -> None:
        if self.config.exists():
            raise RunError(f"{self.path}: this run exists; continue it with --resume or choose another --run")
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path}: a file, not a folder; choose another --run")
        # Hidden files do not count: a run killed before its config was whole leaves one.
        if self.path.is_dir() and any(not entry.name.startswith(".") for entry in self.path.iterdir()):
            raise RunError(f"{self.path}: contains files that do not belong to a run; choose another --run")

    def _check_same_config(self, config_yaml: str, may_differ: Collection[str]) -> None:
        if not self.config.is_file():
            raise RunError(f"{self.path}: no run to resume; start it without --resume or choose another --run")
        before, now = (
            _flatten(self.config.read_text(encoding="utf-8"), str(self.config)),
            _flatten(config_yaml, "config"),
        )
        other = [
            key
            for key in [*now, *(key for key in before if key not in now)]
            if before.get(key, _ABSENT) != now.get(key, _ABSENT)
            and not any(key == name or key.startswith(f"{name}.") for name in may_differ)
        ]
        if other:
            first, *more = other
            others = f" (also other: {', '.join(more)})" if more else ""
            raise RunError(
                f"{self.path}: cannot resume with another config: {first} is {_show(now, first)} now and was "
                f"{_show(before, first)}{others}; put it back, choose another --run, or go on as it was: "
                f"turnwise train {self.config} --run {self.path} --resume"
            )

    def _record_versions(self) -> None:
        """Written once; a resumed run warns about differences, since equal results need equal libraries."""
        facts = collect_versions()
        if not self.versions.exists():
            write_json(self.versions, facts)
            return
        before = read_json(self.versions)
        changed = [
            f"{name} {before.get(name)} -> {value}" for name, value in facts.items() if before.get(name) != value
        ]
        if changed:
            logger.warning("%s is resumed with other versions: %s", self.path, ", ".join(changed))


@dataclass(frozen=True, slots=True)
class StoredSessions(RunDirectory):
    """The folder that `turnwise gateway --save` writes: trajectories, and no run around them."""

    @property
    def trajectories(self) -> Path:
        return self.path


def open_stored(path: str | Path) -> RunDirectory:
    """A run, or a folder of stored sessions, for reading its trajectories."""
    folder = StoredSessions(Path(path))
    stored = not folder.config.is_file() and any(folder.path.glob("session-*.parquet"))
    return folder if stored else RunDirectory.open(path)


def collect_versions() -> dict[str, str | None]:
    """The software under a run: `{"python": "3.12.4", "platform": "Linux-...", "turnwise": "0.1.0", "torch": ...}`."""
    facts: dict[str, str | None] = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = None
    return facts


def _flatten(config_yaml: str, source: str) -> dict[str, object]:
    data = load_yaml(config_yaml, source=source)
    return {".".join(path): value for path, value in leaves(data)} if isinstance(data, dict) else {}


def _show(values: Mapping[str, object], key: str) -> str:
    return repr(values[key]) if key in values else "absent"
