"""`DenseIndex`: passages ranked by the cosine of vectors that an encoder makes of texts.

Invariant: importing this module loads neither torch nor anything optional; what a chosen setting needs is imported
when it is used, and what is not installed is named in one line with the extra that brings it.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, Self

import numpy as np
from pydantic import Field

from turnwise.errors import ToolError
from turnwise.settings import Settings
from turnwise.tools.search.retrieval import Hit, Passage, Vectors, check_k, check_passages

if TYPE_CHECKING:
    from turnwise.tools.search.nearest import Nearest


class DenseSettings(Settings):
    """Which encoder makes the vectors, and how they are searched."""

    encoder: str = Field(min_length=1)
    """A folder, or a name on the Hugging Face hub, such as `intfloat/e5-base-v2`."""
    pooling: Literal["auto", "mean", "cls"] = "auto"
    """How token vectors become one: `auto` does as a sentence-transformers model says, and takes the mean of others."""
    query_prefix: str = ""
    """Put before each query; e5 models were trained with `"query: "`."""
    passage_prefix: str = ""
    """Put before each passage; e5 models were trained with `"passage: "`."""
    max_tokens: int = Field(default=256, ge=2)
    """Longer texts are cut."""
    batch: int = Field(default=64, ge=1)
    """Texts encoded at once."""
    device: str = "auto"
    """Where the encoder runs and the vectors are searched; `auto` is the first GPU, or the CPU where there is none."""
    faiss: str = ""
    """A FAISS factory string, such as `IVF1024,Flat`; empty searches exactly, with FAISS on a CPU that has it."""


class Encoder(Protocol):
    """Texts to vectors of length 1, one row per text, in order."""

    def encode_queries(self, texts: Sequence[str]) -> Vectors: ...

    def encode_passages(self, texts: Sequence[str]) -> Vectors: ...


class DenseIndex:
    """`DenseIndex(passages, load_encoder(settings))`; every passage matches a query, more or less."""

    def __init__(self, passages: Sequence[Passage], encoder: Encoder, *, faiss: str = "", device: str = "auto") -> None:
        """Encodes the passages, which may take long; see `load`."""
        self.passages = check_passages(passages)
        self._encoder = encoder
        self._vectors = encoder.encode_passages([f"{passage.title}\n{passage.text}" for passage in self.passages])
        self._nearest = _open_nearest(self._vectors, faiss, device)

    @classmethod
    def load(
        cls, folder: Path, passages: Sequence[Passage], encoder: Encoder, *, faiss: str = "", device: str = "auto"
    ) -> Self:
        """The index that `save` wrote for these very passages."""
        index = cls.__new__(cls)
        index.passages = check_passages(passages)
        index._encoder = encoder
        # "c" maps the file copy-on-write; torch warns about an array that is marked read-only.
        index._vectors = np.load(folder / "vectors.npy", mmap_mode="c")
        if len(index._vectors) != len(index.passages):
            raise ValueError(f"it has {len(index._vectors)} vectors for {len(index.passages)} passages")
        index._nearest = _open_nearest(index._vectors, faiss, device, folder)
        return index

    def save(self, folder: Path) -> None:
        """Writes all but the passages and the encoder into an existing folder."""
        np.save(folder / "vectors.npy", self._vectors)
        self._nearest.save(folder)

    def __len__(self) -> int:
        return len(self.passages)

    def query(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The nearest `k` passages for each query, nearest first; none for a blank one."""
        check_k(k)
        asked = [place for place, query in enumerate(queries) if query.strip()]
        found: list[list[Hit]] = [[] for _ in queries]
        if asked:
            vectors = self._encoder.encode_queries([queries[place] for place in asked])
            scores, near = self._nearest.search(vectors, min(k, len(self.passages)))
            for place, row, passages in zip(asked, scores, near, strict=True):
                found[place] = self._rank(row.tolist(), passages.tolist())
        return found

    def _rank(self, scores: Sequence[float], places: Sequence[int]) -> list[Hit]:
        known = sorted((-score, place) for score, place in zip(scores, places, strict=True) if place >= 0)
        return [Hit(passage=self.passages[place], score=-score) for score, place in known]


def require(module: str, purpose: str) -> None:
    """Raises a ToolError that names the extra, where an optional module is not installed."""
    if find_spec(module) is None:
        raise ToolError(f"{purpose} needs {module}, which is not installed: pip install 'turnwise[dense]'")


def _open_nearest(vectors: Vectors, faiss: str, device: str, folder: Path | None = None) -> "Nearest":
    if vectors.ndim != 2 or len(vectors) == 0:
        raise ValueError(f"vectors of the shape {vectors.shape} are not one row per passage")
    if faiss:
        require("faiss", f"faiss='{faiss}'")
    from turnwise.tools.search.nearest import open_nearest

    return open_nearest(vectors, faiss, device, folder)
