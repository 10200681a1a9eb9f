"""Trackio: a local database (`trackio show`), a server of one's own, or a Hugging Face Space."""

import contextlib
import io
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from turnwise.training.trackers.base import Tracker, import_tracker

if TYPE_CHECKING:
    from turnwise.runs.directory import RunDirectory


class Trackio(Tracker):
    """`callbacks: [{name: trackio, args: {project: agents}}]`."""

    NAME = "trackio"

    def __init__(
        self,
        *,
        project: str = "turnwise",
        name: str | None = None,
        group: str | None = None,
        space_id: str | None = None,
        server_url: str | None = None,
    ) -> None:
        """The arguments of `trackio.init`; `name` is that of the run's folder and a few digits by default."""
        super().__init__()
        self._package = import_tracker(self.NAME, "trackio")
        self._given = {"project": project, "group": group, "space_id": space_id, "server_url": server_url}
        self._name = name

    def start(self, run_id: str | None, config: Mapping[str, object], run: "RunDirectory") -> str:
        # Trackio resumes by name, so the name must be this run's alone.
        name = run_id or self._name or f"{run.path.resolve().name}-{uuid.uuid4().hex[:6]}"
        with _quiet():
            self._run = self._package.init(
                **self._given, name=name, config=dict(config), resume="never" if run_id is None else "allow"
            )
        return name

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def log_finding(self, step: int, kind: str, sentence: str, *, alarm: bool) -> None:
        level = self._package.AlertLevel.WARN if alarm else self._package.AlertLevel.INFO
        with _quiet():
            self._run.alert(title=kind.replace("_", " "), text=sentence, level=level, step=step)

    def finish(self, completed: bool) -> None:
        with _quiet():
            self._package.finish()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Trackio prints on standard output, which is the live display's."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
