"""Writes files of questions from a corpus: by templates, by a model, or a folder's training questions with evidence.

Invariant: no written question has the text of one that the folder has, or all supporting passages of one that must be
avoided; the same arguments write the same bytes.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from turnwise.envs.qa.data import find_corpus, find_splits, read_questions
from turnwise.envs.qa.formats import Question
from turnwise.envs.qa.writer.asked import Ask, ask_for_questions
from turnwise.envs.qa.writer.evidence import explain
from turnwise.envs.qa.writer.facts import FactBook
from turnwise.envs.qa.writer.questions import write_questions
from turnwise.envs.qa.writer.tracing import trace
from turnwise.errors import EnvError
from turnwise.rewards import normalise_answer
from turnwise.tools.search import open_index
from turnwise.tools.search.corpus import read_corpus
from turnwise.tools.search.retrieval import Passage


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A corpus, the training questions beside it, and the questions to avoid."""

    passages: list[Passage]
    book: FactBook
    train: list[Question]
    avoid: list[Question]


def read_source(corpus: Path, avoid: Sequence[Path] = ()) -> Source:
    """A corpus file, or a folder of `.txt` and `.md` files; or a folder with a corpus, whose splits other than `train`
    are avoided besides `avoid`."""
    passages, train, held_out = read_questioned(corpus, avoid)
    return Source(passages=passages, book=FactBook(passages), train=train, avoid=held_out)


def read_questioned(corpus: Path, avoid: Sequence[Path] = ()) -> tuple[list[Passage], list[Question], list[Question]]:
    """Passages to write about, the training questions beside them, and the questions to avoid."""
    splits: dict[str, list[Question]] = {}
    if corpus.is_dir() and (found := find_corpus(corpus)) is not None:
        splits = {split: read_questions(files, contexts=False) for split, files in find_splits(corpus).items()}
        corpus = found
    elif corpus.is_dir() and not any(path.suffix in (".txt", ".md") for path in corpus.rglob("*")):
        wanted = "corpus.jsonl, corpus.jsonl.gz or corpus.parquet, and no .txt or .md files"
        raise EnvError(f"{corpus} has no {wanted}: give a folder with some")
    train = splits.pop("train", [])
    held_out = [question for listed in splits.values() for question in listed]
    held_out += [question for file in avoid for question in read_questions(file, contexts=False)]
    return list(read_corpus(corpus)), train, held_out


def write_new(
    source: Source,
    target: Path,
    *,
    count: int,
    seed: int = 0,
    bridges: int = 0,
    contrasts: int = 0,
    take: slice = slice(None),
) -> str:
    """Writes new questions, of which `take` is a part, and returns a summary: `3 questions: 2 comparison, ...`."""
    written = make_new(source, count=count, seed=seed, bridges=bridges, contrasts=contrasts)
    if not written[take]:
        raise EnvError(f"{target}: the templates write {len(written)} questions, none of them in the part to take")
    return write_file(target, written[take])


def make_new(source: Source, *, count: int, seed: int = 0, bridges: int = 0, contrasts: int = 0) -> list[Question]:
    """New questions by templates, none of which the folder has."""
    texts = {normalise_answer(question.text) for question in source.train}
    written = write_questions(
        source.book, count=count, seed=seed, bridges=bridges, contrasts=contrasts, avoid=source.avoid
    )
    kept = [question for question in written if normalise_answer(question.text) not in texts]
    if not kept:
        raise EnvError(
            "the templates find no facts to ask about: they are for encyclopedic passages in English; "
            "let a model write the questions, with --endpoint URL"
        )
    return kept


async def write_asked(
    corpus: Path, target: Path, ask: Ask, *, avoid: Sequence[Path] = (), count: int, seed: int = 0, at_once: int = 16
) -> str:
    """Writes questions by a model about any documents: `3 questions: 2 comparison, ...; dropped 5: 4 no reply, ...`."""
    passages, train, held_out = read_questioned(corpus, avoid)
    index = open_index(passages, cache="off")
    asked = await ask_for_questions(index, ask, count=count, seed=seed, avoid=held_out, known=train, at_once=at_once)
    dropped = (
        f"dropped {asked.dropped.total()}: {_count(asked.dropped.elements())}" if asked.dropped else "none dropped"
    )
    if not asked.questions:
        raise EnvError(f"the model wrote no question that can be kept; {dropped}")
    return f"{write_file(target, asked.questions)}; {dropped}"


def write_explained(source: Source, target: Path) -> str:
    """Writes the folder's training questions again, with evidence where facts support their answers."""
    questions, summary = explain_all(source)
    write_file(target, questions)
    return summary


def explain_all(source: Source, *, bridges: bool = False) -> tuple[list[Question], str]:
    """The folder's training questions, with evidence where facts support their answers; and how many have some.

    With `bridges`, also those that go from one passage to another in ways that no template has.
    """
    if not source.train:
        raise EnvError("there are no training questions to explain: give a folder that has train.jsonl")
    found = [explain(question, source.book) for question in source.train]
    questions = [replace(one, evidence=evidence) for one, (_, evidence) in zip(source.train, found, strict=True)]
    if bridges:
        questions = [one if one.evidence else _trace(one, source.book) for one in questions]
    number = Counter(verdict for verdict, _ in found)
    summary = f"{len(found)} questions, {sum(bool(one.evidence) for one in questions)} with evidence; "
    return questions, f"{summary}facts contradict the answers of {number['contradicted']}"


def _trace(question: Question, book: FactBook) -> Question:
    gold = [book.by_id[name] for name in question.supporting_ids if name in book.by_id]
    return replace(question, evidence=trace(question, gold))


def to_entry(question: Question) -> dict[str, object]:
    """A question in the plain form that `search_qa` reads."""
    entry: dict[str, object] = {
        "id": question.id,
        "source": question.source,
        "question": question.text,
        "answers": list(question.answers),
        "supporting_titles": list(question.supporting_titles),
        "supporting_ids": list(question.supporting_ids),
        "hops": question.hops,
        "type": question.type,
        "evidence": question.evidence,
    }
    return {key: value for key, value in entry.items() if value not in (None, "")}


def _count(kinds: Iterable[str]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in sorted(Counter(kinds).items()))


def write_file(target: Path, questions: Sequence[Question]) -> str:
    """Writes questions that `search_qa` reads, and returns a summary: `3 questions: 2 comparison, ...`."""
    lines = "".join(json.dumps(to_entry(one), ensure_ascii=False) + "\n" for one in questions)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".gz":
        target.write_bytes(gzip.compress(lines.encode(), mtime=0))  # without the time: the same questions, same bytes
    else:
        target.write_text(lines, encoding="utf-8")
    return f"{len(questions)} questions: {_count(one.type for one in questions)}"
