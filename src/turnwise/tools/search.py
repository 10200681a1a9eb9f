"""`Bm25Index` and its `search` tool: passages ranked by BM25, in memory, with no network and no threads.

Invariant: equal passages and queries give equal hits on every machine. Ties go to the earlier passage, and a
query that shares no word with any passage finds nothing rather than something arbitrary.
"""

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from turnwise.errors import ToolError
from turnwise.tools.tool import Tool, tool


@contextmanager
def _absent(module: str) -> Iterator[None]:
    """Within it, importing the module fails, unless somebody has imported it already."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # the import system's own sign for "not there"
    try:
        yield
    finally:
        del sys.modules[module]


# bm25s starts jax where it is installed, and jax takes most of a GPU's memory from the training beside it.
with _absent("jax"):
    import bm25s

_WORD = re.compile(r"\w+")

# bm25s sets its own logger to DEBUG, which would speak through any handler of the root logger.
logging.getLogger("bm25s").setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """`Passage(id="p7", title="Lumen", text="Lumen was founded by Ada Brandt.")`."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A passage and how well it matched; higher is better, always above zero."""

    passage: Passage
    score: float


class Bm25Index:
    """BM25 (Lucene's variant, k1=1.5, b=0.75) over the words of titles and texts, lower-cased."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = tuple(passages)
        if not self.passages:
            raise ToolError("a search index needs at least one passage; it was given none")
        # Numbered in order of appearance: bm25s's own vocabulary is a set, whose order changes between runs.
        self._words: dict[str, int] = {}
        ids = [
            [self._words.setdefault(word, len(self._words)) for word in _split(f"{passage.title} {passage.text}")]
            for passage in self.passages
        ]
        if not self._words:
            raise ToolError(f"none of the {len(self.passages)} passages has a word in it; nothing could be found")
        self._bm25 = bm25s.BM25(backend="numpy")
        self._bm25.index((ids, self._words), create_empty_token=False, show_progress=False)

    def __len__(self) -> int:
        return len(self.passages)

    def query(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best `k` passages for each query, best first; fewer where fewer match."""
        if k < 1:
            raise ToolError(f"k is {k}; ask for at least 1 passage")
        return [self._best(query, k) for query in queries]

    def _best(self, query: str, k: int) -> list[Hit]:
        known = [self._words[word] for word in _split(query) if word in self._words]
        if not known:
            return []
        scores: npt.NDArray[np.float32] = self._bm25.get_scores_from_ids(known)
        least = np.partition(scores, -k)[-k] if k < len(scores) else np.float32(0.0)
        chosen = np.flatnonzero((scores >= least) & (scores > 0))
        ranked = chosen[np.argsort(-scores[chosen], kind="stable")][:k]
        return [Hit(passage=self.passages[i], score=float(scores[i])) for i in ranked]


def search_tool(index: Bm25Index, k: int) -> Tool:
    """A tool named `search` that shows the best `k` passages, one per line: `[1] Title: text`."""
    if k < 1:
        raise ToolError(f"k is {k}; show at least 1 passage")
    return _Search(index=index, k=k).search


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """A class, so that the schema is made once and not for every index."""

    index: Bm25Index
    k: int

    @tool(quick=True)
    def search(self, query: str) -> str:
        """Finds the passages that match a query best.

        Args:
            query: What to look for: names and key words.
        """
        hits = self.index.query([query], self.k)[0]
        if not hits:
            return "No passage matches this query; try other words."
        return "\n".join(f"[{rank}] {hit.passage.title}: {hit.passage.text}" for rank, hit in enumerate(hits, 1))


def _split(text: str) -> list[str]:
    return _WORD.findall(text.lower())
