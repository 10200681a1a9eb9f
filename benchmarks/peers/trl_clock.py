"""The clock of a GRPOTrainer's steps, for the scripts beside this one, which run in a virtual environment of TRL's.

Invariant: a step lasts from the end of the step before it to its own end, once the device has done its work; so the
first step, which has none before it, never counts.
"""

import time
from collections.abc import Callable, Mapping

import torch
from transformers import TrainerCallback
from trl import GRPOTrainer


class StepClock(TrainerCallback):
    """When every step ended, and how long its rollouts took."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.rollouts: list[float] = []

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        self.ends.append(_now())

    def time_rollouts(self, trainer: GRPOTrainer, read: Callable[[Mapping[str, torch.Tensor]], None]) -> None:
        """Puts a clock around sampling and scoring; `read` is shown every batch, outside of the time it took."""
        sample = trainer._generate_and_score_completions

        def timed(inputs: object) -> dict[str, torch.Tensor]:
            began = _now()
            batch = sample(inputs)
            self.rollouts.append(_now() - began)
            read(batch)
            return batch

        trainer._generate_and_score_completions = timed

    def summarise(self, first: int) -> dict[str, list[float]]:
        """Seconds of the steps from the `first` on, counted from 0; 0 is left out, too."""
        first = max(first, 1)
        steps = [end - before for before, end in zip(self.ends[first - 1 :], self.ends[first:], strict=False)]
        rollouts = self.rollouts[first:]
        return {
            "step_seconds": steps,
            "rollout_seconds": rollouts,
            "update_seconds": [step - rollout for step, rollout in zip(steps, rollouts, strict=True)],
        }


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
