"""Whether an update moves the weights: advantages give a gradient, and the gradient moves the model that samples."""

from collections.abc import Mapping, Sequence

from turnwise.checks.diagnosis import Diagnosis

_TINY = 1e-12


def check_gradient(advantages: Sequence[Sequence[Sequence[float]]], metrics: Mapping[str, float]) -> list[Diagnosis]:
    """A diagnosis where advantages differ from 0 and every step's gradient is exactly 0."""
    if metrics.get("policy/steps_taken") or not metrics.get("policy/steps_idle"):
        return []
    largest = max((abs(one) for turns in advantages for turn in turns for one in turn), default=0.0)
    if largest <= _TINY:
        return []
    return [
        Diagnosis(
            kind="zero_gradient",
            cause="advantages differ from 0, and yet the gradient of the policy is exactly 0",
            advice="no weight that the loss depends on requires a gradient: check frozen parameters, "
            "model.lora.targets and the loss mask",
            evidence={"largest advantage": largest, "gradient norm": metrics.get("policy/grad_norm", 0.0)},
        )
    ]


def check_moved(before: Sequence[float], after: Sequence[float], metrics: Mapping[str, float]) -> list[Diagnosis]:
    """A diagnosis where an optimizer step was taken and no weight of the model has changed, by sums of its tensors."""
    steps, rate = metrics.get("policy/steps_taken", 0.0), metrics.get("optim/lr", 0.0)
    if not steps or not rate or list(before) != list(after):
        return []
    return [
        Diagnosis(
            kind="weights_unmoved",
            cause="the optimizer took a step, and no weight of the model has changed",
            advice="it holds other tensors than the model: make the optimizer after the model is on its device, "
            "in its precision, and wrapped",
            evidence={"steps taken": steps, "learning rate": rate, "tensors compared": float(len(after))},
        )
    ]
