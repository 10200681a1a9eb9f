"""Question sets from files, folders and the Hugging Face hub: by split, with every question that can be asked.

Invariant: what cannot be read is an error that names the file and the line, what is left out is counted aloud, and no
question is in two splits unless its files have it twice, which is logged.
"""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from turnwise.envs.qa.files import SUFFIXES, read_entries
from turnwise.envs.qa.formats import Aliases, LeftOutError, Question, read_question
from turnwise.errors import EnvError
from turnwise.rewards import normalise_answer
from turnwise.seeds import derive_seed
from turnwise.tools.search.retrieval import Passage
from turnwise.types import Json, Task

QuestionSet: TypeAlias = str | Path | Sequence[str | Path | Mapping[str, Json] | Question]
"""A file, an address on the hub, several of either, or questions at hand."""

_SPLITS = {"train": ("train",), "dev": ("dev", "validation"), "test": ("test",)}
_CORPUS = ("corpus.jsonl", "corpus.jsonl.gz", "corpus.parquet")
_LEARNT = ("train", "sft")
"""Splits that are trained on: the second is what recipes call questions that are only demonstrated (`sft.split`)."""
_logger = logging.getLogger(__name__)


def read_splits(
    questions: QuestionSet | Mapping[str, QuestionSet], *, test_share: float = 0.2, contexts: bool = True
) -> dict[str, list[Question]]:
    """The questions by split; without `contexts`, the passages that came with them are let go.

    A mapping names its splits. A folder has a file for each, `train.*`, `dev.*` (or `validation.*`) and `test.*`; where
    there is none for `test`, `dev` stands in. Of one set, the share `test_share` is held out, the same in every run.
    """
    if isinstance(questions, str | Path) and Path(questions).is_dir():
        questions = find_splits(Path(questions))
    if isinstance(questions, Mapping):
        splits = {split: read_questions(listed, contexts=contexts) for split, listed in questions.items()}
        if not splits:
            raise EnvError("there are no questions; give a file of them for each split")
    else:
        splits = _hold_out(read_questions(questions, contexts=contexts), test_share)
    _note_shared(splits)
    if "dev" in splits and "test" not in splits:
        splits["test"] = splits["dev"]
    return splits


def read_questions(questions: QuestionSet, *, contexts: bool = True) -> list[Question]:
    """The questions of one set, in order; ids are made distinct; one warning counts those left out."""
    listed = [questions] if isinstance(questions, str | Path) else list(questions)
    kept: list[Question] = []
    places: dict[str, str] = {}
    left_out: list[str] = []
    for where, entry, aliases in _entries(listed):
        try:
            question = entry if isinstance(entry, Question) else read_question(where, entry, aliases)
        except LeftOutError as reason:
            left_out.append(f"{where} {reason}")
            continue
        if question.id and question.id in places:
            raise EnvError(f"{where}: the id '{question.id}' is taken by {places[question.id]}; ids must differ")
        places[question.id] = where
        if not contexts and (question.context or question.gold):
            question = replace(question, context=(), gold=())
        kept.append(question)
    if left_out:
        total = len(kept) + len(left_out)
        _logger.warning("%d of %d questions are left out: %s", len(left_out), total, _first(left_out))
    if not kept:
        shown = ", ".join(str(item) for item in listed[:3] if isinstance(item, str | Path)) or "the list"
        raise EnvError(f"{shown}: there is no question here that can be asked; give at least one")
    return kept


def find_splits(folder: Path) -> dict[str, QuestionSet]:
    """The files of a folder by split."""
    found: dict[str, QuestionSet] = {}
    for split, stems in _SPLITS.items():
        files = [folder / f"{stem}{suffix}" for stem in stems for suffix in SUFFIXES]
        present = [file for file in files if file.is_file()]
        if len(present) > 1:
            raise EnvError(f"{folder}: {present[0].name} and {present[1].name} are both '{split}'; keep one of them")
        if present:
            found[split] = present[0]
    if not found:
        raise EnvError(f"{folder}: no questions here; a folder of them has train.jsonl and test.jsonl, or dev.jsonl")
    return found


def find_corpus(folder: Path) -> Path | None:
    """The corpus that lies beside the questions of a folder, if one does."""
    return next((folder / name for name in _CORPUS if (folder / name).is_file()), None)


def join_contexts(splits: Mapping[str, Sequence[Question]]) -> tuple[list[Passage], dict[str, list[Question]]]:
    """The passages that came with the questions, each once, and the questions with the ids of those that support them.

    So a public set can be searched as it comes; over all of its questions together, which is harder than over the ten
    or twenty passages of one.
    """
    ids: dict[tuple[str, str], str] = {}

    def name(question: Question) -> Question:
        here = [
            ids.setdefault((passage.title, passage.text), f"p{len(ids):06d}") if passage.text else ""
            for passage in question.context
        ]
        supporting = tuple(here[place] for place in question.gold)
        return replace(question, supporting_ids=supporting if all(supporting) else (), context=(), gold=())

    named = {split: list(map(name, questions)) for split, questions in splits.items()}
    return [Passage(id=found, title=title, text=text) for (title, text), found in ids.items()], named


def to_tasks(split: str, questions: Sequence[Question]) -> list[Task]:
    """Tasks whose data is plain JSON; a question without an id is called by its split and place."""
    return [
        Task(id=question.id or f"{split}-{place}", seed=place, data=_data(question))
        for place, question in enumerate(questions)
    ]


def _entries(listed: Sequence[object]) -> Iterator[tuple[str, object, Aliases]]:
    for number, item in enumerate(listed):
        if isinstance(item, str | Path):
            yield from read_entries(item)
        else:
            yield f"questions[{number}]", item, {}


def _hold_out(questions: list[Question], share: float) -> dict[str, list[Question]]:
    if not 0 < share < 1:
        raise EnvError(f"test_share is {share}; it is the share of one set that is held out, above 0 and below 1")
    if len(questions) < 2:
        raise EnvError("one question cannot be held out from itself; give at least 2, or a file for each split")
    order = sorted(range(len(questions)), key=lambda place: derive_seed("held out", questions[place].text))
    size = min(max(1, round(share * len(questions))), len(questions) - 1)
    held = set(order[:size])
    return {
        "train": [question for place, question in enumerate(questions) if place not in held],
        "test": [question for place, question in enumerate(questions) if place in held],
    }


def _note_shared(splits: Mapping[str, Sequence[Question]]) -> None:
    asked = {split: {normalise_answer(question.text) for question in listed} for split, listed in splits.items()}
    for split, learnt in itertools.product(asked.keys() - set(_LEARNT), _LEARNT):
        if shared := asked.get(learnt, set()) & asked[split]:
            message = "%d questions of '%s' are in '%s' as well, so what it says of them is not about new questions"
            _logger.warning(message, len(shared), split, learnt)


def _data(question: Question) -> dict[str, Json]:
    data: dict[str, Json] = {
        "question": question.text,
        "answers": list(question.answers),
        "supporting_titles": list(question.supporting_titles),
        "supporting_ids": list(question.supporting_ids),
    }
    known = {
        "hops": question.hops,
        "source": question.source,
        "type": question.type,
        "evidence": question.evidence,
    }
    return data | {key: value for key, value in known.items() if value}


def _first(reasons: Sequence[str]) -> str:
    return reasons[0] + (f", and {len(reasons) - 1} more" if len(reasons) > 1 else "")
