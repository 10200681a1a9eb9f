"""What a check returns: a kind, the cause, the figures behind it, and what to do about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """`Diagnosis(kind="stale_weights", cause="the engine samples with old weights", advice="...", evidence={...})`."""

    kind: str
    """One of those that its check lists in `doctor.catalogue`."""
    cause: str
    """What is wrong, in words."""
    advice: str
    """What to do about it."""
    evidence: Mapping[str, float] = field(default_factory=dict)
    """The figures by which it was found: `{"mean gap": 0.21, "tolerance": 0.001}`."""
    severity: Literal["sign", "alarm"] = "alarm"
    """An alarm makes results wrong or wastes the run; a sign is worth a look."""

    @property
    def sentence(self) -> str:
        """`the engine samples with old weights (mean gap 0.21, tolerance 0.001): check Engine.load`."""
        figures = ", ".join(f"{name} {value:.4g}" for name, value in self.evidence.items())
        return f"{self.cause}{f' ({figures})' if figures else ''}: {self.advice}"

    def to_json(self) -> dict[str, object]:
        """`{"kind": ..., "severity": ..., "sentence": ..., "cause": ..., "advice": ..., "evidence": {...}}`."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "sentence": self.sentence,
            "cause": self.cause,
            "advice": self.advice,
            "evidence": dict(self.evidence),
        }
