"""`report.html`: a run on one page, in its own folder, to be read without turnwise and without a network.

Invariant: writing it changes nothing else in the run, and it can be written at any time: of a run that has just begun,
that is going on, that was killed, or that is finished.
"""

from pathlib import Path

from turnwise.runs.directory import RunDirectory
from turnwise.runs.files import read_json, write_text
from turnwise.runs.findings import read_findings
from turnwise.runs.metrics import Record, read_metrics
from turnwise.runs.report.page import View, write_page
from turnwise.settings import load_yaml


def write_report(run: RunDirectory, *unwritten: Record) -> Path:
    """Writes the page of a run as it stands, with records that are yet to be written, and says where."""
    path = run.path / "report.html"
    # A task's data may hold half of a surrogate pair, which is not UTF-8, and a name made of it ends up here.
    write_text(path, write_page(read_view(run, *unwritten)).encode("utf-8", "replace").decode("utf-8"))
    return path


def read_view(run: RunDirectory, *unwritten: Record) -> View:
    """What a run has written so far; a line that is being written just now is left out."""
    config_text = run.config.read_text(encoding="utf-8")
    config = load_yaml(config_text, source=str(run.config))
    return View(
        name=run.path.resolve().name,
        config=config if isinstance(config, dict) else {},
        config_text=config_text,
        versions=read_json(run.versions) if run.versions.is_file() else {},
        records=[*(read_metrics(run.metrics) if run.metrics.is_file() else ()), *unwritten],
        findings=read_findings(run.path / "findings.jsonl"),
    )
