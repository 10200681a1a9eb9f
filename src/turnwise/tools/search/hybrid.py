"""`HybridIndex`: several indexes over the same passages, joined by reciprocal rank fusion.

    score(passage) = sum over indexes of weight / (constant + rank of the passage there),   rank = 1, 2, ...

A passage that an index does not list adds nothing there. Ranks alone count, so scores of any scale can be joined.
Source: Cormack, Clarke and Buettcher, SIGIR 2009; the weights are an addition.
"""

import math
from collections.abc import Sequence

from turnwise.errors import ToolError
from turnwise.tools.search.retrieval import Hit, Index, check_k, check_passages


class HybridIndex:
    """`HybridIndex([bm25, dense])`; ties go to the earlier passage."""

    def __init__(
        self,
        indexes: Sequence[Index],
        weights: Sequence[float] | None = None,
        *,
        constant: float = 60.0,
        depth: int = 100,
    ) -> None:
        """Checks that the indexes have the same passages.

        Args:
            indexes: What to fuse.
            weights: One per index; equal by default.
            constant: A larger one favours agreement between indexes over a first rank in one of them.
            depth: How many hits of each index are read, or `k` where that is more.
        """
        if not indexes:
            raise ToolError("a hybrid index joins others; give it at least one")
        self.passages = check_passages(indexes[0].passages)
        self._indexes = tuple(indexes)
        self._weights = tuple(weights) if weights is not None else (1.0,) * len(indexes)
        self._constant = constant
        self._depth = depth
        self._place = {passage.id: place for place, passage in enumerate(self.passages)}
        if any(tuple(index.passages) != self.passages for index in indexes):
            raise ToolError("a hybrid index joins indexes over the same passages, in the same order; these differ")
        if len(self._place) < len(self.passages):
            raise ToolError("two passages have the same id, so a hybrid index cannot tell them apart; rename one")
        if len(self._weights) != len(indexes) or not all(math.isfinite(w) and w > 0 for w in self._weights):
            raise ToolError(f"weights is {weights}; give {len(indexes)} positive numbers, one per index")
        if not (math.isfinite(constant) and constant >= 0) or depth < 1:
            raise ToolError(f"constant is {constant} and depth is {depth}; give at least 0 and at least 1")

    def __len__(self) -> int:
        return len(self.passages)

    def query(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best `k` passages for each query, by their ranks in all indexes together."""
        check_k(k)
        depth = max(k, self._depth)
        lists = [index.query(queries, depth) for index in self._indexes]
        return [self._fuse(ranked, k) for ranked in zip(*lists, strict=True)]

    def _fuse(self, lists: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
        scores: dict[int, float] = {}
        for weight, hits in zip(self._weights, lists, strict=True):
            for rank, hit in enumerate(hits, 1):
                place = self._place[hit.passage.id]
                scores[place] = scores.get(place, 0.0) + weight / (self._constant + rank)
        best = sorted(scores, key=lambda place: (-scores[place], place))[:k]
        return [Hit(passage=self.passages[place], score=scores[place]) for place in best]
