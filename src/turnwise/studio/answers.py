"""What the studio answers, in plain data: the interface of the package's page without HTTP.

Invariant: an answer about a damaged run has what can be read, and `problems` that name the rest.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from turnwise.errors import RunError, TurnwiseError
from turnwise.runs.files import read_json
from turnwise.runs.findings import read_findings
from turnwise.studio.branches import Branches, parse_branch
from turnwise.studio.curves import Mark
from turnwise.studio.episode import compare_episodes, find_episode, show_difference, show_episode
from turnwise.studio.index import list_facets, list_failures, match_rows, parse_query, show_rows
from turnwise.studio.library import Run
from turnwise.studio.overview import health_rows, ledger_bars
from turnwise.studio.search import search_files
from turnwise.studio.shelf import Shelf
from turnwise.types import Json

_MOST_SERIES: Final = 60
_MOST_ROWS: Final = 500
_SIBLINGS: Final = 64
_MOST_CONFIG: Final = 400_000


class Answers:
    """Every question that a page can ask."""

    def __init__(self, shelf: Shelf, branches: Branches | None = None) -> None:
        self._shelf = shelf
        self._branches = branches or Branches()

    def runs(self) -> dict[str, Json]:
        return self._shelf.list_runs()

    def run(self, run_id: str) -> dict[str, Json]:
        """A run's line, config, metrics by name, findings, checkpoints, and what could not be read."""
        run = self._shelf.library.find(run_id)
        curves, problems = self._shelf.curves.of(run), list[str]()
        with curves.lock:
            problems += curves.update()
            names = curves.names()
        steps: dict[str, list[Json]] = {}
        for path in run.trajectory_files(problems):
            stage, _, step = path.stem.rpartition("-")
            steps.setdefault(stage, []).append(int(step))
        line = self._shelf.describe(run)
        if line["problem"] and str(line["problem"]) not in problems:
            problems.append(str(line["problem"]))
        return {
            "run": line,
            "config": _read_text(run, problems),
            "versions": _read_versions(run, problems),
            "metrics": names,
            "findings": _read_findings(run, problems),
            "checkpoints": list(run.checkpoint_steps()),
            "files": dict(steps),
            "problems": list(dict.fromkeys(problems)),
        }

    def series(self, run_id: str, names: Sequence[str], since: str = "") -> dict[str, Json]:
        """Curves and the run's line; to a page that gives the `mark` of its last answer, only what was written since.

        Findings and the names of metrics are left out where they are what they were then: what a page that follows a
        run costs must not grow with the run.
        """
        run = self._shelf.library.find(run_id)
        curves, stamp, (had, had_stamp) = self._shelf.curves.of(run), _findings_stamp(run), _parse_mark(since)
        with curves.lock:
            problems, mark = curves.update(), curves.mark
            if had is not None and had.reading != mark.reading:
                had = None
            places = None if had is None else curves.places_after(had)
            found = [curves.series(name, places) for name in names[:_MOST_SERIES]]
            metrics = curves.names() if had is None or had.names != mark.names else None
        answer: dict[str, Json] = {
            "mark": f"{mark.reading}.{mark.records}.{mark.names}.{stamp}",
            "whole": had is None,
            "series": [one for one in found if one is not None and (one["step"] or had is None)],
            "run": self._shelf.describe(run),
        }
        if metrics is not None:
            answer["metrics"] = metrics
        if stamp != had_stamp:
            answer["findings"] = _read_findings(run, problems)
        return {**answer, "problems": list(problems)}

    def ledger(self, run_id: str) -> dict[str, Json]:
        curves = self._shelf.curves.of(self._shelf.library.find(run_id))
        with curves.lock:
            curves.update()
            return ledger_bars(curves)

    def health(self, run_id: str) -> dict[str, Json]:
        """Rows over steps, and failures by kind from the trajectories that were read."""
        run = self._shelf.library.find(run_id)
        curves, index = self._shelf.curves.of(run), self._shelf.indexes.of(run)
        with curves.lock:
            curves.update()
            rows = health_rows(curves)
        with index.lock:
            pending, problems = index.update()
            failures = list_failures(index.columns) if index.columns is not None else []
        return {**rows, "failures": failures, "pending": pending, "problems": list(problems)}

    def trajectories(self, run_id: str, given: Mapping[str, str]) -> dict[str, Json]:
        """A page of the trajectories that a query asks for."""
        run, query = self._shelf.library.find(run_id), parse_query(given)
        own = str(self._shelf.describe(run)["environment"])
        index = self._shelf.indexes.of(run)
        with index.lock:
            pending, problems = index.update()
            columns, files = index.columns, list(index.files)
            sizes = index.sizes()
        if columns is None:
            return {"total": 0, "found": 0, "rows": [], "facets": {}, "pending": pending, "problems": list(problems)}
        found = _with_text(search_files(files, query.text), sizes) if query.text else None
        places = match_rows(columns, query, own, found)
        page = places[query.offset : query.offset + min(query.limit, _MOST_ROWS)]
        return {
            "total": len(columns),
            "found": len(places),
            "rows": show_rows(columns, page.tolist(), own),
            "facets": list_facets(columns, own),
            "pending": pending,
            "problems": list(problems),
        }

    def trajectory(self, run_id: str, name: str) -> dict[str, Json]:
        """One trajectory, with its group's members and the same task's at other times."""
        run = self._shelf.library.find(run_id)
        shown = show_episode(find_episode(run, name), self._shelf.tokenizers.pieces_of(run))
        return {**shown, **self._relatives(run, shown)}

    def compare(self, run_id: str, names: Sequence[str]) -> dict[str, Json]:
        run = self._shelf.library.find(run_id)
        return compare_episodes(run, names, self._shelf.tokenizers.pieces_of(run))

    def branch(self, run_id: str, asked: Mapping[str, object]) -> dict[str, Json]:
        """Begins a branch in a process of its own; its id."""
        run, request = self._shelf.library.find(run_id), parse_branch(asked)
        if request.parent is None:
            find_episode(run, request.trajectory)  # an error at once where there is none
        return {"branch": self._branches.start(run, request)}

    def branched(self, branch_id: str) -> dict[str, Json]:
        """How far a branch is; once it is done, it beside the trajectory that it left."""
        branch = self._branches.find(branch_id)
        if branch.state != "done":
            return branch.describe()
        pieces = self._shelf.tokenizers.pieces_of(branch.run)
        origin, made = self._branches.origin(branch), self._branches.read(branch_id)
        shown = [show_episode(origin, pieces), {**show_episode(made, pieces), "name": "", "label": "the branch"}]
        if branch.request.parent is not None:
            shown[0] |= {"name": "", "label": "the branch before"}
        return {**branch.describe(), "trajectories": shown, "differs": [None, show_difference(origin, made)]}

    def _relatives(self, run: Run, shown: Mapping[str, Json]) -> dict[str, Json]:
        index, task = self._shelf.indexes.of(run), shown["task"]
        assert isinstance(task, Mapping), "`show_episode` made it"
        with index.lock:
            index.update(first=run.directory.trajectory_file(str(shown["stage"]), int(str(shown["step"]))))
            columns = index.columns
        if columns is None:
            return {"siblings": [], "same_task": []}
        alike = columns.task == str(task["id"])
        group = (columns.stage == shown["stage"]) & (columns.step == shown["step"]) & (columns.group == shown["group"])
        places = [np.flatnonzero(alike & group)[:_SIBLINGS], np.flatnonzero(alike & ~group)[:_SIBLINGS]]
        siblings, same = (show_rows(columns, found.tolist(), "") for found in places)
        return {"siblings": siblings, "same_task": same}


def _parse_mark(text: str) -> tuple[Mark | None, int | None]:
    """What `series` gave as `mark`, and the stamp of the findings; None for what is no mark."""
    try:
        reading, records, names, stamp = map(int, text.split("."))
    except ValueError:
        return None, None
    return Mark(reading=reading, records=max(0, records), names=names), stamp


def _findings_stamp(run: Run) -> int:
    try:
        return run.findings.stat().st_mtime_ns
    except (OSError, TurnwiseError):
        return 0


def _with_text(found: Sequence[npt.NDArray[np.int64]], sizes: Sequence[int]) -> list[int]:
    """Places in the joined columns, from places by file; a file may have grown since it was listed."""
    starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    listed = zip(starts, sizes, found, strict=False)
    return [start + place for start, size, places in listed for place in places.tolist() if place < size]


def _read_text(run: Run, problems: list[str]) -> str:
    try:
        return run.config.read_text(encoding="utf-8", errors="replace")[:_MOST_CONFIG]
    except (OSError, TurnwiseError) as error:
        problems.append(f"config.yaml cannot be read: {error}")
        return ""


def _read_versions(run: Run, problems: list[str]) -> dict[str, Json]:
    try:
        if not run.versions.is_file():
            return {}
        return {str(name): str(value) for name, value in read_json(run.versions).items()}
    except (OSError, UnicodeDecodeError, TurnwiseError) as error:
        problems.append(str(error))
        return {}


def _read_findings(run: Run, problems: list[str]) -> list[Json]:
    try:
        found = read_findings(run.findings)
    except (OSError, UnicodeDecodeError, RunError) as error:
        problems.append(str(error))
        return []
    shown: list[Json] = []
    for finding in found:
        step = finding.get("step")
        shown.append(
            {
                "step": step if isinstance(step, int) else None,
                "kind": str(finding.get("kind", "")),
                "severity": str(finding.get("severity", "")),
                "sentence": str(finding.get("sentence", "")),
                "rollback_to": back if isinstance(back := finding.get("rollback_to"), int) else None,
            }
        )
    return shown
