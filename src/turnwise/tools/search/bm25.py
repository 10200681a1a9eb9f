"""`Bm25Index`: passages ranked by BM25, in memory or mapped from a file, with no network and no threads.

Invariant: equal passages and queries give equal hits on every machine, whether the index was built or loaded, and a
query that shares no word with any passage finds nothing rather than something arbitrary.
"""

import json
import logging
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from pydantic import Field

from turnwise.errors import ToolError
from turnwise.settings import Settings
from turnwise.tools.search.retrieval import Hit, Passage, best_positions, check_k, check_passages


@contextmanager
def _absent(module: str) -> Iterator[None]:
    """Makes importing the module fail within the block, unless it was imported before."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # the import system's own mark for "not there"
    try:
        yield
    finally:
        del sys.modules[module]


# bm25s starts jax where it is installed, and jax takes most of a GPU's memory from the training beside it.
with _absent("jax"):
    import bm25s

_WORD = re.compile(r"\w+")
_COMMON = 8
_ROW_BYTES = 2**28

# bm25s sets its own logger to DEBUG, which would reach every handler of the root logger.
logging.getLogger("bm25s").setLevel(logging.WARNING)


class Bm25Settings(Settings):
    """How words count; the defaults are bm25s's own."""

    k1: float = Field(default=1.5, gt=0)
    """How much further mentions of a word add: less, the smaller it is."""
    b: float = Field(default=0.75, ge=0, le=1)
    """How much long passages are held back: 0 not at all."""
    title_weight: int = Field(default=1, ge=1)
    """A word of the title counts as so many of the text: above 1 where queries are mostly names."""

    def describe(self) -> str:
        """Everything that the scores depend on beside the passages."""
        return f"lucene {self.model_dump_json()} bm25s {bm25s.__version__}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Postings:
    """Word `w` adds `scores[i]` to passage `places[i]`, for `i` from `starts[w]` to `starts[w + 1]`."""

    scores: npt.NDArray[np.float32]
    places: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]


class Bm25Index:
    """BM25 (Lucene's variant) over the words of titles and texts, lower-cased."""

    def __init__(self, passages: Sequence[Passage], settings: Bm25Settings | None = None) -> None:
        settings = settings or Bm25Settings()
        self.passages = check_passages(passages)
        # Numbered in order of appearance: bm25s's own vocabulary is a set, whose order changes between runs.
        words: dict[str, int] = {}
        ids = [
            [words.setdefault(word, len(words)) for word in _words_of(passage, settings.title_weight)]
            for passage in self.passages
        ]
        if not words:
            raise ToolError(f"none of the {len(self.passages)} passages has a word in it; nothing could be found")
        bm25 = bm25s.BM25(method="lucene", k1=settings.k1, b=settings.b, backend="numpy")
        bm25.index((ids, words), create_empty_token=False, show_progress=False)
        data, indices, indptr = (bm25.scores[part] for part in ("data", "indices", "indptr"))
        self._adopt(words, _Postings(scores=data, places=indices, starts=indptr.astype(np.int64)))

    @classmethod
    def load(cls, folder: Path, passages: Sequence[Passage]) -> Self:
        """The index that `save` wrote for these very passages, its postings mapped and not read."""
        words = json.loads((folder / "words.json").read_text(encoding="utf-8"))
        postings = _Postings(
            # Plain arrays over the mapped files: every slice of a memmap itself costs microseconds.
            scores=np.asarray(np.load(folder / "scores.npy", mmap_mode="r")),
            places=np.asarray(np.load(folder / "places.npy", mmap_mode="r")),
            starts=np.load(folder / "starts.npy"),
        )
        whole = postings.starts[-1] == len(postings.scores) == len(postings.places)
        if not whole or len(postings.starts) != len(words) + 1:
            raise ValueError("the words and the postings do not belong together")
        index = cls.__new__(cls)
        index.passages = check_passages(passages)
        index._adopt({word: number for number, word in enumerate(words)}, postings)
        return index

    def save(self, folder: Path) -> None:
        """Writes all but the passages into an existing folder."""
        (folder / "words.json").write_text(json.dumps(list(self._words), ensure_ascii=False), encoding="utf-8")
        np.save(folder / "scores.npy", self._postings.scores)
        np.save(folder / "places.npy", self._postings.places)
        np.save(folder / "starts.npy", self._postings.starts)

    def _adopt(self, words: Mapping[str, int], postings: _Postings) -> None:
        self._words = words
        self._postings = postings
        self._rows = _write_out(postings, len(self.passages))

    def __len__(self) -> int:
        return len(self.passages)

    def query(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best `k` passages for each query, best first; fewer where fewer match."""
        check_k(k)
        return [self._best(query, k) for query in queries]

    def _best(self, query: str, k: int) -> list[Hit]:
        known = [self._words[word] for word in _split(query) if word in self._words]
        if not known:
            return []
        scores = self._score(known)
        return [Hit(passage=self.passages[i], score=float(scores[i])) for i in best_positions(scores, k)]

    def _score(self, words: Sequence[int]) -> npt.NDArray[np.float32]:
        """One score per passage, summed in the order of the words, so that its last bit is always the same."""
        postings = self._postings
        total = np.zeros(len(self.passages), np.float32)
        for word in words:
            if word in self._rows:
                total += self._rows[word]
            else:
                span = slice(postings.starts[word], postings.starts[word + 1])
                np.add.at(total, postings.places[span], postings.scores[span])
        return total


def _write_out(postings: _Postings, passages: int) -> dict[int, npt.NDArray[np.float32]]:
    """Full rows of scores for words such as "the": adding a row is much faster than scattering its postings."""
    counts = np.diff(postings.starts)
    common = np.flatnonzero(counts * _COMMON > passages)
    common = common[np.argsort(-counts[common], kind="stable")][: _ROW_BYTES // (4 * passages)]
    rows: dict[int, npt.NDArray[np.float32]] = {}
    for word in map(int, common):
        span = slice(postings.starts[word], postings.starts[word + 1])
        rows[word] = np.zeros(passages, np.float32)
        rows[word][postings.places[span]] = postings.scores[span]
    return rows


def _words_of(passage: Passage, title_weight: int) -> list[str]:
    return _split(passage.title) * title_weight + _split(passage.text)


def _split(text: str) -> list[str]:
    # One letter may be written in several ways (é, or e and an accent); NFKC makes them one.
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return _WORD.findall(plain.lower())
