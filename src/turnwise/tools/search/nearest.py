"""The vectors nearest to a query, by matrix product on a GPU or CPU, or by FAISS. Imported only when it is used.

Invariant: exact search finds the true best, and of equal ones the earlier, whatever the device.

Shapes: Q queries, P passages, D dimensions of a vector, K results.
"""

import copy
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from turnwise.errors import ToolError
from turnwise.tools.search.retrieval import Vectors

T = TypeVar("T", torch.Tensor, nn.Module)

_CELLS = 2**26
"""Scores held at once, so that many queries over many passages do not fill the memory."""
_DECIMALS = 5
"""A matrix product sums in another order for another number of queries; rounding keeps ranks from hanging on that."""


class Nearest(Protocol):
    """Cosines (Q, K) and places (Q, K), best first; a place of -1 stands for no result."""

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, npt.NDArray[np.int64]]: ...

    def save(self, folder: Path) -> None: ...


def pick_device(name: str) -> torch.device:
    """The device of this name; `auto` is the first GPU, or the CPU where there is none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ToolError(f"device '{name}' cannot be used here: {str(error).splitlines()[0]}") from None


class OnDevice(Generic[T]):
    """A tensor or model on a device: `OnDevice(model, device).here` is the one that this process can use.

    A process that was forked, as those that play demonstrations are, cannot use the GPU of its parent: there it is the
    one given, which stays on the CPU.
    """

    def __init__(self, on_cpu: T, device: torch.device) -> None:
        self._on_cpu: T = on_cpu
        self._moved: T = on_cpu
        self._moved_in = os.getpid()
        if device.type != "cpu":
            # A model moves in place, and a tensor does not.
            self._moved = (copy.deepcopy(on_cpu) if isinstance(on_cpu, nn.Module) else on_cpu).to(device)

    @property
    def here(self) -> T:
        return self._moved if os.getpid() == self._moved_in else self._on_cpu


def open_nearest(vectors: Vectors, faiss: str, device: str, folder: Path | None) -> Nearest:
    """FAISS where it is asked for, or installed with no GPU to do better; else the exact search by torch."""
    place = pick_device(device)
    if faiss or (place.type == "cpu" and find_spec("faiss") is not None):
        return Faiss(vectors, faiss or "Flat", folder)
    return Exact(vectors, place)


class Exact:
    """All inner products, then the best of them."""

    def __init__(self, vectors: Vectors, device: torch.device) -> None:
        self._vectors = OnDevice(torch.from_numpy(vectors), device)  # (P, D)

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, npt.NDArray[np.int64]]:
        rows = max(1, _CELLS // len(self._vectors.here))
        parts = [self._search(queries[first : first + rows], k) for first in range(0, len(queries), rows)]
        return np.concatenate([scores for scores, _ in parts]), np.concatenate([places for _, places in parts])

    @torch.inference_mode()
    def _search(self, queries: Vectors, k: int) -> tuple[Vectors, npt.NDArray[np.int64]]:
        vectors = self._vectors.here  # (P, D)
        asked = torch.from_numpy(queries).to(vectors.device)  # (Q, D)
        scores = torch.round((asked @ vectors.T) * 10**_DECIMALS)  # (Q, P), whole numbers
        # topk leaves open which of equal ones it takes, so none are: of equal scores the earlier place ranks higher.
        ranks = scores.long() * len(vectors) - torch.arange(len(vectors), device=scores.device)  # (Q, P)
        places = ranks.topk(k).indices  # (Q, K)
        found = scores.gather(1, places) / 10**_DECIMALS  # (Q, K)
        return found.cpu().numpy(), places.cpu().numpy()

    def save(self, folder: Path) -> None:
        return


class Faiss:
    """A FAISS index by its factory string; trained once and kept, since training may take minutes."""

    def __init__(self, vectors: Vectors, factory: str, folder: Path | None) -> None:
        self._faiss = import_module("faiss")
        self._kept = factory != "Flat"
        if self._kept and folder is not None:
            self._index = self._faiss.read_index(str(folder / "faiss.index"))
        else:
            self._index = self._build(vectors, factory)
        if hasattr(self._index, "nprobe"):
            # FAISS looks into one cell by default, where hardly anything is found.
            self._index.nprobe = max(1, self._index.nlist // 16)

    def _build(self, vectors: Vectors, factory: str):  # type: ignore[no-untyped-def]  # noqa: ANN202 (FAISS has no types)
        rows = np.ascontiguousarray(vectors)
        try:
            index = self._faiss.index_factory(rows.shape[1], factory, self._faiss.METRIC_INNER_PRODUCT)
            index.train(rows)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ToolError(f"faiss='{factory}' does not fit {len(rows)} passages: {reason}") from None
        index.add(rows)
        return index

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, npt.NDArray[np.int64]]:
        scores, places = self._index.search(np.ascontiguousarray(queries), k)
        return np.round(scores, _DECIMALS), places

    def save(self, folder: Path) -> None:
        if self._kept:
            self._faiss.write_index(self._index, str(folder / "faiss.index"))
