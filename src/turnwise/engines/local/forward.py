"""Which forward and which sampler a model gets: the lean ones where its anatomy and device are known.

Invariant: whatever is chosen computes the same; only its speed differs.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from transformers import PreTrainedModel

from turnwise.engines.local.architecture import Anatomy, read_anatomy
from turnwise.engines.local.cache import Decode, KeyValues, Prefill
from turnwise.engines.local.fused import LeanForward, Steps, agrees
from turnwise.engines.local.hf import WholeForward
from turnwise.engines.local.sampling import sample
from turnwise.engines.local.torch_ops import PlainSteps
from turnwise.errors import ModelError

_EXACT, _ROUNDED = 1e-3, 0.1
"""How far logits may lie apart, as a share of the largest: between float32 sums, and between half-precision ones."""


class Forward(Protocol):
    """Logits from tokens, over the keys and values of their slots."""

    @property
    def pads(self) -> bool: ...

    @property
    def replays_prefills(self) -> bool: ...

    def refresh(self) -> bool: ...

    def decode(self, aim: Decode) -> torch.Tensor: ...

    def prefill(self, aim: Prefill) -> torch.Tensor: ...


class SampleRows(Protocol):
    """One token per row and its logprob; `sampler.sample` says how."""

    def __call__(
        self,
        logits: torch.Tensor,
        uniform: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        *,
        greedy: bool,
        truncate: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


def find_forward(model: PreTrainedModel, cache: KeyValues, *, context_limit: int, dtype: torch.dtype | None) -> Forward:
    """The lean forward, if it computes what the model's own does; else the model's own. `dtype` is autocast's."""
    windows = read_windows(model)
    whole = WholeForward(model, cache, windows)
    anatomy = read_anatomy(model, windows)
    if anatomy is None:
        return whole
    device: torch.device = model.get_input_embeddings().weight.device
    steps = _load_steps(anatomy, positions=context_limit, dtype=dtype or model.dtype, device=device)
    lean = LeanForward(anatomy, cache, steps, dtype=dtype)
    exact = (dtype or model.dtype) == torch.float32
    if lean.refresh() or not agrees(lean, model, tolerance=_EXACT if exact else _ROUNDED):
        return whole
    return lean


def load_sampler(device: torch.device) -> SampleRows:
    """The kernel where Triton is, else plain torch."""
    if device.type == "cuda" and _has_triton():
        from turnwise.engines.local.kernels.sampler import sample_rows

        return sample_rows
    return sample


def read_windows(model: PreTrainedModel) -> dict[str, int | None]:
    """How far back each kind of layer sees: `{"full_attention": None, "sliding_attention": 512}`."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if not getattr(config, "use_sliding_window", True):
        window = None
    only = "full_attention" if window is None else "sliding_attention"
    kinds = getattr(config, "layer_types", None) or [only]
    known: Mapping[str, int | None] = {"full_attention": None, "sliding_attention": window}
    for kind in kinds:
        if kind not in known:
            raise ModelError(f"{config.model_type} has layers of kind '{kind}', which the local engine cannot cache")
    return {kind: known[kind] for kind in dict.fromkeys(kinds)}


def _load_steps(anatomy: Anatomy, *, positions: int, dtype: torch.dtype, device: torch.device) -> Steps:
    if device.type == "cuda" and _has_triton():
        from turnwise.engines.local.kernels.steps import KernelSteps

        return KernelSteps(anatomy, positions=positions, dtype=dtype, device=device)
    return PlainSteps(anatomy, positions=positions, dtype=dtype, device=device)


def _has_triton() -> bool:
    try:
        import triton  # noqa: F401  # found or not is all that is asked
    except ImportError:
        return False
    return True
