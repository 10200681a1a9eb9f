"""The rows of RAGEN's comparison: before training, after the cold start, and StarPO with and without StarPO-S.

Invariant: rows that are trained differ by `stability.mode` alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: `Row(key="starpo-s", label="StarPO-S throughout", mode="always")`."""

    key: str
    """In the names of jobs and results."""
    label: str
    mode: Literal["monitor", "always", "auto"] | None = None
    """`stability.mode` of its training; None for a row without reinforcement learning."""

    @property
    def name(self) -> str:
        """With the key that `--rows` takes."""
        return f"{self.label} (`{self.key}`)"


UNTRAINED = Row(key="untrained", label="as the model comes")
COLD_START = Row(key="cold-start", label="cold start only")
TRAINED: Sequence[Row] = (
    Row(key="starpo", label="StarPO", mode="monitor"),
    Row(key="starpo-s", label="StarPO-S throughout", mode="always"),
    Row(key="auto", label="StarPO-S on an alarm", mode="auto"),
)
ROWS: Sequence[Row] = (UNTRAINED, COLD_START, *TRAINED)
