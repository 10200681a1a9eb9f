"""Whether answers to comparisons follow from what the same reply says: which of two comes first, by the years it gives.

A reply such as `A came out in 1979. B came out in 1955. 1955 is before 1979. <answer> B </answer>` is held against its
own years, whatever is true of A and B: one that contradicts them was guessed, or reasons in words alone.
"""

import json
import re
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from turnwise.evaluation.intervals import wilson_interval
from turnwise.rewards import final_answer
from turnwise.rewards.answers import normalise_answer

_YEAR = re.compile(r"\b\d{4}\b")
_ORDER = re.compile(r"\d{4} is before \d{4}\.")
_CHOICE = re.compile(r"(?:.*, )?(.+) or (.+)\?$")
_FIRST, _LATER = ("first", "earlier", "older"), ("later", "recently", "younger")


def measure_conclusions(*files: Path) -> dict[str, dict[str, float]]:
    """By file of episodes: comparisons whose reply gives two years and their order, and how many answer by them."""
    found = {}
    for file in files:
        rows = pq.read_table(file, columns=["task", "turns", "metrics"]).to_pylist()
        counts = Counter[str]()
        for row in rows:
            question = str(json.loads(row["task"])["data"]["question"])
            reply = row["turns"][-1]["action_text"] if row["turns"] else ""
            if (due := _conclude(question, reply)) is None:
                continue
            follows = normalise_answer(final_answer(reply) or "") == normalise_answer(due)
            counts.update(judged=1, follows=follows, right=dict(row["metrics"]).get("success", 0.0) == 1.0)
        low, high = wilson_interval(counts["follows"], counts["judged"])
        found[str(file)] = {
            "comparisons_with_years": counts["judged"],
            "answer_follows": round(counts["follows"] / counts["judged"], 3) if counts["judged"] else 0.0,
            "answer_follows_low": round(low, 3),
            "answer_follows_high": round(high, 3),
            "exact_match": round(counts["right"] / counts["judged"], 3) if counts["judged"] else 0.0,
        }
    return found


def _conclude(question: str, reply: str) -> str | None:
    """Which of the two in the question the reply's own years choose; None where it gives no two years in order."""
    order, choice = _ORDER.search(reply), _CHOICE.match(question)
    if order is None or choice is None:
        return None
    years = _YEAR.findall(reply[: order.start()])[-2:]
    wants_first, wants_later = (any(word in question for word in words) for words in (_FIRST, _LATER))
    if len(years) < 2 or years[0] == years[1] or wants_first == wants_later:
        return None
    return choice[1] if (years[0] < years[1]) == wants_first else choice[2]
