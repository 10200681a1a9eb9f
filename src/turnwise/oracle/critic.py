"""A critic with given values: exact ones, wrong ones, any table from contexts to numbers.

Invariant: it is read like the learner's own, through padded and packed rows, so that only its values differ.
Shapes: B rows padded to W, or B = 1 and rows end to end.
"""

import torch
from torch import nn

from turnwise.models.critic import Critic
from turnwise.oracle.exact import Context, Oracle, Values
from turnwise.seeds import derive_seed


class TableCritic(Critic):
    """Predicts `values[row so far]` after each token, and 0 for contexts not in the table, such as padding."""

    def __init__(self, values: Values) -> None:
        nn.Module.__init__(self)  # it has no backbone, which is what `Critic` would make
        self.values = values
        self.offset = nn.Parameter(torch.zeros((), dtype=torch.double))
        """Added to every value: a parameter for the optimizer, with a gradient to compare."""

    def forward(self, ids: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        where = torch.arange(ids.shape[1]).expand_as(ids) if positions is None else positions  # [B, W]
        values = [self._read(*row) for row in zip(ids.tolist(), where.tolist(), strict=True)]
        return torch.tensor(values, dtype=torch.double, device=ids.device) + self.offset  # [B, W]

    def _read(self, ids: list[int], positions: list[int]) -> list[float]:
        return [
            self.values.get(tuple(ids[place - position : place + 1]), 0.0) for place, position in enumerate(positions)
        ]


def wrong_values(oracle: Oracle) -> Values:
    """Half the exact value, plus an error in every context of about the size of a reward."""
    return {context: 0.5 * value + _error(context) for context, value in oracle.values.items()}


def _error(context: Context) -> float:
    return derive_seed("wrong value", *context) / 2**63 - 0.5
