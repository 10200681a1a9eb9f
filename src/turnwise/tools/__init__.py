"""Tools: typed functions that a model may call, and the ready ones."""

from typing import TYPE_CHECKING

from turnwise.lazy import lazy_names
from turnwise.tools.batched import BatchedTool, batched_tool
from turnwise.tools.calculator import calculator
from turnwise.tools.python import python_tool
from turnwise.tools.running import abandoned_threads
from turnwise.tools.sandbox import Sandbox, SandboxSettings
from turnwise.tools.tool import Tool, tool
from turnwise.tools.toolset import OpenToolset, Toolset, index_tools, run_calls

if TYPE_CHECKING:
    from turnwise.tools.mcp import MCPTools
    from turnwise.tools.search import Bm25Index, Hit, Passage, Searcher, open_index, read_corpus, search_tool

__all__ = [
    "BatchedTool",
    "Bm25Index",
    "Hit",
    "MCPTools",
    "OpenToolset",
    "Passage",
    "Sandbox",
    "SandboxSettings",
    "Searcher",
    "Tool",
    "Toolset",
    "abandoned_threads",
    "batched_tool",
    "calculator",
    "index_tools",
    "open_index",
    "python_tool",
    "read_corpus",
    "run_calls",
    "search_tool",
    "tool",
]
# Search brings bm25s, which a recipe is read without.
__getattr__ = lazy_names(
    __name__,
    {
        "mcp": ["MCPTools"],
        "search": ["Bm25Index", "Hit", "Passage", "Searcher", "open_index", "read_corpus", "search_tool"],
    },
)
