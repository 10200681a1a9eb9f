"""What every search backend is: queries in, ranked hits out; how scores become ranks, and passages one string.

Invariant: hits are ranked by score and, where scores are equal, by the order of the passages, in every index.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from turnwise.errors import ToolError

Vectors: TypeAlias = npt.NDArray[np.float32]
"""One row per text, each of length 1, so that an inner product is a cosine."""

_GROUP = 32
_ABOVE_ZERO = np.nextafter(np.float32(0), np.float32(1))
_TITLE_WORDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """`Passage(id="p7", title="Lumen", text="Lumen was founded by Ada Brandt.")`."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A passage and how well it matched: higher is better, on the scale of the index that found it."""

    passage: Passage
    score: float


@runtime_checkable
class Index(Protocol):
    """A search backend; those in this package answer from several threads at once."""

    @property
    def passages(self) -> Sequence[Passage]:
        """All it can find, in order; empty where they are kept elsewhere."""

    def query(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best `k` passages for each query, best first; fewer where fewer match."""


class SearchDownError(Exception):
    """A search service that gave no usable answer, retries included."""


def check_k(k: int) -> None:
    """Refuses a number of hits below 1."""
    if k < 1:
        raise ToolError(f"k is {k}; ask for at least 1 passage")


def check_passages(passages: Sequence[Passage]) -> tuple[Passage, ...]:
    """The passages, of which there must be one."""
    if not passages:
        raise ToolError("a search index needs at least one passage; it was given none")
    return tuple(passages)


def best_positions(scores: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.intp]:
    """Where the `k` highest scores above zero are, best first; ties go to the earlier place."""
    even = len(scores) - len(scores) % _GROUP
    # The best of each group: places j, j + even/32, j + 2·even/32, ...; what is left over stands for itself.
    tops = np.concatenate([scores[:even].reshape(_GROUP, -1).max(axis=0), scores[even:]])
    # k groups have a score at or above the k-th best top, so nothing below it can be among the best k. Sorting out
    # the tops alone is several times faster than sorting out all scores.
    least = np.partition(tops, -k)[-k] if k < len(tops) else np.float32(0.0)
    chosen = np.flatnonzero(scores >= max(least, _ABOVE_ZERO))
    return chosen[np.argsort(-scores[chosen], kind="stable")][:k]


def title_from(text: str) -> str:
    """The first words of a text, for a passage that has no title."""
    words = text.split()
    return " ".join(words[:_TITLE_WORDS]) + (" ..." if len(words) > _TITLE_WORDS else "")


def read_contents(contents: str) -> tuple[str, str]:
    """Title and text from one string whose first line is the title, as Wikipedia dumps for search agents have it."""
    first, newline, rest = contents.partition("\n")
    if not newline or not rest.strip():
        return "", contents.strip()
    title = first.strip()
    if len(title) > 1 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return title, rest.strip()


def write_contents(passage: Passage) -> str:
    """What `read_contents` reads back."""
    return f"{' '.join(passage.title.split())}\n{passage.text}"
