"""The report as a page: what a run is, its learning curve, where its time went, and what it dropped.

Invariant: a page is a function of what the run wrote; the template escapes every word, as a run, a recipe or a model
may have chosen it, and a missing number is a dash.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from turnwise.runs.display import show_duration
from turnwise.runs.ledger.totals import LedgerTotals, read_totals
from turnwise.runs.metrics import Record
from turnwise.runs.picture import Series
from turnwise.runs.report.charts import draw_lines
from turnwise.runs.report.conversations import show_evaluated
from turnwise.runs.report.ledger import COLOURS, draw_ledger, list_accounts, list_tokens
from turnwise.runs.report.samples import Samples
from turnwise.runs.report.tables import (
    Cell,
    Table,
    describe_run,
    list_dropped,
    list_evaluations,
    look_up,
    number_of,
    show_share,
    show_whole,
)
from turnwise.runs.report.token_view import list_modes, show_tokens
from turnwise.runs.retention import Thinned

_ENV_SUCCESS = re.compile(r"(rollout|evaluate)/env=(?P<env>[^/]+)/success")
_CURVES = (
    ("Reward", "rollout/reward"),
    ("Entropy of the policy", "policy/entropy"),
    ("Gradient norm", "policy/grad_norm"),
    ("Turns of an episode", "rollout/turns"),
    ("KL to the reference", "policy/kl_to_reference"),
    ("Mean gap between the sampler's and the learner's logprobs", "policy/sampler_gap"),
    ("Sampled tokens per second", "rollout/tokens_per_second"),
)
"""Beside success: the health and the speed of a run, as far as they were measured."""
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
    samples: Samples = field(default_factory=Samples)
    thinned: Thinned = field(default_factory=Thinned)

    def stage(self, *names: str) -> list[Record]:
        return [record for record in self.records if record["stage"] in names]

    @property
    def last_record(self) -> str:
        """` · last record 2026-02-03 04:05`, if the records have times."""
        times = [number_of(record, "time") for record in self.records]
        return f" · last record {datetime.fromtimestamp(times[-1]):%Y-%m-%d %H:%M}" if times and times[-1] > 0 else ""

    @property
    def state(self) -> str:
        """`finished after 40 steps`, or `step 12 of 40: ...`."""
        done = max((int(number_of(record, "step")) for record in self.stage("train", "end")), default=0)
        if self.stage("end"):
            return f"finished after {done} steps"
        if not self.records:
            return "nothing measured yet"
        planned = look_up(self.config, "steps")
        return f"step {done} of {planned}: still training, or stopped; continue it with turnwise train --resume"


def write_page(view: View) -> str:
    """The whole page, one HTML document that needs nothing else."""
    totals, events, success = read_totals(view.records), _events(view), _success(view)
    modes = list_modes(view.samples.trained)
    return (
        _templates()
        .get_template("page.html")
        .render(
            view=view,
            colours=COLOURS,
            facts=describe_run(view.config),
            tiles=_tiles(view, totals),
            events=events,
            success=success,
            chart=draw_lines(success, label="success by training step", between=(0.0, 1.0), events=events),
            curves=_curves(view, events),
            evaluations=list_evaluations(view.records),
            bars=draw_ledger(totals),
            ledger=list_accounts(totals),
            tokens=list_tokens(totals),
            findings=_findings(view),
            dropped=list_dropped(view.records, view.thinned),
            evaluated=[show_evaluated(stage) for stage in view.samples.evaluated],
            tokens_of=[show_tokens(episode, view.samples.pieces) for episode in view.samples.trained],
            modes=modes,
            painted="advantage" if "advantage" in dict(modes) else "role",
        )
    )


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("turnwise.runs.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )


def _tiles(view: View, totals: LedgerTotals) -> list[tuple[str, str]]:
    """The figures that a reader looks for first."""
    if not view.records:
        return []
    scores = [number_of(record, "evaluate/success") for record in view.stage("evaluate")]
    training = totals.seconds.get("training", {})
    sampling = math.fsum(training.get(account, 0.0) for account in _SAMPLING)
    episodes = math.fsum(number_of(record, "rollout/episodes", 0.0) for record in view.stage("train"))
    return [
        (f"{scores[-1]:.3f}" if scores else "–", f"held-out success, from {scores[0]:.3f}" if scores else "held out"),
        (show_whole(episodes), "episodes in training"),
        (show_whole(totals.counts().get("sampled", math.nan)), "tokens sampled"),
        (show_duration(totals.wall), "of wall-clock"),
        (show_share(sampling, math.fsum(training.values())), "of training spent playing episodes"),
    ]


def _events(view: View) -> list[tuple[float, str]]:
    steps = [(number_of(finding, "step"), _sentence(finding)) for finding in view.findings]
    return [(step, f"step {step:.0f}: {sentence}") for step, sentence in steps if math.isfinite(step)]


def _success(view: View) -> list[Series]:
    train, held_out = view.stage("train"), view.stage("evaluate")
    if not train and not held_out:
        return []
    return [
        _series("sampled in training", train, "rollout/success"),
        _series("held out, with its 95% interval", held_out, "evaluate/success", evaluated=True),
    ]


def _curves(view: View, events: Sequence[tuple[float, str]]) -> list[tuple[str, Markup]]:
    train = view.stage("train")
    channels = sorted({name for record in train for name in record if name.startswith("reward/")})
    # A single channel is the reward, which has a curve already.
    further = [(f"Reward: {name.removeprefix('reward/')}", name) for name in channels] if len(channels) > 1 else []
    lines = [(title, _series(title, train, name)) for title, name in (*_CURVES, *further)]
    by_env = _success_by_env(view)
    return [
        *((title, draw_lines(pair, label=title, width=430, height=190, between=(0, 1))) for title, pair in by_env),
        *(
            (title, draw_lines([line], label=title, width=430, height=190, events=events))
            for title, line in lines
            if any(map(math.isfinite, line.y))
        ),
    ]


def _success_by_env(view: View) -> list[tuple[str, list[Series]]]:
    """Of a mixture: each environment's success, sampled in training and held out with its interval."""
    train, held_out = view.stage("train"), view.stage("evaluate")
    matches = [_ENV_SUCCESS.fullmatch(name) for record in (*train, *held_out) for name in record]
    return [
        (
            f"Success: {env}",
            [
                _series("sampled in training", train, f"rollout/env={env}/success"),
                _series("held out", held_out, f"evaluate/env={env}/success", evaluated=True),
            ],
        )
        for env in dict.fromkeys(match["env"] for match in matches if match)
    ]


def _findings(view: View) -> Table:
    rows: list[Sequence[Cell]] = []
    for finding in view.findings:
        kind = str(finding.get("kind", ""))
        shown = kind.replace("_", " ").replace("starpo s", "StarPO-S")
        if finding.get("severity") == "alarm" or kind in ("enable_starpo_s", "reduce_updates"):
            shown = Markup('<span class="alarm">{}</span>').format(shown)
        rows.append((number_of(finding, "step"), shown, _sentence(finding)))
    return Table.of(("step", "kind", "what"), rows)


def _series(title: str, records: Sequence[Record], name: str, *, evaluated: bool = False) -> Series:
    low, high = ([number_of(record, f"{name}_{side}") for record in records] for side in ("low", "high"))
    return Series(
        name=title,
        x=[number_of(record, "step") for record in records],
        y=[number_of(record, name) for record in records],
        marked=evaluated,
        band=(low, high) if evaluated else None,
    )


def _sentence(finding: Mapping[str, object]) -> str:
    return str(finding.get("sentence", ""))
