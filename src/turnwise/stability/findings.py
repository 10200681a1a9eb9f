"""What a monitor can find, as typed values: a kind, how grave, the numbers behind it, and a plain sentence."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal[
    "variance_collapse",
    "variance_decline",
    "entropy_collapse",
    "template_collapse",
    "repetition",
    "gradient_spike",
    "success_drop",
    "invalid_actions",
    "early_stopping",
    "length_drift",
    "echo_trap",
]
Severity: TypeAlias = Literal["sign", "alarm"]
"""A sign is worth knowing; an alarm is worth acting on."""
Evidence: TypeAlias = Mapping[str, tuple[float, float]]
"""By vital: what it is now, and what it was while the run was well."""

SENTENCES: Mapping[Kind, str] = {
    "variance_collapse": "the members of a group are paid nearly the same, though the task is not solved",
    "variance_decline": "the members of a group are paid more and more alike, though the task is not solved",
    "entropy_collapse": "the policy hardly varies what it says any more",
    "template_collapse": "reasoning no longer depends on the prompt it answers, however varied it looks",
    "repetition": "episodes repeat themselves, turn after turn or phrase after phrase",
    "gradient_spike": "gradients are many times as long as they were",
    "success_drop": "success has fallen well below its best",
    "invalid_actions": "more and more actions cannot be read by the environment",
    "early_stopping": "more and more episodes give up after a single turn",
    "length_drift": "turns have grown much longer or shorter than they were",
    "echo_trap": "Echo Trap: groups no longer differ and other signs agree, so what is learnt is an echo of itself",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`Finding(kind="entropy_collapse", step=40, severity="sign", evidence={"token_entropy": (.2, .9)})`."""

    kind: Kind
    step: int
    severity: Severity
    evidence: Evidence

    @property
    def sentence(self) -> str:
        """`the policy hardly varies what it says any more (token_entropy 0.2, was 0.9)`."""
        numbers = ", ".join(f"{name} {value:.3g}, was {before:.3g}" for name, (value, before) in self.evidence.items())
        return f"{SENTENCES[self.kind]} ({numbers})"

    def to_json(self) -> dict[str, object]:
        """A line of a run's `findings.jsonl`."""
        return {
            "step": self.step,
            "kind": self.kind,
            "severity": self.severity,
            "sentence": self.sentence,
            "evidence": {name: {"now": now, "well": well} for name, (now, well) in self.evidence.items()},
        }
