"""A run's ledger, added up from its metrics: seconds by account and tokens by name, apart by stage.

Invariant: nothing is hidden: an account or a count that this version does not know is added up like any other.
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
"""What a record's stage is shown as; what is spent after the last record belongs to training."""
_COLUMNS = ("cold start", "training", "evaluation")
_SECONDS, _TOKENS = "_seconds", "_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Sums by stage and name: `balance.seconds["training"]["decode"] == 41.2`."""

    seconds: Mapping[str, Mapping[str, float]]
    tokens: Mapping[str, Mapping[str, float]]
    wall: float
    """What the records say of the wall-clock; the accounts sum to it."""

    @property
    def stages(self) -> list[str]:
        """Those that spent anything, in order of time."""
        return [*(stage for stage in _COLUMNS if stage in self.seconds), *sorted(self.seconds.keys() - set(_COLUMNS))]

    def accounts(self, stage: str | None = None) -> dict[str, float]:
        """Seconds by account, of one stage or of all, in the order of the ledger."""
        return _in_order(_total(self.seconds.values() if stage is None else [self.seconds[stage]]), ACCOUNTS)

    def counts(self) -> dict[str, float]:
        """Tokens by name, of all stages."""
        return _in_order(_total(self.tokens.values()), TOKENS)


def read_balance(records: Iterable[Record]) -> Balance:
    """Adds up what records say under `ledger/`; all zero for a run that has no ledger."""
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
    return Balance(seconds=seconds, tokens=tokens, wall=wall)


def show_balance(console: Console, balance: Balance) -> None:
    """The ledger as tables: accounts and their shares, then tokens."""
    if not balance.wall:
        console.print("This run has no ledger in its metrics.", highlight=False)
        return
    console.print(_seconds_table(balance))
    if counts := balance.counts():
        console.print(_tokens_table(balance, counts))


def _seconds_table(balance: Balance) -> Table:
    accounts, stages = balance.accounts(), balance.stages
    whole = sum(accounts.values())
    table = Table(title=f"{balance.wall:,.1f} seconds of wall-clock, by account", title_justify="left")
    table.add_column("account")
    for title in ["seconds", "share", *stages]:
        table.add_column(title, justify="right")
    for account, spent in accounts.items():
        by_stage = [_cell(balance.seconds[stage].get(account, 0.0)) for stage in stages]
        table.add_row(account.replace("_", " "), f"{spent:,.2f}", f"{spent / whole:.1%}", *by_stage)
    sums = [f"{sum(balance.seconds[stage].values()):,.2f}" for stage in stages]
    table.add_section()
    table.add_row("sum", f"{whole:,.2f}", f"{whole / balance.wall:.1%}", *sums, style="bold")
    return table


def _tokens_table(balance: Balance, counts: Mapping[str, float]) -> Table:
    stages: Sequence[str] = [stage for stage in balance.stages if stage in balance.tokens]
    table = Table(title="Tokens", title_justify="left")
    table.add_column("")
    for title in ["all", *stages]:
        table.add_column(title, justify="right")
    for name, number in counts.items():
        by_stage = [f"{balance.tokens[stage].get(name, 0):,.0f}" for stage in stages]
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
