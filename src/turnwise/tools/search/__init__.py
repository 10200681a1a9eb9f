"""Search over passages: indexes (BM25, dense, hybrid, a service over HTTP), the `search` tool, and a server."""

from typing import TYPE_CHECKING

from turnwise.lazy import lazy_names

if TYPE_CHECKING:
    from turnwise.tools.search.bm25 import Bm25Index, Bm25Settings
    from turnwise.tools.search.corpus import read_corpus
    from turnwise.tools.search.dense import DenseIndex, DenseSettings
    from turnwise.tools.search.http_index import HttpIndex
    from turnwise.tools.search.hybrid import HybridIndex
    from turnwise.tools.search.retrieval import Hit, Index, Passage, SearchDownError
    from turnwise.tools.search.tool import SEARCH_DOWN, Searcher, cut_text, open_index, search_tool, show_hits

__all__ = [
    "SEARCH_DOWN",
    "Bm25Index",
    "Bm25Settings",
    "DenseIndex",
    "DenseSettings",
    "Hit",
    "HttpIndex",
    "HybridIndex",
    "Index",
    "Passage",
    "SearchDownError",
    "Searcher",
    "cut_text",
    "open_index",
    "read_corpus",
    "search_tool",
    "show_hits",
]
__getattr__ = lazy_names(
    __name__,
    {
        "bm25": ["Bm25Index", "Bm25Settings"],
        "corpus": ["read_corpus"],
        "dense": ["DenseIndex", "DenseSettings"],
        "http_index": ["HttpIndex"],
        "hybrid": ["HybridIndex"],
        "retrieval": ["Hit", "Index", "Passage", "SearchDownError"],
        "tool": ["SEARCH_DOWN", "Searcher", "cut_text", "open_index", "search_tool", "show_hits"],
    },
)
