"""`findings.jsonl`, one JSON object per line: the monitor's findings and the controller's actions.

Invariant: a resumed run's file equals that of the run that was never killed.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from turnwise.errors import RunError
from turnwise.runs.files import finite, write_text


class FindingsLog:
    """Appends to a `findings.jsonl`, which is created with its first line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, finding: Mapping[str, object]) -> None:
        """Appends `{"step": 40, "kind": "entropy_collapse", "sentence": ..., ...}`."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite(finding), ensure_ascii=False, allow_nan=False) + "\n")

    def truncate_after(self, step: int) -> None:
        """Drops findings that a resumed run will repeat, and an incomplete last line."""
        if not self.path.exists():
            return
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
        if kept:
            write_text(self.path, "".join(kept))
        else:
            self.path.unlink()


def read_findings(path: str | Path) -> list[dict[str, object]]:
    """All findings of a run; none if the file does not exist."""
    file = Path(path)
    if not file.exists():
        return []
    try:
        return [
            json.loads(line) for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1:] == "\n"
        ]
    except ValueError as error:
        raise RunError(f"{path}: invalid findings: {error}; remove the broken line to read the rest") from None
