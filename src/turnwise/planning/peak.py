"""Peak memory on a CPU, which has no counter of its own: the bytes of all tensors that are alive, op by op."""

import weakref
from types import TracebackType
from typing import Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """`with PeakMemory() as memory: ...; memory.peak`: bytes of tensors made within it, at their most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.peak = self.now = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def __torch_dispatch__(
        self, func: object, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))  # type: ignore[operator]  # torch's own signature
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return

        def forget(_: object, key: int = key, size: int = size) -> None:
            if self._alive.pop(key, None) is not None:
                self.now -= size

        self._alive[key] = weakref.ref(storage, forget)
        self.now += size
        self.peak = max(self.peak, self.now)
