"""Warnings that repeat: the first is logged, then the tenth, the hundredth and so on, each with its count."""

import logging
from collections import Counter

_counts: Counter[tuple[str, str]] = Counter()


def warn_collapsed(logger: logging.Logger, subject: str, message: str) -> None:
    """Logs the message unless it is one of many about the same subject: `warn_collapsed(log, "tool 'x'", "...")`."""
    _counts[logger.name, subject] += 1
    count = _counts[logger.name, subject]
    if count == 10 ** (len(str(count)) - 1):
        logger.warning("%s%s", message, f" ({count} times so far)" if count > 1 else "")


def forget_repeats() -> None:
    """Counts from the start again, as a new run does."""
    _counts.clear()
