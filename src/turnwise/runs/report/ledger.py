"""The report's ledger: bars and a table of seconds by account, and a table of tokens by what became of them."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from turnwise.ledger import ACCOUNTS, TOKENS
from turnwise.runs.ledger.totals import LedgerTotals
from turnwise.runs.report.charts import Slice, draw_bar
from turnwise.runs.report.tables import Cell, Marked, show_share, show_whole, table


def ledger_section(totals: LedgerTotals) -> str:
    """A bar for the run and one for each of its stages, and the same in numbers; the last row is the sum."""
    if not totals.wall:
        return '<h2>Where the time went</h2>\n<p class="soft">There is no ledger in the metrics of this run.</p>'
    accounts, stages = totals.accounts(), totals.stages
    whole = math.fsum(accounts.values())
    bars = {"the whole run": accounts}
    if len(stages) > 1:
        bars |= {stage: totals.accounts(stage) for stage in stages}
    rows: list[Sequence[Cell]] = [
        (
            Marked(f'<i class="key a-{escape(name)}"></i>{escape(name.replace("_", " "))}'),
            f"{spent:,.2f}",
            show_share(spent, whole),
            *(_seconds(totals.seconds[stage].get(name)) for stage in stages),
            ACCOUNTS.get(name, ""),
        )
        for name, spent in accounts.items()
    ]
    sums = [_seconds(math.fsum(totals.seconds[stage].values())) for stage in stages]
    rows.append(
        ("sum", f"{whole:,.2f}", show_share(whole, totals.wall), *sums, f"of {totals.wall:,.2f} s of wall-clock")
    )
    drawn = "\n".join(_bar(title, spent) for title, spent in bars.items())
    numbers = range(1, 3 + len(stages))
    return f"<h2>Where the time went</h2>\n{drawn}\n" + table(
        ("account", "seconds", "share", *stages, ""), rows, numbers=numbers, last="sum"
    )


def tokens_section(totals: LedgerTotals) -> str:
    """Every count of tokens, over the run and by stage."""
    counts = totals.counts()
    if not counts:
        return ""
    stages = [stage for stage in totals.stages if stage in totals.tokens]
    rows: list[Sequence[Cell]] = [
        (
            name.replace("_", " "),
            show_whole(number),
            *(show_whole(totals.tokens[stage].get(name, math.nan)) for stage in stages),
            TOKENS.get(name, ""),
        )
        for name, number in counts.items()
    ]
    head = ("tokens", "all", *stages, "")
    return f"<h2>Where the tokens went</h2>\n{table(head, rows, numbers=range(1, 2 + len(stages)))}"


def _bar(title: str, spent: Mapping[str, float]) -> str:
    whole = math.fsum(spent.values())
    slices = [
        Slice(name=name, value=value, note=f"{value:,.2f} s, {show_share(value, whole)}")
        for name, value in spent.items()
    ]
    return f'<p class="legend">{escape(title)}: {whole:,.1f} s</p>' + draw_bar(slices, label=f"seconds of {title}")


def _seconds(spent: float | None) -> str:
    return "–" if spent is None else f"{spent:,.2f}"
