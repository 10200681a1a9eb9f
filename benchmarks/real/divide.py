"""Divides training questions into those that are demonstrated and those that RL learns on.

Invariant: a question that RL learns on is not demonstrated, unless its source has too few; and every demonstration is
complete: the expert found all supporting passages, and read the answer.
"""

import asyncio
import gzip
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turnwise.envs.qa.env import SearchQA
from turnwise.envs.qa.expert import mentions
from turnwise.types import Json, Task

Entry = Mapping[str, Json]

_SEED = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How many questions are demonstrated; the others are for RL."""

    real: Mapping[str, int]
    """By source."""
    written: Mapping[str, int]
    """By type: fewer comparisons than the writer makes, which are long and alike."""
    written_for_rl: int
    in_both: tuple[str, ...]
    """Sources of which there are too few: RL learns on what was demonstrated, too."""
    explained: bool
    """Comparisons of 2WikiMultihopQA are demonstrated only with evidence: others show how to guess."""
    passages: int
    """That a search shows, each cut to 800 characters."""


DIVISIONS: Final = {
    "smollm2": Division(
        real={"2wiki": 800, "hotpot": 281, "musique": 0},
        written={"compositional": 3226, "inference": 174, "comparison": 2200, "bridge_comparison": 1600},
        written_for_rl=700,
        in_both=("hotpot",),
        explained=False,
        passages=3,
    ),
    "qwen-500m": Division(
        real={"2wiki": 750, "hotpot": 350, "musique": 30},
        written={"compositional": 4000, "inference": 260, "comparison": 2200, "bridge_comparison": 1600},
        written_for_rl=600,
        in_both=("hotpot", "musique"),
        explained=True,
        passages=5,
    ),
    "qwen-500m-short": Division(
        real={"2wiki": 200, "hotpot": 130, "musique": 15},
        written={"compositional": 240, "inference": 20, "comparison": 110, "bridge_comparison": 80},
        written_for_rl=1600,
        in_both=(),
        explained=True,
        passages=5,
    ),
    "qwen-1.5b": Division(
        real={"2wiki": 750, "hotpot": 350, "musique": 30},
        written={"compositional": 2600, "inference": 170, "comparison": 1450, "bridge_comparison": 1050},
        written_for_rl=2000,
        in_both=(),
        explained=True,
        passages=5,
    ),
    "qwen-1.5b-all": Division(
        real={"2wiki": 1349, "hotpot": 561, "musique": 61},
        written={"compositional": 3300, "inference": 230, "comparison": 2000, "bridge_comparison": 1400},
        written_for_rl=600,
        in_both=("2wiki", "hotpot", "musique"),
        explained=True,
        passages=5,
    ),
}


def divide_questions(folder: Path, division: Division, *, corpus: Path, cache: str = "auto") -> dict[str, object]:
    """Reads the three files that `turnwise questions` wrote into the folder, and writes `sft` and `rl` beside them."""
    real = _read(folder / "train-explained.jsonl.gz")
    random.Random(_SEED).shuffle(real)
    demonstrated, rl = _divide_real(real, division)
    demonstrated = _choose_written(_read(folder / "written-sft.jsonl.gz"), division.written) + demonstrated
    env = SearchQA(
        questions={"train": demonstrated}, corpus=corpus, cache=cache, passages=division.passages, passage_chars=800
    )
    complete = asyncio.run(_play(env))
    rl += _read(folder / "written-rl.jsonl.gz")[: division.written_for_rl]
    sft = [entry for entry, whole in zip(demonstrated, complete, strict=True) if whole]
    return {"sft": _write(folder / "sft.jsonl.gz", sft), "rl": _write(folder / "rl.jsonl.gz", rl)}


def _divide_real(real: Sequence[Entry], division: Division) -> tuple[list[Entry], list[Entry]]:
    demonstrated: list[Entry] = []
    rl: list[Entry] = []
    seen: Counter[str] = Counter()
    for entry in real:
        source = str(entry["source"])
        guessed = division.explained and "comparison" in str(entry["type"]) and source == "2wiki"
        shown = seen[source] < division.real[source] and bool(entry.get("evidence") or not guessed)
        seen[source] += shown
        if shown:
            demonstrated.append(entry)
        if not shown or source in division.in_both:
            rl.append(entry)
    return demonstrated, rl


def _choose_written(written: Sequence[Entry], most: Mapping[str, int]) -> list[Entry]:
    seen: Counter[str] = Counter()
    chosen = []
    for entry in written:
        kind = str(entry["type"])
        if seen[kind] < most[kind]:
            chosen.append(entry)
        seen[kind] += 1
    return chosen


async def _play(env: SearchQA) -> list[bool]:
    return [await _is_complete(env, task) for task in env.tasks("train")]


async def _is_complete(env: SearchQA, task: Task) -> bool:
    """Whether the expert's episode shows all that its answer follows from."""
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


def _read(file: Path) -> list[Entry]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _write(file: Path, entries: Iterable[Entry]) -> dict[str, int]:
    listed = list(entries)
    lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in listed)
    file.write_bytes(gzip.compress(lines.encode(), mtime=0))
    return dict(Counter(f"{entry['source']} {entry['type']}" for entry in listed))
