"""What the monitor can find: a kind, a severity, the numbers behind it, and a plain sentence."""

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
    "on_policy_clipping",
    "no_signal",
    "context_full",
    "echo_trap",
    "success_collapse",
]
Severity: TypeAlias = Literal["sign", "alarm"]
"""A sign is informative; the controller acts on an alarm."""
Evidence: TypeAlias = Mapping[str, tuple[float, float]]
"""By health metric: its level now, and its level while the run was healthy."""

SENTENCES: Mapping[Kind, str] = {
    "variance_collapse": "rewards within a group are nearly equal, though the task is not solved",
    "variance_decline": "rewards within a group vary less and less, though the task is not solved",
    "entropy_collapse": "the policy's entropy has collapsed: it hardly varies its output",
    "template_collapse": "reasoning no longer depends on the prompt, though its entropy has not fallen",
    "repetition": "episodes repeat whole turns or phrases",
    "gradient_spike": "gradient norms are many times their usual size",
    "success_drop": "success has fallen well below its best",
    "invalid_actions": "the environment cannot parse a growing share of actions",
    "early_stopping": "a growing share of episodes ends unsolved after a single turn",
    "length_drift": "turns have become much longer or shorter",
    "on_policy_clipping": "tokens are clipped before any update: sampler and learner disagree about the same weights",
    "no_signal": "nothing is being learnt: rewards do not differ, so there is no gradient",
    "context_full": "many episodes are cut off because the context is full, before the task's own turns are over, "
    "which a critic counts as if they went on: raise rollout.context_tokens or the model's context "
    "(model.small.positions), or lower rollout.turn_tokens",
    "echo_trap": "Echo Trap: rewards within groups no longer vary and other signs of collapse agree",
    "success_collapse": "what the policy could do is lost",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`Finding(kind="entropy_collapse", step=40, severity="sign", evidence={"token_entropy": (.2, .9)})`."""

    kind: Kind
    step: int
    severity: Severity
    evidence: Evidence
    causes: tuple[str, ...] = ()
    """What may be behind it, looked up in the run's data, in words."""
    env: str = ""
    """The environment of a mixture that it is about; empty: the whole run."""

    @property
    def sentence(self) -> str:
        """`turns have become much longer or shorter (response_length 90, was 30)`; of a mixture, `bandit: ...`."""
        words = f"{self.env}: {SENTENCES[self.kind]}" if self.env else SENTENCES[self.kind]
        if self.causes:
            return f"{words}; likely causes: {'; '.join(self.causes)}"
        numbers = ", ".join(f"{name} {value:.3g}, was {before:.3g}" for name, (value, before) in self.evidence.items())
        return f"{words} ({numbers})"

    def to_json(self) -> dict[str, object]:
        """A line of a run's `findings.jsonl`."""
        return {
            "step": self.step,
            "kind": self.kind,
            "severity": self.severity,
            "sentence": self.sentence,
            "evidence": {name: {"now": now, "healthy": healthy} for name, (now, healthy) in self.evidence.items()},
            **({"env": self.env} if self.env else {}),
        }
