"""Two evaluations of the same questions, before and after training, compared question by question.

Figures: success by source and type, questions won and lost, success where all supporting passages were found, and how
far training questions reach into those evaluated.
"""

import gzip
import json
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path

import pyarrow.parquet as pq

from turnwise.evaluation.intervals import wilson_interval
from turnwise.render import parse_text
from turnwise.rewards import final_answer
from turnwise.types import Message

_DRAWS = 10_000
_END = "<|im_end|>"
"""How the models of these runs end a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One question and how it was answered, before and after."""

    source: str
    type: str
    supporting_ids: tuple[str, ...]
    before: float
    after: float
    found_before: bool
    """Whether all supporting passages were found."""
    found_after: bool


def read_answers(before: Path, after: Path) -> list[Answered]:
    """Two `trajectories/evaluate-*.parquet` files with one episode per question, joined by task."""
    earlier, later = _read_episodes(before), _read_episodes(after)
    if earlier.keys() != later.keys():
        raise SystemExit(f"{before} and {after} are not of the same questions")
    return [_join(earlier[name], later[name]) for name in earlier]


def _read_episodes(file: Path) -> dict[str, tuple[dict[str, object], dict[str, float]]]:
    """Each task's data and its episode's metrics."""
    rows = pq.read_table(file, columns=["task_id", "task", "metrics"]).to_pylist()
    return {row["task_id"]: (_data(json.loads(row["task"])), dict(row["metrics"])) for row in rows}


def measure_habits(*files: Path) -> dict[str, dict[str, float]]:
    """How episodes search and end, by file: the share that repeats a query, and the share without an answer."""
    found = {}
    for file in files:
        episodes = [row["turns"] for row in pq.read_table(file, columns=["turns"]).to_pylist()]
        replies = [[parse_text(turn["action_text"].removesuffix(_END)) for turn in turns] for turns in episodes]
        queries = [[call.arguments for reply in episode for call in reply.tool_calls] for episode in replies]
        found[str(file)] = {
            "episodes": len(episodes),
            "repeated_a_query": _share(sum(len(set(asked)) < len(asked) for asked in queries), len(episodes)),
            "without_an_answer": _share(sum(not _answers(episode) for episode in replies), len(episodes)),
        }
    return found


def _answers(replies: Sequence[Message]) -> bool:
    return bool(replies) and not replies[-1].tool_calls and final_answer(replies[-1].content) is not None


def _data(task: dict[str, object]) -> dict[str, object]:
    data = task.get("data", task)
    assert isinstance(data, dict)
    return data


def _join(
    earlier: tuple[dict[str, object], dict[str, float]], later: tuple[dict[str, object], dict[str, float]]
) -> Answered:
    data, before, after = earlier[0], earlier[1], later[1]
    ids = data.get("supporting_ids")
    return Answered(
        source=str(data.get("source", "")),
        type=str(data.get("type", "")),
        supporting_ids=tuple(map(str, ids)) if isinstance(ids, list) else (),
        before=before.get("success", 0.0),  # cut off, as by a full context, before there was an answer
        after=after.get("success", 0.0),
        found_before=before.get("gold_recall") == 1.0,
        found_after=after.get("gold_recall") == 1.0,
    )


def compare_answers(answers: Sequence[Answered]) -> dict[str, object]:
    """Success by kind, won and lost, and success where all supporting passages were found."""
    kinds = sorted({_kind(one) for one in answers})
    found = ([one for one in answers if one.found_before], [one for one in answers if one.found_after])
    return {
        "by_type": {kind: _success([one for one in answers if _kind(one) == kind]) for kind in kinds},
        "paired": _compare_pairs(answers),
        "all_supporting_passages_found": {
            "before": _share(len(found[0]), len(answers)),
            "after": _share(len(found[1]), len(answers)),
            "success_when_found_before": _share(sum(one.before for one in found[0]), len(found[0])),
            "success_when_found_after": _share(sum(one.after for one in found[1]), len(found[1])),
        },
    }


def measure_overlap(
    answers: Sequence[Answered], written: Sequence[Collection[str]], real: Sequence[Collection[str]]
) -> dict[str, object]:
    """Success by how far the supporting passages of training questions, `written` and `real`, reach into these."""
    containing: dict[str, set[int]] = {}
    for number, ids in enumerate(written):
        for name in ids:
            containing.setdefault(name, set()).add(number)
    used = {name for ids in (*written, *real) for name in ids}
    inside: list[Answered] = []
    outside: list[Answered] = []
    unused: list[Answered] = []
    for one in answers:
        shared = set.intersection(*(containing.get(name, set()) for name in one.supporting_ids))
        (inside if shared else outside).append(one)
        if not used & set(one.supporting_ids):
            unused.append(one)
    low, high = wilson_interval(round(sum(one.after for one in outside)), len(outside))
    return {
        "all_passages_in_one_written_question": _success(inside),
        "others": _success(outside) | {"after_low": round(low, 3), "after_high": round(high, 3)},
        "no_passage_in_any_training_question": _success(unused),
        "no_passage_in_any_training_question_by_source": {
            source: _success([one for one in unused if one.source == source])
            for source in sorted({one.source for one in unused})
        },
    }


def read_supporting(file: Path) -> list[list[str]]:
    """The supporting ids of each question of a `.jsonl.gz` file."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["supporting_ids"] for line in lines]


def _kind(one: Answered) -> str:
    """MuSiQue and HotpotQA have types of their own, which are too few to tell apart."""
    return f"{one.source} {one.type}" if one.source == "2wiki" else one.source


def _success(answers: Sequence[Answered]) -> dict[str, float]:
    return {
        "questions": len(answers),
        "before": _share(sum(one.before for one in answers), len(answers)),
        "after": _share(sum(one.after for one in answers), len(answers)),
    }


def _compare_pairs(answers: Sequence[Answered]) -> dict[str, object]:
    """Won and lost, the difference with a 95% bootstrap interval over questions, and McNemar's exact test."""
    differences = [one.after - one.before for one in answers]
    won, lost = sum(one > 0 for one in differences), sum(one < 0 for one in differences)
    rng, count = random.Random(0), len(differences)
    means = sorted(sum(rng.choice(differences) for _ in differences) / count for _ in range(_DRAWS))
    tail = sum(comb(won + lost, fewer) for fewer in range(min(won, lost) + 1)) / 2 ** (won + lost)
    return {
        "won": won,
        "lost": lost,
        "difference": round(sum(differences) / count, 4),
        "low": round(means[_DRAWS // 40], 4),
        "high": round(means[-_DRAWS // 40 - 1], 4),
        "mcnemar_exact_p": round(min(1.0, 2 * tail), 4),
    }


def _share(part: float, whole: int) -> float:
    return round(part / whole, 3) if whole else 0.0
