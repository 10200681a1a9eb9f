"""Writes `report.html` into a run's folder; it needs neither turnwise nor a network.

Invariant: writing it changes nothing else in the run, and works at any time: for a run that has just started, is
training, was killed, or is finished.
"""

from pathlib import Path

from turnwise.runs.directory import RunDirectory
from turnwise.runs.files import read_json, write_text
from turnwise.runs.findings import read_findings
from turnwise.runs.metrics import Record, read_metrics
from turnwise.runs.report.page import View, write_page
from turnwise.runs.report.samples import read_samples
from turnwise.runs.retention import count_thinned
from turnwise.settings import load_yaml


def write_report(run: RunDirectory, *unwritten: Record) -> Path:
    """Writes the page of a run, including records that are not in its metrics yet, and returns its path."""
    path = run.path / "report.html"
    # Names made of a task's data may contain half of a surrogate pair, which UTF-8 cannot encode.
    write_text(path, write_page(read_view(run, *unwritten)).encode("utf-8", "replace").decode("utf-8"))
    return path


def read_view(run: RunDirectory, *unwritten: Record) -> View:
    """What a run has written so far, without an incomplete last line."""
    config_text = run.config.read_text(encoding="utf-8")
    config = load_yaml(config_text, source=str(run.config))
    return View(
        name=run.path.resolve().name,
        config=config if isinstance(config, dict) else {},
        config_text=config_text,
        versions=read_json(run.versions) if run.versions.is_file() else {},
        records=[*(read_metrics(run.metrics) if run.metrics.is_file() else ()), *unwritten],
        findings=read_findings(run.path / "findings.jsonl"),
        samples=read_samples(run),
        thinned=count_thinned(run.trajectories),
    )
