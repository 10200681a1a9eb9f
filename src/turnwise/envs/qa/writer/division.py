"""Divides training questions into those that are demonstrated and those that RL learns on.

Invariant: a question that RL learns on is not demonstrated, unless its source has too few; and every demonstration is
complete: the expert found all supporting passages, and read the answer. The same arguments write the same bytes.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from pydantic import Field, NonNegativeInt, model_validator

from turnwise.envs.qa.env import SearchQA
from turnwise.envs.qa.formats import Question
from turnwise.envs.qa.writer.files import Source, explain_all, make_new, write_file
from turnwise.errors import ConfigError, EnvError
from turnwise.rewards import mentions
from turnwise.settings import Settings
from turnwise.spelling import suggest
from turnwise.tools.search.bm25 import Bm25Settings
from turnwise.tools.search.retrieval import Passage
from turnwise.types import Task

_SEED = 17


class Division(Settings):
    """How many questions are demonstrated; the others are for RL."""

    count: int = Field(default=30_000, ge=1)
    """Questions that templates write, of which the files `written-sft` and `written-rl` are parts."""
    bridges: NonNegativeInt = 0
    """Questions of type `bridge` that are written besides, among the others."""
    contrasts: NonNegativeInt = 0
    """Likewise of type `contrast`."""
    explain_bridges: bool = False
    """The folder's own questions that go from one passage to another get evidence, too."""
    written_sft: int = Field(ge=0)
    """The first so many: the file `written-sft`, of which some are demonstrated."""
    written_rl: int = Field(ge=0)
    """So many after them: the file `written-rl`, of which some are for RL."""
    demonstrated_written: dict[str, NonNegativeInt] = Field(default_factory=dict)
    """Of `written-sft`, at most so many of each type."""
    demonstrated_real: dict[str, NonNegativeInt] = Field(default_factory=dict)
    """Of the folder's own training questions, at most so many of each source."""
    needs_evidence: tuple[str, ...] = ()
    """Sources whose comparisons are demonstrated only with evidence: others show how to guess."""
    rl_written: int = Field(ge=0)
    """Of `written-rl`, the first so many are for RL, beside the folder's own that were not demonstrated."""
    in_both: tuple[str, ...] = ()
    """Sources of which there are too few: RL learns on what was demonstrated, too."""
    passages: int = Field(default=5, ge=1)
    """That a search of the expert shows, each cut to `passage_chars`."""
    passage_chars: int = Field(default=800, ge=1)
    bm25: Bm25Settings = Field(default_factory=Bm25Settings)
    """How words count in its searches."""

    @model_validator(mode="after")
    def _check_sums(self) -> Self:
        more = {name: number for name in ("bridges", "contrasts") if (number := getattr(self, name))}
        if self.written_sft + self.written_rl > self.count + sum(more.values()):
            besides = "".join(f", and {name} {number}" for name, number in more.items())
            raise ValueError(
                f"written_sft and written_rl are {self.written_sft + self.written_rl} questions and count is "
                f"{self.count}{besides}: raise count, or lower them"
            )
        if self.rl_written > self.written_rl:
            raise ValueError(
                f"rl_written is {self.rl_written} of the {self.written_rl} questions in written_rl: lower it, or raise "
                "written_rl"
            )
        return self


def write_divided(source: Source, folder: Path, division: Division, *, cache: str = "auto") -> Iterator[str]:
    """Writes `written-sft`, `written-rl`, `train-explained`, `sft` and `rl` into a folder that no other division has.

    There is a line about each, once it is written.
    """

    def write(name: str, questions: Sequence[Question], more: str = "") -> str:
        target = folder / f"{name}.jsonl.gz"
        return f"{target}: {write_file(target, questions)}{more}"

    real, about = explain_all(source, bridges=division.explain_bridges)
    sources = {question.source for question in real}
    for name in ("demonstrated_real", "needs_evidence", "in_both"):
        _require_known(name, getattr(division, name), sources, what="training question has the source")
    written = make_new(source, count=division.count, bridges=division.bridges, contrasts=division.contrasts)
    last = division.written_sft + division.written_rl
    written_sft, written_rl = written[: division.written_sft], written[division.written_sft : last]
    types = {question.type for question in written_sft}
    _require_known(
        "demonstrated_written", division.demonstrated_written, types, what="question in written-sft has the type"
    )
    if division.rl_written and not written_rl:
        raise EnvError(
            f"the templates write {len(written)} questions: written_sft takes the first {division.written_sft} and "
            "leaves none to written_rl; lower it"
        )
    yield write("written-sft", written_sft)
    yield write("written-rl", written_rl)
    write_file(folder / "train-explained.jsonl.gz", real)
    yield f"{folder / 'train-explained.jsonl.gz'}: {about}"
    demonstrated, rl = divide(written_sft, real, division)
    whole = keep_complete(demonstrated, source.passages, division, cache=cache)
    yield write("sft", whole, f"; left out {len(demonstrated) - len(whole)} that the expert does not answer by search")
    yield write("rl", [*rl, *written_rl[: division.rl_written]])


def divide(
    written: Sequence[Question], real: Sequence[Question], division: Division
) -> tuple[list[Question], list[Question]]:
    """The questions to demonstrate, and the real ones that RL learns on."""
    shuffled = list(real)
    random.Random(_SEED).shuffle(shuffled)
    demonstrated: list[Question] = []
    rl: list[Question] = []
    seen: Counter[str] = Counter()
    for question in shuffled:
        guessed = question.source in division.needs_evidence and "comparison" in question.type
        wanted = seen[question.source] < division.demonstrated_real.get(question.source, 0)
        shown = wanted and bool(question.evidence or not guessed)
        seen[question.source] += shown
        if shown:
            demonstrated.append(question)
        if not shown or question.source in division.in_both:
            rl.append(question)
    return _first_of_each_type(written, division.demonstrated_written) + demonstrated, rl


def keep_complete(
    questions: Sequence[Question], passages: Sequence[Passage], division: Division, *, cache: str = "auto"
) -> list[Question]:
    """Those whose demonstration shows all that its answer follows from."""
    if not questions:
        return []
    env = SearchQA(
        questions={"train": questions},
        corpus=passages,
        cache=cache,
        bm25=division.bm25.model_dump(),
        passages=division.passages,
        passage_chars=division.passage_chars,
    )
    complete = asyncio.run(_play(env))
    return [question for question, whole in zip(questions, complete, strict=True) if whole]


def _require_known(setting: str, names: Iterable[str], known: Collection[str], *, what: str) -> None:
    """A word that no question has would choose none of them, as if it had not been written."""
    for name in names:
        if name not in known:
            there = suggest(name, known) or f"; there are: {', '.join(sorted(known)) or 'none'}"
            raise ConfigError(f"{setting}: no {what} '{name}'{there}")


def _first_of_each_type(written: Sequence[Question], most: Mapping[str, int]) -> list[Question]:
    seen: Counter[str] = Counter()
    chosen = []
    for question in written:
        if seen[question.type] < most.get(question.type, 0):
            chosen.append(question)
        seen[question.type] += 1
    return chosen


async def _play(env: SearchQA) -> list[bool]:
    return [await _is_complete(env, task) for task in env.tasks("train")]


async def _is_complete(env: SearchQA, task: Task) -> bool:
    """Whether the expert's episode shows all supporting passages, and its answer in them."""
    live = env.spawn()
    shown = "\n".join(message.content for message in await live.reset(task, 0))
    while True:
        step = await live.step(live.expert())
        shown = "\n".join([shown, *(message.content for message in step.messages)])
        if step.done:
            answers = task.data["answers"]
            assert isinstance(answers, list)
            compared = str(answers[0]).lower() in ("yes", "no")
            read = compared or any(mentions(shown, str(answer)) for answer in answers)
            return step.metrics["gold_recall"] == 1.0 and read
