"""What passes took of a GPU's memory, and whether larger ones would fit."""

import torch

_SHARE = 0.8
"""Of the memory that passes may take: allocations are of other sizes every time, and leave gaps."""


class PassMemory:
    """`memory = PassMemory(device)` before some passes on a GPU, and `memory.fits(2)` after them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.cuda.reset_peak_memory_stats(device)
        self._before = torch.cuda.memory_allocated(device)

    def fits(self, factor: float) -> bool:
        """Whether passes that take so many times as much would find the memory, beside what was there before them."""
        taken = torch.cuda.max_memory_allocated(self._device) - self._before
        unused, _ = torch.cuda.mem_get_info(self._device)
        room = unused + torch.cuda.memory_reserved(self._device) - self._before
        return factor * taken <= _SHARE * room
