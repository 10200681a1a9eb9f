"""Whether tools work: an exception of a tool's own is text that the model reads, so episodes go on without it."""

from collections.abc import Sequence

from turnwise.checks.diagnosis import Diagnosis


def check_broken_tools(broken: Sequence[str]) -> list[Diagnosis]:
    """Diagnoses of what `find_broken_tools` found, one for each tool."""
    return [
        Diagnosis(
            kind="tool_always_fails",
            cause=sentence,
            advice="mend it: the model reads the error as the tool's answer, and learns to do without",
        )
        for sentence in broken
    ]
