"""The report as a page: what a run is, what it learnt, where its time went, and what it left out.

Invariant: a page is a function of what the run wrote; every word that a run, a recipe or a model could have chosen is
escaped, and a number that is missing is a dash.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

from turnwise.runs.display import show_duration
from turnwise.runs.ledger.totals import LedgerTotals, read_totals
from turnwise.runs.metrics import Record
from turnwise.runs.picture import Series
from turnwise.runs.report.charts import draw_lines
from turnwise.runs.report.ledger import ledger_section, tokens_section
from turnwise.runs.report.style import style_sheet
from turnwise.runs.report.tables import (
    Cell,
    Marked,
    describe_run,
    list_dropped,
    list_evaluations,
    look_up,
    number_of,
    show_share,
    show_whole,
    table,
)

_CURVES = (
    ("Reward", "rollout/reward"),
    ("Entropy of the policy", "policy/entropy"),
    ("Gradient norm", "policy/grad_norm"),
    ("Turns of an episode", "rollout/turns"),
    ("Divergence from the reference", "policy/kl_to_reference"),
    ("Sampled tokens per second", "rollout/tokens_per_second"),
)
"""Beside success: what says most about the health and the pace of a run, where it was measured."""
_SAMPLING = ("prefill", "decode", "tail_idle", "tool_wait", "environment", "render")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that a page shows, as the run wrote it."""

    name: str
    config: Mapping[str, object]
    config_text: str
    versions: Mapping[str, object]
    records: Sequence[Record]
    findings: Sequence[Mapping[str, object]]

    def stage(self, *names: str) -> list[Record]:
        return [record for record in self.records if record["stage"] in names]

    @property
    def state(self) -> str:
        """`finished after 40 steps`, or `step 12 of 40: ...`."""
        planned = look_up(self.config, "steps")
        done = max((int(number_of(record, "step")) for record in self.stage("train", "end")), default=0)
        if self.stage("end"):
            return f"finished after {done} steps"
        if not self.records:
            return "nothing measured yet"
        return f"step {done} of {planned}: still going on, or stopped; turnwise train --resume goes on with it"


def write_page(view: View) -> str:
    """The whole page, one HTML document that needs nothing else."""
    totals = read_totals(view.records)
    sections = [
        _head(view),
        _tiles(view, totals),
        _learning(view),
        _evaluations(view),
        ledger_section(totals),
        tokens_section(totals),
        _findings(view),
        _dropped(view),
        _setup(view),
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(view.name)} · turnwise</title>",
            f"<style>{style_sheet()}</style></head><body>",
            *(section for section in sections if section),
            "</body></html>",
            "",
        ]
    )


def _head(view: View) -> str:
    times = [number_of(record, "time") for record in view.records]
    when = f" · last record {datetime.fromtimestamp(times[-1]):%Y-%m-%d %H:%M}" if times and times[-1] > 0 else ""
    facts = table((), describe_run(view.config))
    return f'<h1>{escape(view.name)}</h1>\n<p class="soft">{escape(view.state + when)}</p>\n{facts}'


def _tiles(view: View, totals: LedgerTotals) -> str:
    """The figures that a reader looks for first."""
    if not view.records:
        return ""
    scores = [number_of(record, "evaluate/success") for record in view.stage("evaluate")]
    training = totals.seconds.get("training", {})
    sampling = math.fsum(training.get(account, 0.0) for account in _SAMPLING)
    episodes = math.fsum(number_of(record, "rollout/episodes", 0.0) for record in view.stage("train"))
    tiles = [
        (f"{scores[-1]:.3f}" if scores else "–", f"held-out success, from {scores[0]:.3f}" if scores else "held out"),
        (show_whole(episodes), "episodes in training"),
        (show_whole(totals.counts().get("sampled", math.nan)), "tokens sampled"),
        (show_duration(totals.wall), "of wall-clock"),
        (show_share(sampling, math.fsum(training.values())), "of training spent playing episodes"),
    ]
    boxes = (f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>' for value, what in tiles)
    return f'<div class="tiles">{"".join(boxes)}</div>'


def _learning(view: View) -> str:
    train, held_out = view.stage("train"), view.stage("evaluate")
    if not train and not held_out:
        return ""
    success = [
        _series("sampled in training", train, "rollout/success"),
        _series("held out, with its 95% interval", held_out, "evaluate/success", evaluated=True),
    ]
    steps = [(number_of(finding, "step"), _words(finding)) for finding in view.findings]
    events = [(step, f"step {step:.0f}: {words}") for step, words in steps if math.isfinite(step)]
    keys = [f'<span><i class="key s{place}"></i>{escape(line.name)}</span>' for place, line in enumerate(success)]
    keys += ["<span>┆ a finding</span>"] if events else []
    small = []
    for title, name in _CURVES:
        line = _series(title, train, name)
        if any(map(math.isfinite, line.y)):
            chart = draw_lines([line], label=title, width=430, height=190, events=events)
            small.append(f"<div><h3>{escape(title)}</h3>{chart}</div>")
    whole = draw_lines(success, label="success by training step", between=(0.0, 1.0), events=events)
    legend = f'<p class="legend">{"".join(keys)}</p>'
    return f'<h2>Success by training step</h2>\n{legend}\n{whole}\n<div class="small">{"".join(small)}</div>'


def _evaluations(view: View) -> str:
    head, rows = list_evaluations(view.records)
    return f"<h2>Evaluation</h2>\n{table(head, rows, numbers=range(1, len(head)))}" if rows else ""


def _findings(view: View) -> str:
    if not view.findings:
        return '<h2>Findings</h2>\n<p class="soft">None.</p>' if view.stage("train") else ""
    rows: list[Sequence[Cell]] = []
    for finding in view.findings:
        kind = str(finding.get("kind", ""))
        alarming = finding.get("severity") == "alarm" or kind == "treat"
        shown = escape(kind.replace("_", " "))
        word = Marked(f'<span class="alarm">{shown}</span>' if alarming else shown)
        rows.append((number_of(finding, "step"), word, _words(finding)))
    return f"<h2>Findings</h2>\n{table(('step', 'kind', 'what'), rows)}"


def _dropped(view: View) -> str:
    rows = list_dropped(view.records)
    return f"<h2>What was left out or cut off, and why</h2>\n{table(('', 'number', 'of', 'why'), rows)}" if rows else ""


def _setup(view: View) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in view.versions.items() if value)
    return "\n".join(
        [
            "<h2>Setup</h2>",
            f'<p class="soft">{escape(versions)}</p>',
            f"<details><summary>config.yaml</summary><pre>{escape(view.config_text)}</pre></details>",
        ]
    )


def _series(title: str, records: Sequence[Record], name: str, *, evaluated: bool = False) -> Series:
    low, high = ([number_of(record, f"{name}_{side}") for record in records] for side in ("low", "high"))
    return Series(
        name=title,
        x=[number_of(record, "step") for record in records],
        y=[number_of(record, name) for record in records],
        marked=evaluated,
        band=(low, high) if evaluated else None,
    )


def _words(finding: Mapping[str, object]) -> str:
    return str(finding.get("sentence", ""))
