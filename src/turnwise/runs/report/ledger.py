"""The report's ledger: bars and a table of seconds by account, and a table of tokens by outcome."""

import math
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from turnwise.ledger import ACCOUNTS, TOKENS
from turnwise.runs.ledger.totals import LedgerTotals
from turnwise.runs.report.charts import Slice, draw_bar
from turnwise.runs.report.tables import Cell, Table, show_share, show_whole

COLOURS = {
    "prefill": "#7fb2f0",
    "decode": "#2a6fdb",
    "tail_idle": "#b9cdea",
    "tool_wait": "#e4572e",
    "environment": "#e0a526",
    "render": "#f0cf7f",
    "load": "#8e5bd0",
    "logprobs": "#6cc9bf",
    "update": "#17a398",
    "padding": "#b5dcd8",
    "diagnose": "#c77dba",
    "evaluate": "#a58bd8",
    "sft": "#5b8c5a",
    "store": "#9aa3af",
    "checkpoint": "#6b7280",
    "prepare": "#c4a484",
    "other": "#c9ced6",
}
"""By account: blue samples, yellow and red play, green learns, pale is what could be saved, grey is housekeeping."""
assert COLOURS.keys() == ACCOUNTS.keys(), "an account has a colour"


def draw_ledger(totals: LedgerTotals) -> Iterator[tuple[str, str, Markup]]:
    """A bar for the whole run and one for each stage: its title, its seconds, and the bar."""
    bars: dict[str, Mapping[str, float]] = {"the whole run": totals.accounts()}
    if len(totals.stages) > 1:
        bars |= {stage: totals.accounts(stage) for stage in totals.stages}
    for title, spent in bars.items():
        whole = math.fsum(spent.values())
        slices = [
            Slice(name=name, value=value, note=f"{value:,.2f} s, {show_share(value, whole)}")
            for name, value in spent.items()
        ]
        yield title, f"{whole:,.1f}", draw_bar(slices, label=f"seconds of {title}")


def list_accounts(totals: LedgerTotals) -> Table:
    """Seconds by account, over the run and by stage; the last row is the sum. No rows for a run without a ledger."""
    accounts, stages = totals.accounts(), totals.stages
    whole = math.fsum(accounts.values())
    rows: list[Sequence[Cell]] = [
        (
            Markup('<i class="key a-{}"></i>{}').format(name, name.replace("_", " ")),
            f"{spent:,.2f}",
            show_share(spent, whole),
            *(_seconds(totals.seconds[stage].get(name)) for stage in stages),
            ACCOUNTS.get(name, ""),
        )
        for name, spent in accounts.items()
    ]
    sums = [_seconds(math.fsum(totals.seconds[stage].values())) for stage in stages]
    wall = f"of {totals.wall:,.2f} s of wall-clock"
    rows.append(("sum", f"{whole:,.2f}", show_share(whole, totals.wall), *sums, wall))
    head = ("account", "seconds", "share", *stages, "")
    return Table.of(head, rows if totals.wall else [], numbers=range(1, 3 + len(stages)))


def list_tokens(totals: LedgerTotals) -> Table:
    """Every count of tokens, over the run and by stage."""
    stages = [stage for stage in totals.stages if stage in totals.tokens]
    rows: list[Sequence[Cell]] = [
        (
            name.replace("_", " "),
            show_whole(number),
            *(show_whole(totals.tokens[stage].get(name, math.nan)) for stage in stages),
            TOKENS.get(name, ""),
        )
        for name, number in totals.counts().items()
    ]
    return Table.of(("tokens", "all", *stages, ""), rows, numbers=range(1, 2 + len(stages)))


def _seconds(spent: float | None) -> str:
    return "–" if spent is None else f"{spent:,.2f}"
