"""What retrieval allows: the share of questions whose supporting passages a search agent can reach.

`question`: one search for the question itself. `expert`: the expert's searches, by names it has read or for the
question, at most five. `titles`: a search for every supporting title, known beforehand. `answer_shown`: the answer
stands in what the expert's searches showed, cut as the agent sees it; yes and no always count.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turnwise.envs.qa.env import SearchQA
from turnwise.rewards import mentions
from turnwise.rewards.retrieval import texts
from turnwise.settings import parse_settings
from turnwise.tools.search.bm25 import Bm25Settings
from turnwise.types import Message, Task, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """One question, and what was reached of it."""

    source: str
    question: bool
    expert: bool
    titles: bool
    answer_shown: bool


def measure_ceilings(
    questions: Path,
    corpus: Path,
    *,
    passages: int,
    passage_chars: int,
    index: str = "bm25",
    encoder: str | None = None,
    bm25: Sequence[str] = (),
) -> dict[str, object]:
    """Shares by source, and of all."""
    counted = parse_settings(Bm25Settings, {}, overrides=bm25, source="--bm25").model_dump() if bm25 else None
    env = SearchQA(
        questions={"test": questions},
        corpus=corpus,
        index=index,
        bm25=counted,
        encoder=None if encoder is None else {"encoder": encoder, "pooling": "mean"},
        passages=passages,
        passage_chars=passage_chars,
        max_turns=6,
    )
    reached = asyncio.run(_measure(env))
    by_source: dict[str, list[Reached]] = defaultdict(list)
    for one in reached:
        by_source[one.source].append(one)
    shares = {source: _share(listed) for source, listed in sorted(by_source.items())}
    about = {"index": index, **({"bm25": counted} if counted else {})}
    return {**about, "passages": passages, "passage_chars": passage_chars, "all": _share(reached), **shares}


async def _measure(env: SearchQA) -> list[Reached]:
    return [await _reach(env, task) for task in env.tasks("test")]


async def _reach(env: SearchQA, task: Task) -> Reached:
    titles = texts(task.data["supporting_titles"])
    expert, shown = await _play_expert(env, task)
    answers = texts(task.data["answers"])
    compared = answers[0].lower() in ("yes", "no")
    return Reached(
        source=str(task.data["source"]),
        question=await _search(env, task, [str(task.data["question"])]) == 1.0,
        expert=expert == 1.0,
        titles=await _search(env, task, titles[:5]) == 1.0,
        answer_shown=compared or any(mentions(shown, answer) for answer in answers),
    )


async def _play_expert(env: SearchQA, task: Task) -> tuple[float, str]:
    """The recall of the expert's searches, without a guess of a title, and what they showed."""
    live = env.spawn()
    await live.reset(task, 0)
    shown, recall = "", 0.0
    while (message := live.expert()).tool_calls:
        query = message.tool_calls[0].arguments
        if not _is_known(query, str(task.data["question"]), shown):
            break
        step = await live.step(message)
        shown = "\n".join([shown, *(reply.content for reply in step.messages)])
        recall = step.metrics["gold_recall"]
    return recall, shown


def _is_known(arguments: str, question: str, shown: str) -> bool:
    """Whether a query is the question, a name that has been read, or words that have been, and not a guess."""
    query, known = str(json.loads(arguments)["query"]), f"{question}\n{shown}"
    return query == question or mentions(known, query) or all(mentions(known, word) for word in query.split())


async def _search(env: SearchQA, task: Task, queries: Sequence[str]) -> float:
    live = env.spawn()
    await live.reset(task, 0)
    recall = 0.0
    for query in dict.fromkeys(queries):
        call = ToolCall(id="", name="search", arguments=json.dumps({"query": query}, ensure_ascii=False))
        step = await live.step(Message(role="assistant", content="", tool_calls=(call,)))
        recall = step.metrics["gold_recall"]
    return recall


def _share(reached: Sequence[Reached]) -> dict[str, float]:
    count = len(reached)
    return {
        "questions": count,
        "question": round(sum(one.question for one in reached) / count, 3),
        "expert": round(sum(one.expert for one in reached) / count, 3),
        "titles": round(sum(one.titles for one in reached) / count, 3),
        "answer_shown": round(sum(one.answer_shown for one in reached) / count, 3),
    }
