"""Checks, once before a forward is used, that it computes what the model computes without a cache.

The tokens are strided over the vocabulary, followed by those of a prompt of the run, where one is given. Two checks.
Structure: in float32 both must give the same logits apart from rounding, so a wrong angle, scale, cap or epsilon shows.
Precision: in the sampling dtype neither is exact, and a model may be ill-conditioned on the check's tokens, so each is
measured by its distance to float32, and the forward may be off by at most a few times the model's own error.
Shapes: N tokens, V vocabulary.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from turnwise.engines.local.cache import DecodeInputs, Forward, KVCache, PrefillInputs

TOLERANCE = 1e-3
"""The most that float32 logits may differ, as a share of the largest. Correct code differs by some 1e-6; an angle or a
scale that is off by a tenth, or an epsilon of 1e-3, by more than 1e-2."""
ERROR_RATIO, ERROR_SLACK = 2.5, 0.01
"""In half precision the forward may be as far from float32 as the model itself, times the one, plus the other."""
_TOKENS = 48
"""Tokens of the check, unless a layer has a window: then enough to exceed it."""
_MOST_TOKENS = 8192
"""A window beyond this is not checked: the logits of all tokens must fit in memory."""
_PRIVATE_WINDOWS = ("window_size", "attention_window_size")
"""Config keys of windows that some families apply by themselves."""
_LENGTH_STEP = 64
"""The engine reads keys in multiples of this, so a forward must ignore keys past the token."""

BuildForward = Callable[[PreTrainedModel, KVCache, torch.dtype | None], Forward | None]
"""The forward of a model over a cache, with matrix products in a dtype (None: that of the weights)."""


def find_disagreement(
    forward: Forward | None,
    model: PreTrainedModel,
    build: BuildForward,
    *,
    window: int | None,
    context_limit: int,
    autocast: torch.dtype | None,
    prompt_ids: Sequence[int] = (),
) -> str | None:
    """Why the forward must not be used with this model; None if it may. Without `forward`, checks structure alone.

    `window` is the longest of its attention windows; `autocast` is the caller's, in force or not.
    """
    device: torch.device = model.get_input_embeddings().weight.device
    ids = _choose_ids(model, window, context_limit, prompt_ids)  # [N]
    length = max(len(ids), min(-(-len(ids) // _LENGTH_STEP) * _LENGTH_STEP, context_limit))
    with torch.autocast(device.type, enabled=False):
        exact, rebuilt = _float32_logits(model, build, ids, length)  # [3, V] each, on the CPU
    if rebuilt is None:
        return "its float32 copy has a part of unknown architecture"
    difference = _distance(rebuilt, exact)
    if not difference <= TOLERANCE:
        return f"in float32 its logits are off by {difference:.2g} of the largest (at most {TOLERANCE:g})"
    if forward is None or (autocast or model.dtype) == torch.float32:
        return None
    own_error = _distance(_own_logits(model, ids.to(device)), exact)
    error = _distance(_cached_logits(forward, ids.to(device), length), exact)
    if not error <= ERROR_RATIO * own_error + ERROR_SLACK:
        return (
            f"in half precision it is {error:.2g} of the largest logit away from float32, and the model's own forward "
            f"without a cache {own_error:.2g}"
        )
    return None


def _float32_logits(
    model: PreTrainedModel, build: BuildForward, ids: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Logits by a float32 copy of the model, without a cache and by the forward built over it."""
    device = _device_with_room(model)
    # Tensors made in inference mode could not be concatenated, which the fused forward does with weights.
    with torch.inference_mode(False), torch.no_grad(), _full_float32():
        exact = copy.deepcopy(model).float().to(device).eval()
        forward = build(exact, KVCache(rows=1, dtype=None), None)
        there = ids.to(device)
        return _own_logits(exact, there), None if forward is None else _cached_logits(forward, there, length)


@contextmanager
def _full_float32() -> Iterator[None]:
    """Matrix products in full float32, even where the user allows tf32."""
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(allowed)


def _device_with_room(model: PreTrainedModel) -> torch.device:
    """The model's own device, unless the copy would not fit beside it: then the CPU, with torch ops for kernels."""
    device: torch.device = model.get_input_embeddings().weight.device
    if device.type != "cuda":
        return device
    free, _ = torch.cuda.mem_get_info(device)
    needed = 4 * sum(weight.numel() for weight in model.parameters())
    return device if 1.5 * needed < free else torch.device("cpu")


def _choose_ids(
    model: PreTrainedModel, window: int | None, context_limit: int, prompt_ids: Sequence[int]
) -> torch.Tensor:
    """Ids strided over the vocabulary, since neighbours in it are much alike, and the last of the prompt [N].

    Two of the three places compared are in the prompt's text, on which a model is as well-conditioned as it will be.
    """
    config = model.config.get_text_config()
    windows = [window, *(getattr(config, name, None) for name in _PRIVATE_WINDOWS)]
    wanted = max([_TOKENS, *(size + _TOKENS // 2 for size in windows if size is not None)])
    limit = min(context_limit, _MOST_TOKENS, getattr(config, "max_position_embeddings", None) or context_limit)
    count = max(3, min(wanted, limit))
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = (torch.arange(1, count + 1) * max(1, vocabulary // (count + 1))) % vocabulary
    text = torch.tensor(prompt_ids[-_TOKENS:], dtype=torch.long)
    return torch.cat([ids, text])[-limit:] if len(text) else ids


def _compared_places(count: int) -> tuple[int, int, int]:
    """The tokens whose logits are compared: the last of a first chunk, of a second one, and a decoded one."""
    return max(0, count * 2 // 3 - 1), count - 2, count - 1


def _own_logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """[3, V], on the CPU."""
    logits: torch.Tensor = model(input_ids=ids[None], use_cache=False).logits[0]  # [N, V]
    return logits[list(_compared_places(len(ids)))].float().cpu()


def _cached_logits(forward: Forward, ids: torch.Tensor, length: int) -> torch.Tensor:
    """[3, V], on the CPU: prefilled in two chunks, the last token by a decode step, over a cache of the check's own."""
    first, second, last = _compared_places(len(ids))
    engine_cache, forward.cache = forward.cache, KVCache(rows=1, dtype=forward.cache.dtype)
    forward.cache.reserve(length, 1)
    try:
        chunks = ((0, first + 1), (first + 1, second + 1))
        logits = [forward.prefill(_chunk(ids, start, end, length)) for start, end in chunks]
        place = torch.tensor([last], device=ids.device)
        inputs = DecodeInputs(ids=ids[place], positions=place, rows=torch.zeros_like(place), length=length)
        logits.append(forward.decode(inputs))
        return torch.cat(logits).float().cpu()
    finally:
        forward.cache = engine_cache


def _chunk(ids: torch.Tensor, start: int, end: int, length: int) -> PrefillInputs:
    """Tokens `start` to `end` of the only row."""
    positions = torch.arange(start, end, device=ids.device)
    zeros = torch.zeros_like(positions)
    return PrefillInputs(
        ids=ids[start:end],
        positions=positions,
        rows=zeros,
        chunk=zeros,
        column=positions - start,
        starts=torch.tensor([0, end - start], device=ids.device),
        slots=zeros[:1],
        width=end - start,
        length=length,
    )


def _distance(logits: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference of centred logits [3, V], as a share of the largest: softmax ignores a constant."""
    logits, exact = (one - one.mean(-1, keepdim=True) for one in (logits, exact))
    return float((logits - exact).abs().max() / exact.abs().max())
