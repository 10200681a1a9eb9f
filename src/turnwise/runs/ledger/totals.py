"""A run's ledger summed from its metrics: seconds by account and tokens by name, per stage.

Invariant: accounts and counts unknown to this version are summed and shown, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from turnwise.ledger import ACCOUNTS, TOKENS
from turnwise.runs.metrics import Record

STAGES: Mapping[str, str] = {
    "untrained": "evaluation",
    "sft": "cold start",
    "train": "training",
    "evaluate": "evaluation",
    "end": "training",
}
"""Display name of a record's stage; the time after the last record counts as training."""
_COLUMNS = ("cold start", "training", "evaluation")
_SECONDS, _TOKENS = "_seconds", "_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTotals:
    """Sums by stage and name: `totals.seconds["training"]["decode"] == 41.2`."""

    seconds: Mapping[str, Mapping[str, float]]
    tokens: Mapping[str, Mapping[str, float]]
    wall: float
    """Wall-clock seconds; the accounts sum to it."""

    @property
    def stages(self) -> list[str]:
        """Stages with any time, in chronological order."""
        return [*(stage for stage in _COLUMNS if stage in self.seconds), *sorted(self.seconds.keys() - set(_COLUMNS))]

    def accounts(self, stage: str | None = None) -> dict[str, float]:
        """Seconds by account, of one stage or of all, in the order of the ledger."""
        return _in_order(_total(self.seconds.values() if stage is None else [self.seconds[stage]]), ACCOUNTS)

    def counts(self) -> dict[str, float]:
        """Tokens by name, over all stages."""
        return _in_order(_total(self.tokens.values()), TOKENS)


def read_totals(records: Iterable[Record]) -> LedgerTotals:
    """Sums the `ledger/` metrics of all records; all zero for a run without a ledger."""
    seconds: dict[str, dict[str, float]] = {}
    tokens: dict[str, dict[str, float]] = {}
    wall = 0.0
    for record in records:
        stage = STAGES.get(str(record["stage"]), str(record["stage"]))
        for name, value in record.items():
            if not name.startswith("ledger/") or not isinstance(value, int | float):
                continue
            account = name.removeprefix("ledger/")
            if account == "wall_seconds":
                wall += value
            elif account.endswith(_SECONDS):
                _add(seconds, stage, account.removesuffix(_SECONDS), value)
            elif account.endswith(_TOKENS):
                _add(tokens, stage, account.removesuffix(_TOKENS), value)
    return LedgerTotals(seconds=seconds, tokens=tokens, wall=wall)


def show_totals(console: Console, totals: LedgerTotals) -> None:
    """Prints the ledger as tables: seconds by account, then tokens."""
    if not totals.wall:
        console.print("This run has no ledger in its metrics.", highlight=False)
        return
    console.print(_seconds_table(totals))
    if counts := totals.counts():
        console.print(_tokens_table(totals, counts))


def _seconds_table(totals: LedgerTotals) -> Table:
    accounts, stages = totals.accounts(), totals.stages
    whole = sum(accounts.values())
    table = Table(title=f"{totals.wall:,.1f} seconds of wall-clock, by account", title_justify="left")
    table.add_column("account")
    for title in ["seconds", "share", *stages]:
        table.add_column(title, justify="right")
    for account, spent in accounts.items():
        by_stage = [_cell(totals.seconds[stage].get(account, 0.0)) for stage in stages]
        table.add_row(account.replace("_", " "), f"{spent:,.2f}", f"{spent / whole:.1%}", *by_stage)
    sums = [f"{sum(totals.seconds[stage].values()):,.2f}" for stage in stages]
    table.add_section()
    table.add_row("sum", f"{whole:,.2f}", f"{whole / totals.wall:.1%}", *sums, style="bold")
    return table


def _tokens_table(totals: LedgerTotals, counts: Mapping[str, float]) -> Table:
    stages: Sequence[str] = [stage for stage in totals.stages if stage in totals.tokens]
    table = Table(title="Tokens", title_justify="left")
    table.add_column("")
    for title in ["all", *stages]:
        table.add_column(title, justify="right")
    for name, number in counts.items():
        by_stage = [f"{totals.tokens[stage].get(name, 0):,.0f}" for stage in stages]
        table.add_row(name.replace("_", " "), f"{number:,.0f}", *by_stage)
    return table


def _cell(seconds: float) -> str:
    return f"{seconds:,.2f}" if seconds else "–"


def _add(sums: dict[str, dict[str, float]], stage: str, name: str, value: float) -> None:
    here = sums.setdefault(stage, {})
    here[name] = here.get(name, 0.0) + value


def _total(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            sums[name] = sums.get(name, 0.0) + value
    return sums


def _in_order(sums: Mapping[str, float], known: Iterable[str]) -> dict[str, float]:
    names = [name for name in known if name in sums]
    return {name: sums[name] for name in [*names, *sorted(sums.keys() - set(names))]}
