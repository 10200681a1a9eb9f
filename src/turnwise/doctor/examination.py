"""The result of an examination: which checks ran, what they found, and what was predicted.

Invariant: a check that could not run is listed with the reason, never passed over.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from turnwise.checks.diagnosis import Diagnosis
from turnwise.doctor.catalogue import CHECKS, Check, Place

_SEVERAL = (
    "setting_without_effect",
    "tool_always_fails",
    "channel_never_paid",
    "channel_constant",
    "recorded_alarm",
    "sandbox_gaps",
)


@dataclass(slots=True, kw_only=True)
class Examination:
    """`examination.add("parity", check_parity(...))`; `examination.sound` when no alarm was raised."""

    subject: str
    place: Place
    found: list[tuple[str, Diagnosis]] = field(default_factory=list)
    """By the name of the check, in the order in which they were made."""
    ran: set[str] = field(default_factory=set)
    skipped: dict[str, str] = field(default_factory=dict)
    """By the name of the check, why it could not run."""
    notes: list[str] = field(default_factory=list)
    """What was measured or predicted, in words."""
    figures: dict[str, float] = field(default_factory=dict)
    """The same as numbers."""
    probed: "Examination | None" = None
    """Of a run: the preflight of its newest checkpoint."""

    @property
    def checks(self) -> list[Check]:
        """Those that run in this place."""
        return [check for check in CHECKS if self.place in check.places]

    @property
    def diagnoses(self) -> list[Diagnosis]:
        return [diagnosis for _, diagnosis in self.found]

    @property
    def sound(self) -> bool:
        """Whether no alarm was raised; signs are worth a look and no more."""
        own = not any(diagnosis.severity == "alarm" for diagnosis in self.diagnoses)
        return own and (self.probed is None or self.probed.sound)

    def add(self, check: str, found: Sequence[Diagnosis]) -> None:
        """Records that a check ran. Of several diagnoses of one kind the first is kept, for steps repeat them; but of
        those that name a setting, a tool, a channel or an alarm, all are."""
        self.ran.add(check)
        for one in found:
            known = {each.cause if one.kind in _SEVERAL else each.kind for each in self.diagnoses}
            if (one.cause if one.kind in _SEVERAL else one.kind) not in known:
                self.found.append((check, one))

    def add_by_kind(self, found: Sequence[Diagnosis]) -> None:
        """Records diagnoses of the checks that run in training, each under the check whose kind it has."""
        for diagnosis in found:
            check = next(one.name for one in CHECKS if "training" in one.places and diagnosis.kind in one.kinds)
            self.add(check, [diagnosis])

    def skip(self, check: str, reason: str) -> None:
        self.skipped[check] = reason

    def status(self, check: Check) -> str:
        """`ok`, `found` or `skipped`."""
        if any(name == check.name for name, _ in self.found):
            return "found"
        return "ok" if check.name in self.ran else "skipped"

    def to_json(self) -> dict[str, object]:
        return {
            "subject": self.subject,
            "sound": self.sound,
            "findings": [{"check": name, **diagnosis.to_json()} for name, diagnosis in self.found],
            "checks": {
                check.name: {
                    "status": self.status(check),
                    **(
                        {"reason": self.skipped.get(check.name, "not reached")}
                        if self.status(check) == "skipped"
                        else {}
                    ),
                }
                for check in self.checks
            },
            "figures": self.figures,
            "notes": self.notes,
            **({} if self.probed is None else {"checkpoint": self.probed.to_json()}),
        }
