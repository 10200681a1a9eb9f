"""Which rows an update may leave out, because their gradient is exactly zero.

Invariant: leaving them out changes nothing of a gradient but the order of its sums. A trajectory whose advantages are
all 0 has no policy gradient, unless the loss has a term besides: then every row is read. Weights stay those of the
whole mini-batch. Shapes: L tokens of all rows, T trajectories.
"""

from collections.abc import Sequence

import torch

from turnwise.credit.settings import CreditSettings
from turnwise.learner.batch import Batch
from turnwise.learner.settings import LearnerSettings
from turnwise.losses.settings import LossSettings


def skips_rows(settings: LearnerSettings, *, credit: CreditSettings, loss: LossSettings, device: torch.device) -> bool:
    """Whether rows without a gradient are left out: if asked for, or on a GPU, and the losses allow it."""
    asked = device.type == "cuda" if settings.skip_zero_rows is None else settings.skip_zero_rows
    other_terms = loss.entropy_coef > 0 or (loss.kl_coef > 0 and loss.kl_in == "loss") or credit.needs_critic
    return asked and loss.action_mask and loss.info.ignores_zero_advantage and not other_terms


def find_taught(batch: Batch, advantage: torch.Tensor) -> torch.Tensor:
    """The trajectories [T] with an advantage other than 0, by the advantage of each token [L]."""
    taught = torch.zeros(len(batch.group), dtype=torch.bool)  # [T]
    taught[batch.trajectory[batch.trained & (advantage != 0)]] = True
    return taught


def rows_to_read(batch: Batch, rows: Sequence[int], taught: torch.Tensor) -> list[int]:
    """The rows of a mini-batch that have a gradient, in whole trajectories; all of them where none has one."""
    owner = batch.row_trajectory.tolist()
    return [row for row in rows if taught[owner[row]]] or list(rows)


def mean_surprisal(batch: Batch, weights: torch.Tensor) -> float:
    """The mean negative logprob of all trained tokens, with weights [L]: an unbiased estimate of their entropy."""
    return float(-(weights * batch.logprob).sum() / weights.sum())
