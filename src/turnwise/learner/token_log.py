"""What the learner thinks of every token as an update begins: its logprob and entropy, from the first step's forward.

Invariant: nothing is computed for it, and only weights that no step of the update has moved are recorded: tokens of
later mini-batches, and those that are not read, are NaN. Shapes: L tokens of all rows, m of a micro-batch.
"""

import torch

from turnwise.compute.score import Scores
from turnwise.learner.batch import Batch, PerTurn
from turnwise.learner.parallel import Parallel


class TokenLog:
    """Filled by this rank's micro-batches of an update's first step, and read when all steps are over."""

    def __init__(self, batch: Batch, device: torch.device) -> None:
        self._steps = 0
        self._scores = torch.zeros(3, len(batch.ids), device=device)  # [3, L]: logprob, entropy, whether it was read

    def begin_step(self) -> None:
        """A step follows; the scores of the first one alone are kept."""
        self._steps += 1

    def add(self, token: torch.Tensor, scores: Scores) -> None:
        """The scores of the tokens [m] of a micro-batch; nothing waits for the device."""
        assert scores.entropy is not None
        if self._steps == 1:
            logprob, entropy = scores.logprob.detach(), scores.entropy.detach()  # [m]
            self._scores[:, token] = torch.stack([logprob, entropy, torch.ones_like(logprob)]).float()

    def by_turn(self, batch: Batch, parallel: Parallel, *, logprob: torch.Tensor | None) -> tuple[PerTurn, PerTurn]:
        """Logprobs and entropies of all ranks, turn by turn; none without a step. `logprob` [L] replaces the former."""
        if not self._steps:
            return (), ()
        own, entropy, read = parallel.sum_(self._scores.cpu())  # [L]
        unknown = read == 0  # [L]
        scored = own.masked_fill(unknown, torch.nan) if logprob is None else logprob  # [L]
        return batch.by_turn(scored), batch.by_turn(entropy.masked_fill(unknown, torch.nan))
