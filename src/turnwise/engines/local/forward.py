"""Chooses the forward and the sampler of a model: the fast ones where its architecture and device are known.

Invariant: every choice computes the same; only the speed differs.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from transformers import PreTrainedModel

from turnwise.engines.local.agreement import find_disagreement
from turnwise.engines.local.architecture import Architecture, read_architecture
from turnwise.engines.local.cache import Forward, KVCache
from turnwise.engines.local.fused import FusedForward, LayerOps
from turnwise.engines.local.hf import HFForward
from turnwise.engines.local.sampling import sample
from turnwise.engines.local.torch_ops import TorchOps
from turnwise.errors import ModelError

logger = logging.getLogger(__name__)

_FOREIGN_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError)
"""What a model's own code raises when it meets a cache that it does not know."""


class SampleRows(Protocol):
    """One token per row and its logprob; as `sampling.sample`."""

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


def find_forward(
    model: PreTrainedModel,
    cache: KVCache,
    *,
    context_limit: int,
    dtype: torch.dtype | None,
    prompt_ids: Sequence[int] = (),
) -> Forward:
    """The fused forward if it agrees with the model's own, `prompt_ids` included, else the model's own.

    `dtype` is autocast's.
    """
    windows = read_windows(model)
    window = max((size for size in windows.values() if size is not None), default=None)

    def build_fused(model: PreTrainedModel, cache: KVCache, dtype: torch.dtype | None) -> FusedForward | None:
        architecture = read_architecture(model, windows)
        if architecture is None:
            return None
        device: torch.device = model.get_input_embeddings().weight.device
        ops = _load_ops(architecture, positions=context_limit, dtype=dtype or model.dtype, device=device)
        return FusedForward(architecture, cache, ops, dtype=dtype)

    fused = build_fused(model, cache, dtype)
    if fused is None:
        reason = f"the fused forward does not know the architecture of this {model.config.model_type} model"
    elif fused.refresh():
        reason = "its weights do not stay where they are in memory"
    else:
        found = find_disagreement(
            fused,
            model,
            build_fused,
            window=window,
            context_limit=context_limit,
            autocast=dtype,
            prompt_ids=prompt_ids,
        )
        if found is None:
            return fused
        reason = f"the fused forward does not reproduce the model: {found}"
    _require_structure(model, windows, window=window, context_limit=context_limit)
    logger.warning("%s is sampled by its own forward, which is many times slower: %s", type(model).__name__, reason)
    return HFForward(model, cache, windows, slow_reason=reason)


def _require_structure(
    model: PreTrainedModel, windows: Mapping[str, int | None], *, window: int | None, context_limit: int
) -> None:
    """Refuses a model whose own forward fails or errs over our cache, as families with a state of their own do.

    In float32 alone: how the model's own code rounds is the model's own matter.
    """

    def build(model: PreTrainedModel, cache: KVCache, _dtype: torch.dtype | None) -> HFForward:
        return HFForward(model, cache, windows, slow_reason="")

    try:
        found = find_disagreement(None, model, build, window=window, context_limit=context_limit, autocast=None)
    except (ModelError, torch.OutOfMemoryError):
        raise
    except _FOREIGN_ERRORS as error:
        found = f"its forward fails ({type(error).__name__})"
    if found is not None:
        raise ModelError(
            f"the local engine cannot sample {model.config.model_type} models like this: over its KV cache, {found}; "
            "choose a model of another family (docs/families.md lists them)"
        )


def load_sampler(device: torch.device) -> SampleRows:
    """The Triton kernel on a GPU, else the torch sampler."""
    if device.type == "cuda" and _has_triton():
        from turnwise.engines.local.kernels.sampler import sample_rows

        return sample_rows
    return sample


def read_windows(model: PreTrainedModel) -> dict[str, int | None]:
    """The attention window of each kind of layer: `{"full_attention": None, "sliding_attention": 512}`."""
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


def _load_ops(architecture: Architecture, *, positions: int, dtype: torch.dtype, device: torch.device) -> LayerOps:
    if device.type == "cuda" and _has_triton():
        from turnwise.engines.local.kernels.ops import TritonOps

        return TritonOps(architecture, positions=positions, dtype=dtype, device=device)
    return TorchOps(architecture, positions=positions, dtype=dtype, device=device)


def _has_triton() -> bool:
    try:
        import triton  # noqa: F401  # only whether it can be imported
    except ImportError:
        return False
    return True
