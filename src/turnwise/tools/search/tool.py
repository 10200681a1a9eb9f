"""The `search` tool over any index, and `open_index`, which makes an index of a corpus or of a service's address.

Invariant: queries of one tick of the event loop, from any episode, reach a backend that answers many as fast as one in
one request; a service that is down becomes an observation, never an exception.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnwise.errors import ToolError
from turnwise.settings import parse_settings
from turnwise.spelling import suggest
from turnwise.tools.batching import TickBatcher
from turnwise.tools.running import run_in_thread
from turnwise.tools.search.bm25 import Bm25Index, Bm25Settings
from turnwise.tools.search.corpus import read_corpus
from turnwise.tools.search.dense import DenseIndex, DenseSettings
from turnwise.tools.search.http_index import HttpIndex
from turnwise.tools.search.hybrid import HybridIndex
from turnwise.tools.search.index_cache import cache_folder, digest_index, load_or_build
from turnwise.tools.search.retrieval import Hit, Index, Passage, SearchDownError, check_k
from turnwise.tools.tool import Tool, check_limits, tool
from turnwise.types import ToolResult

SEARCH_DOWN = "The search service did not answer; search again later, or go on with what you know."
"""What the agent reads, with `ok=False`, when a search service is down."""

KINDS = ("bm25", "dense", "hybrid", "http")

_MAX_BATCH = 64
_SECONDS = 60.0
_KEPT = 4096
"""Queries whose hits are kept: the members of a group search alike, and BM25 answers a query the same every time."""


def open_index(
    corpus: str | Path | Sequence[Passage] | None = None,
    kind: str = "bm25",
    *,
    cache: str | Path = "auto",
    bm25: Mapping[str, object] | Bm25Settings | None = None,
    encoder: str | Mapping[str, object] | DenseSettings | None = None,
    url: str | None = None,
) -> Index:
    """An index over a corpus, built once and then kept; or one that asks a service.

    Args:
        corpus: A file or folder that `read_corpus` reads, or passages.
        kind: `bm25`, `dense`, `hybrid` (the two, fused by rank) or `http`.
        cache: Where built indexes are kept: `auto` (the user's cache folder), `off`, or a folder.
        bm25: For `bm25` and `hybrid`: any of `Bm25Settings`, such as `{"title_weight": 3}`.
        encoder: For `dense` and `hybrid`: the encoder's name, or all of `DenseSettings`.
        url: For `http`: the address of the service, which has the corpus.
    """
    if kind not in KINDS:
        raise ToolError(f"there is no index '{kind}'{suggest(kind, KINDS)}; choose one of: {', '.join(KINDS)}")
    if (encoder is not None) != (kind in ("dense", "hybrid")):
        hint = "give one, such as intfloat/e5-base-v2" if encoder is None else "leave it out"
        raise ToolError(f"encoder: it makes the vectors of a dense or hybrid index, and this one is {kind}; {hint}")
    if bm25 is not None and kind not in ("bm25", "hybrid"):
        raise ToolError(
            f"bm25: it says how words count in a bm25 or hybrid index, and this one is {kind}; leave it out"
        )
    if (url is not None) != (kind == "http") or (corpus is None) != (kind == "http"):
        needs = "a url and no corpus, which the service has" if kind == "http" else "a corpus and no url"
        raise ToolError(f"an index of kind '{kind}' needs {needs}")
    if url is not None:
        return HttpIndex(url)
    assert corpus is not None
    passages = read_corpus(corpus) if isinstance(corpus, str | Path) else tuple(corpus)
    folder = cache_folder(cache)
    by_words = functools.partial(_open_bm25, passages, folder, _read_bm25(bm25))
    if kind == "bm25":
        return by_words()
    assert encoder is not None
    dense = _open_dense(passages, folder, _read_encoder(encoder))
    return dense if kind == "dense" else HybridIndex([by_words(), dense])


def search_tool(index: Index, k: int, *, max_chars: int = 4000) -> Tool:
    """A tool named `search` that shows the best `k` passages, one per line: `[1] Title: text`."""
    searcher = Searcher(index, k)
    check_limits("search", searcher.max_seconds, max_chars)
    bound = _Inline(searcher=searcher).search if isinstance(index, Bm25Index) else _Batched(searcher=searcher).search
    return dataclasses.replace(bound, timeout=searcher.max_seconds, max_chars=max_chars)


def show_hits(hits: Sequence[Hit], chars: int | None = None) -> str:
    """What the agent reads: `[1] Title: text` for each hit, best first, at most `chars` characters of each text."""
    if not hits:
        return "No passage matches this query; try other words."
    return "\n".join(
        f"[{rank}] {hit.passage.title}: {cut_text(hit.passage.text, chars)}" for rank, hit in enumerate(hits, 1)
    )


def cut_text(text: str, chars: int | None) -> str:
    """`cut_text("Oslo is a city", 4) == "Oslo ..."`; without `chars`, the whole text."""
    return text if chars is None or len(text) <= chars else f"{text[:chars].rstrip()} ..."


class Searcher:
    """Asks an index for the `k` best, for tools that need the hits themselves: `await searcher.find("Ada Brandt")`."""

    def __init__(self, index: Index, k: int) -> None:
        check_k(k)
        self.index = index
        self.k = k
        self.max_seconds = index.max_seconds + 1.0 if isinstance(index, HttpIndex) else _SECONDS
        """Seconds after which a search has its hits or has failed."""
        self._batcher = TickBatcher(self._ask, max_batch=_MAX_BATCH)
        query = self._query_one
        self._find_now = functools.lru_cache(maxsize=_KEPT)(query) if isinstance(index, Bm25Index) else query

    async def find(self, query: str) -> list[Hit]:
        """The hits for one query; a search service that is down raises SearchDownError."""
        if isinstance(self.index, Bm25Index):
            return self.find_now(query)
        return await self._batcher.submit(query)

    def find_now(self, query: str) -> list[Hit]:
        """The hits for one query, without batching."""
        return list(self._find_now(query))

    def _query_one(self, query: str) -> tuple[Hit, ...]:
        return tuple(self.index.query([query], self.k)[0])

    async def _ask(self, queries: Sequence[str]) -> list[list[Hit]]:
        if isinstance(self.index, HttpIndex):
            return await self.index.aquery(queries, self.k)
        return await run_in_thread(functools.partial(self.index.query, queries, self.k), _SECONDS, what="a search")


# Classes, so that the schema of each is made once and not for every index.
@dataclass(frozen=True, slots=True, kw_only=True)
class _Inline:
    searcher: Searcher

    @tool(quick=True)
    def search(self, query: str) -> str:
        """Finds the passages that match a query best.

        Args:
            query: What to look for: names and key words.
        """
        return show_hits(self.searcher.find_now(query))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batched:
    searcher: Searcher

    @tool
    async def search(self, query: str) -> ToolResult:
        """Finds the passages that match a query best.

        Args:
            query: What to look for: names and key words.
        """
        try:
            return ToolResult(content=show_hits(await self.searcher.find(query)))
        except SearchDownError:
            return ToolResult(content=SEARCH_DOWN, ok=False)


def _open_bm25(passages: Sequence[Passage], folder: Path | None, settings: Bm25Settings) -> Bm25Index:
    return load_or_build(
        folder,
        digest_index("bm25", passages, settings.describe()),
        load=lambda kept: Bm25Index.load(kept, passages),
        build=lambda: Bm25Index(passages, settings),
        save=Bm25Index.save,
    )


def _open_dense(passages: Sequence[Passage], folder: Path | None, settings: DenseSettings) -> DenseIndex:
    # Imported here alone: it loads torch and transformers, which take seconds.
    from turnwise.tools.search.encoders import fingerprint, load_encoder

    encoder = load_encoder(settings)
    options = {"faiss": settings.faiss, "device": settings.device}
    return load_or_build(
        folder,
        digest_index("dense", passages, fingerprint(settings)),
        load=lambda kept: DenseIndex.load(kept, passages, encoder, **options),
        build=lambda: DenseIndex(passages, encoder, **options),
        save=DenseIndex.save,
    )


def _read_bm25(bm25: Mapping[str, object] | Bm25Settings | None) -> Bm25Settings:
    return bm25 if isinstance(bm25, Bm25Settings) else parse_settings(Bm25Settings, bm25 or {}, source="bm25")


def _read_encoder(encoder: str | Mapping[str, object] | DenseSettings) -> DenseSettings:
    if isinstance(encoder, DenseSettings):
        return encoder
    data = {"encoder": encoder} if isinstance(encoder, str) else encoder
    return parse_settings(DenseSettings, data, source="encoder")
