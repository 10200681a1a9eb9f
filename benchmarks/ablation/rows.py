"""The rows of an ablation: the recipe's cold start, the recipe, and one for each change.

Invariant: a row starts from the recipe's cold start of its seed, or from one of its own that has the same change.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.ablation.changes import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: `Row(key="sft.epochs-1", label="sft.epochs=1", start="sft.epochs-1-cold-start", ...)`."""

    key: str
    """In the names of jobs and results."""
    label: str
    """On the page: a change as code."""
    start: str
    """The key of the cold start that it is trained from; of a cold start, its own."""
    change: Change | None = None
    about: str
    """What it is, for the page's list of rows."""

    @property
    def trained(self) -> bool:
        """Whether it goes on to reinforcement learning."""
        return self.key != self.start

    @property
    def counterpart(self) -> str:
        """The key of the recipe's own row that it is compared with; empty for those two."""
        if self.change is None:
            return ""
        return RECIPE.key if self.trained else COLD_START.key


COLD_START = Row(
    key="cold-start",
    label="cold start only",
    start="cold-start",
    about="the recipe after its demonstrations, `steps=0`",
)
RECIPE = Row(
    key="recipe",
    label="the recipe",
    start="cold-start",
    about="trained from that cold start, with the command's settings",
)


def make_rows(changes: Sequence[Change]) -> tuple[Row, ...]:
    """The recipe's two, then those of the changes; a cold start of a change's own is beneath it."""
    return (COLD_START, RECIPE, *(row for change in changes for row in _rows_of(change)))


def _rows_of(change: Change) -> Iterator[Row]:
    code = f"`{change.shown}`".replace("|", r"\|")  # within a table
    if not change.cold:
        about = f"the recipe's cold start, then trained with {code}"
        yield Row(key=change.key, label=code, start=COLD_START.key, change=change, about=about)
        return
    start = f"{change.key}-cold-start"
    about = f"a cold start of its own, then trained, both with {code}"
    yield Row(key=change.key, label=code, start=start, change=change, about=about)
    yield Row(key=start, label=f"{code}, cold start only", start=start, change=change, about="that cold start")
