"""Questions over a corpus, to be answered with a search tool: HotpotQA and its kin, or one's own documents.

Invariant: `success` is strict exact match over all gold answers, whatever is paid; a supporting passage is paid for
once and a search is charged once, by the call that made it.
"""

import copy
import dataclasses
import functools
import json
import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from turnwise.envs.qa.data import QuestionSet, find_corpus, join_contexts, read_splits, to_tasks
from turnwise.envs.qa.expert import next_search, queries_from
from turnwise.envs.qa.formats import Question
from turnwise.envs.tool_env import ToolEnv
from turnwise.errors import EnvError
from turnwise.rewards import (
    GoldPassages,
    Reward,
    choose_rewards,
    exact_match,
    f1,
    final_answer,
    format_gated_exact_match,
    mentions,
)
from turnwise.rewards.retrieval import FOUND_GOLD, SEARCH_COST, normalise_title, texts
from turnwise.seeds import derive_seed
from turnwise.tools import Tool, tool
from turnwise.tools.search import (
    SEARCH_DOWN,
    Bm25Index,
    Hit,
    Index,
    Passage,
    SearchDownError,
    Searcher,
    cut_text,
    open_index,
    show_hits,
)
from turnwise.types import Json, Message, Step, Task, ToolCall, ToolResult

ANSWER = "Answer the question in as few words as you can, in <answer> tags."
"""The system message of the agent and of its baselines."""
SYSTEM = f"{ANSWER} First look things up with search, as often as you need."

_logger = logging.getLogger(__name__)


class SearchQA(ToolEnv):
    """`SearchQA(corpus="documents", questions="questions.jsonl")`; its expert searches for the supporting passages."""

    answer_instruction = ANSWER

    def __init__(
        self,
        *,
        questions: QuestionSet | Mapping[str, QuestionSet],
        corpus: str | Path | Sequence[Passage] | None = None,
        index: str = "bm25",
        bm25: Mapping[str, Json] | None = None,
        encoder: str | Mapping[str, Json] | None = None,
        url: str | None = None,
        cache: str = "auto",
        passages: int = 5,
        passage_chars: int = 1000,
        rewards: str | Mapping[str, float] | Sequence[str | Reward | Mapping[str, Json]] = (format_gated_exact_match,),
        found_gold: float = 0.0,
        search_cost: float = 0.0,
        max_turns: int = 5,
        test_share: float = 0.2,
        lazy: float = 0.0,
        system: str = SYSTEM,
    ) -> None:
        """Reads the questions and opens the index; the first time, that means to build it.

        Args:
            questions: A file, several, or a folder with a file for each split; or any of these by split. JSON lines,
                JSON or Parquet, in any of the known formats, here or at `hf://datasets/OWNER/NAME/PATH`.
            corpus: What is searched: a file, or a folder of text files. Left out, it is the `corpus.*` in the folder of
                the questions, or else the passages that came with them.
            index: `bm25`, `dense`, `hybrid` or `http`.
            bm25: For `bm25` and `hybrid`: how words count, such as `{title_weight: 3, k1: 0.9, b: 0.4}`.
            encoder: For `dense` and `hybrid`: its name, or its settings.
            url: For `http`: the address of the search service, which has the corpus.
            cache: Where a built index is kept: `auto`, `off` or a folder.
            passages: Passages that a search shows, each cut to `passage_chars` characters.
            rewards: What the answer is worth: weights (Agent-R1's `format_gated_exact_match`, `format_gated_f1`,
                `exact_match`, `f1`, `format`), or your own: `module:name`, or `{name: ..., weight: 0.1, args: {...}}`.
            found_gold: Paid for each supporting passage, the first time a search returns it.
            search_cost: Charged for each search.
            max_turns: Part of the task: the last turn must be the answer.
            test_share: The share held out for the split `test` where the questions are one set.
            lazy: The share of the expert's episodes that search for the question alone and answer from what it shows.
            system: The system message.
        """
        _check_numbers(lazy=lazy, passages=passages, passage_chars=passage_chars)
        found = _find_corpus(questions, corpus, index)
        splits = read_splits(questions, test_share=test_share, contexts=found is None and index != "http")
        if found is None and index != "http":
            found, splits = _join(splits)
        process = {FOUND_GOLD: found_gold, SEARCH_COST: search_cost}
        super().__init__(
            tasks={split: to_tasks(split, listed) for split, listed in splits.items()},
            rewards=choose_rewards(rewards),
            process={channel: weight for channel, weight in process.items() if weight},
            system=system,
            max_turns=max_turns,
        )
        opened = open_index(found, index, cache=cache, bm25=bm25, encoder=encoder, url=url)
        self._searcher, self._shelf = Searcher(opened, passages), _Shelf(opened.passages)
        self._passage_chars, self._lazy, self._local = passage_chars, lazy, bool(opened.passages)
        self._turnwise_own_tools = tuple(_choose_search(item, opened) for item in self._turnwise_own_tools)
        _check_gold(splits, opened)

    def showing(self, passages: int) -> Self:
        """The same environment, over the same index, whose searches show so many passages."""
        if passages < 1:
            raise EnvError(f"passages is {passages}; give at least 1")
        other = copy.copy(self)
        other._searcher = Searcher(self._searcher.index, passages)
        return other

    def show_supporting(self, task: Task) -> str:
        """The supporting passages of a task, as a search that found just these would show them."""
        wanted, known = texts(task.data.get("supporting_ids")), self._shelf.by_id
        if not wanted or not all(name in known for name in wanted):
            raise EnvError(f"task '{task.id}' has no supporting_ids that the corpus has: there is nothing to show")
        return show_hits([Hit(passage=known[name], score=0.0) for name in wanted], self._passage_chars)

    def begin(self, task: Task, episode_seed: int) -> None:
        self._task = task
        self._gold = GoldPassages.of(task, by_id=self._local)
        self._searches = 0
        self._unanswered = 0
        self._queries: list[str] = []
        self._read: list[Hit] = []
        self._is_lazy = random.Random(derive_seed(episode_seed, "lazy")).random() < self._lazy

    # The time is what the slowest index may take before it gives up by itself; the length is bounded by the passages'.
    @tool(timeout=120.0, max_chars=1_000_000)
    async def search(self, query: str) -> ToolResult:
        """Finds the passages that match a query best.

        Args:
            query: What to look for: names and key words.
        """
        try:
            hits = await self._searcher.find(query)
        except SearchDownError:
            self._unanswered += 1
            return ToolResult(content=SEARCH_DOWN, ok=False)
        return self._show(query, hits)

    def _search_now(self, query: str) -> ToolResult:
        return self._show(query, self._searcher.find_now(query))

    def _show(self, query: str, hits: Sequence[Hit]) -> ToolResult:
        self._searches += 1
        self._queries.append(query)
        self._read += hits
        new = self._gold.take(hit.passage for hit in hits)
        earned = {FOUND_GOLD: float(new), SEARCH_COST: -1.0}
        paid = {channel: value for channel, value in earned.items() if channel in self._turnwise_process}
        return ToolResult(content=show_hits(hits, self._passage_chars), rewards=paid)

    async def step(self, message: Message) -> Step:
        step = await super().step(message)
        metrics = {**step.metrics, "searches": float(self._searches), "searches_unanswered": float(self._unanswered)}
        if self._gold.recall is not None:
            metrics["gold_recall"] = self._gold.recall
        if step.done:
            answers = texts(self._task.data.get("answers"))
            predicted = None if message.tool_calls else final_answer(message.content)
            matched = float(exact_match(predicted, answers))
            metrics |= {"success": matched, "exact_match": matched, "f1": f1(predicted, answers)}
        return dataclasses.replace(step, metrics=metrics)

    def expert(self) -> Message:
        """Searches for the supporting passages, each by a title that it has read, then gives the gold answer.

        When lazy, it searches for the question alone. Where a question has `evidence`, it states it before the answer.
        A lazy expert gives the gold answer where it has read it, and else takes the best passage's title for one.
        """
        query = self._next_query()
        if query is not None:
            arguments = json.dumps({"query": query}, ensure_ascii=False)  # no model copies escapes
            call = ToolCall(id="", name="search", arguments=arguments)
            return Message(role="assistant", content="", tool_calls=(call,))
        evidence = "" if self._is_lazy else str(self._task.data.get("evidence") or "")
        return Message(role="assistant", content=f"{evidence} <answer> {self._expert_answer()} </answer>".lstrip())

    def _next_query(self) -> str | None:
        """What the expert searches for now; None when it is to answer."""
        assert self._turnwise_max_turns is not None
        if self.turns_taken >= self._turnwise_max_turns - 1:
            return None
        return next_search(
            str(self._task.data["question"]),
            () if self._is_lazy else texts(self._task.data.get("supporting_titles")),
            read=self._text_read(),
            found=[hit.passage.title for hit in self._read],
            searched=self._queries,
            follow=self._follow,
        )

    def _follow(self) -> str | None:
        """A query that leads on from the supporting passages that were read to a missing one, as a search has shown."""
        if not self._local:
            return None
        gold, question = self._gold, str(self._task.data["question"])
        read = self._text_of(hit for hit in self._read if gold.name(hit.passage) in gold.found)
        known = self._shelf.by_id if gold.by_id else self._shelf.by_title
        for name in gold.wanted:
            if name in gold.found or name not in known:
                continue
            for query in queries_from(question, read, f"{known[name].title}\n{known[name].text}"):
                if query not in self._queries and self._shows(query, name):
                    return query
        return None

    def _shows(self, query: str, name: str) -> bool:
        return name in (self._gold.name(hit.passage) for hit in self._searcher.find_now(query))

    def _text_read(self) -> str:
        return self._text_of(self._read)

    def _text_of(self, hits: Iterable[Hit]) -> str:
        shown = [(hit.passage.title, cut_text(hit.passage.text, self._passage_chars)) for hit in hits]
        return "\n".join(f"{title}\n{text}" for title, text in shown)

    def _expert_answer(self) -> str:
        gold = texts(self._task.data.get("answers"))[0]
        if not self._is_lazy or mentions(self._text_read(), gold) or not self._read:
            return gold
        return self._read[0].passage.title


class _Shelf:
    """An index's passages by id and by title, each made once for all episodes, when the first one asks."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages

    @functools.cached_property
    def by_id(self) -> dict[str, Passage]:
        return {passage.id: passage for passage in self._passages}

    @functools.cached_property
    def by_title(self) -> dict[str, Passage]:
        """As `normalise_title` writes it: of several, the first."""
        return {normalise_title(passage.title): passage for passage in reversed(self._passages)}


def _choose_search(item: Tool, index: Index) -> Tool:
    """The search without a task and a timer, over an index that never waits; other tools as they are."""
    if item is not SearchQA.search or not isinstance(index, Bm25Index):
        return item
    return dataclasses.replace(item, function=SearchQA._search_now, quick=True)


def _check_numbers(*, lazy: float, passages: int, passage_chars: int) -> None:
    if not 0 <= lazy <= 1:
        raise EnvError(f"lazy is {lazy}; it is a share, from 0 to 1")
    for name, value in {"passages": passages, "passage_chars": passage_chars}.items():
        if value < 1:
            raise EnvError(f"{name} is {value}; give at least 1")


def _find_corpus(
    questions: QuestionSet | Mapping[str, QuestionSet], corpus: str | Path | Sequence[Passage] | None, index: str
) -> str | Path | Sequence[Passage] | None:
    if corpus is None and index != "http" and isinstance(questions, str | Path) and Path(questions).is_dir():
        return find_corpus(Path(questions))
    return corpus


def _join(splits: Mapping[str, Sequence[Question]]) -> tuple[list[Passage], dict[str, list[Question]]]:
    passages, named = join_contexts(splits)
    if not passages:
        raise EnvError("there is nothing to search: these questions bring no passages; give corpus=FILE or FOLDER")
    return passages, named


def _check_gold(splits: Mapping[str, Sequence[Question]], index: Index) -> None:
    """Refuses supporting ids that the corpus lacks, and logs missing titles."""
    if not index.passages:
        return
    questions = [question for listed in splits.values() for question in listed]
    wanted = {normalise_title(title) for question in questions for title in question.supporting_titles}
    ids = {passage.id for passage in index.passages}
    for question in questions:
        if missing := [name for name in question.supporting_ids if name not in ids]:
            raise EnvError(
                f"question '{question.id or question.text[:60]}' names the supporting passage '{missing[0]}', which "
                "the corpus does not have; give the corpus that its ids come from, or leave supporting_ids out"
            )
    if lost := wanted - {normalise_title(passage.title) for passage in index.passages}:
        message = "%d of %d supporting titles are not in the corpus, such as '%s': no search can find these passages"
        _logger.warning(message, len(lost), len(wanted), min(lost))
