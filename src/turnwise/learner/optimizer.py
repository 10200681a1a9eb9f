"""AdamW with a schedule that is a pure function of the step, and gradients that are checked before they are used.

Invariant: a gradient that is not finite never reaches the weights: the step is skipped and counted, and several in
a row end the run. A gradient that is exactly zero moves nothing either: neither momentum nor decay acts alone.
Weights in half precision are rounded copies of float32 masters, in which steps below their precision accumulate.
"""

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from turnwise.errors import TurnwiseError
from turnwise.learner.parallel import SINGLE, Parallel
from turnwise.learner.settings import OptimizerSettings

logger = logging.getLogger(__name__)


def learning_rate(settings: OptimizerSettings, step: int, total_steps: int) -> float:
    """The rate of step 0, 1, ...: with lr 1 and warmup_steps 4 it begins .25, .5, .75, 1."""
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    after = max(total_steps - settings.warmup_steps, 1)
    progress = min((step - settings.warmup_steps) / after, 1.0)
    match settings.schedule:
        case "constant":
            share = 1.0
        case "linear":
            share = 1.0 - progress
        case "cosine":
            share = 0.5 * (1.0 + math.cos(math.pi * progress))
    if settings.schedule != "constant":
        share = settings.final_lr_share + (1 - settings.final_lr_share) * share
    return settings.lr * share


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStep:
    """The result of one step."""

    grad_norm: float
    """Before clipping; may be NaN or infinite, and the step was then skipped."""
    outcome: Literal["taken", "idle", "skipped"]
    """`idle`: the gradient was exactly zero; `skipped`: it was not finite."""


class Optimizer:
    """Steps a module by the gradients that lie on its parameters, then clears them."""

    def __init__(
        self, module: nn.Module, settings: OptimizerSettings, *, total_steps: int, parallel: Parallel = SINGLE
    ) -> None:
        self.settings = settings
        self._parallel = parallel
        self.total_steps = total_steps
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._masters = [_master(p) for p in self._parameters]
        pairs = zip(self._parameters, self._masters, strict=True)
        self._rounded = [(parameter, master) for parameter, master in pairs if master is not parameter]
        """Half-precision weights, each with its master."""
        self._skipped_in_a_row = 0
        self._adam = torch.optim.AdamW(
            [
                {"params": [p for p in self._masters if p.ndim > 1], "weight_decay": settings.weight_decay},
                {"params": [p for p in self._masters if p.ndim <= 1], "weight_decay": 0.0},
            ],
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            fused=True,
        )

    def lr(self, step: int) -> float:
        return learning_rate(self.settings, step, self.total_steps)

    def step(self, step: int) -> OptimizerStep:
        """Applies the gradients at the rate of this step of the schedule."""
        return self.settle(step, float(self.launch(step)))

    def launch(self, step: int) -> torch.Tensor:
        """Applies the gradients, if finite and not all zero, and clears them; their norm [] is for `settle`.

        Asynchronous: whether a step is taken is decided on the device.
        """
        limit = self.settings.max_grad_norm
        self._take_gradients()
        norm = self._parallel.clip_gradients(self._masters, math.inf if limit is None else limit)
        for group in self._adam.param_groups:
            group["lr"] = self.lr(step)
        useless = ~norm.isfinite() | (norm == 0)
        self._adam.found_inf = useless.float()  # type: ignore[attr-defined]  # read by fused steps; 1 skips the step
        self._make_moments()
        self._adam.step()
        if self._rounded:
            parameters, masters = zip(*self._rounded, strict=True)
            self._copy(into=parameters, of=masters)
        self._adam.zero_grad(set_to_none=True)
        return norm

    def settle(self, step: int, norm: float) -> OptimizerStep:
        """The result of a launched step, by the norm of its gradient; to be called in order of steps."""
        outcome: Literal["taken", "idle", "skipped"] = "taken" if norm > 0 else "idle"
        if not math.isfinite(norm):
            outcome = "skipped"
            self._skipped_in_a_row += 1
            logger.warning("step %d skipped: the norm of its gradient is %s; weights and moments stay", step, norm)
        else:
            self._skipped_in_a_row = 0
        most = self.settings.max_skipped
        if self._skipped_in_a_row > most:
            raise TurnwiseError(
                f"training has diverged: {self._skipped_in_a_row} gradients in a row are not finite (step {step}); "
                "resume from an earlier checkpoint with a lower optimizer lr, or a higher optimizer max_skipped"
            )
        return OptimizerStep(grad_norm=norm, outcome=outcome)

    def _make_moments(self) -> None:
        """As AdamW does in its first step, but before any weight moves: with too little memory, none has."""
        for weight in self._masters:
            if weight.grad is not None and weight not in self._adam.state:
                self._adam.state[weight] = {
                    "step": torch.zeros((), dtype=torch.float32, device=weight.device),
                    "exp_avg": torch.zeros_like(weight),
                    "exp_avg_sq": torch.zeros_like(weight),
                }

    def _take_gradients(self) -> None:
        """Moves the gradients of half-precision weights to their masters."""
        given: list[torch.Tensor] = []
        taken: list[torch.Tensor] = []
        for parameter, master in self._rounded:
            if parameter.grad is not None:
                given.append(parameter.grad)
                taken.append(torch.empty_like(master))
                parameter.grad, master.grad = None, taken[-1]
        if given:
            self._copy(into=taken, of=given)

    @torch.no_grad()
    def _copy(self, *, into: Sequence[torch.Tensor], of: Sequence[torch.Tensor]) -> None:
        """All at once; sharded tensors, which have no such operation, by this rank's parts of them."""
        torch._foreach_copy_([*map(self._parallel.local, into)], [*map(self._parallel.local, of)])

    def state_dict(self) -> dict[str, object]:
        state: dict[str, object] = {"adam": self._adam.state_dict(), "skipped_in_a_row": self._skipped_in_a_row}
        masters = [master for _, master in self._rounded]
        return state | ({"masters": masters} if masters else {})

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        adam, skipped, masters = state["adam"], state["skipped_in_a_row"], state.get("masters", [])
        assert isinstance(adam, dict)
        assert isinstance(skipped, int)
        assert isinstance(masters, list)
        # torch keeps the tensors it is given: without a copy, two optimizers would share their moments.
        self._adam.load_state_dict(self._placed(copy.deepcopy(adam)))
        self._skipped_in_a_row = skipped
        if masters:
            with torch.no_grad():
                for (_, master), saved in zip(self._rounded, masters, strict=True):
                    master.copy_(self._parallel.place(saved, like=master))

    def _placed(self, adam: dict[str, dict[int, dict[str, torch.Tensor]]]) -> dict[str, object]:
        """AdamW's state with each moment spread as its weight is."""
        stepped = [weight for group in self._adam.param_groups for weight in group["params"]]
        state = {
            index: {name: self._parallel.place(value, like=stepped[index]) for name, value in moments.items()}
            for index, moments in adam["state"].items()
        }
        return {**adam, "state": state}


def _master(parameter: nn.Parameter) -> torch.Tensor:
    """The tensor that AdamW steps: the parameter itself, or a float32 copy of one in half precision."""
    if parameter.dtype not in (torch.bfloat16, torch.float16):
        return parameter
    return parameter.detach().float().requires_grad_()
