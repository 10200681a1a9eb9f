"""Scoring: the logprob and entropy of selected tokens under a causal language model.

Invariant: the LM head runs only on the states that predict selected tokens, and logprobs are those of the tempered
distribution in float32, so they can be compared with the sampled ones.
Shapes: B rows padded to W (or B = 1 and packed rows), m selected tokens, H hidden size, V vocabulary.
"""

import logging
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from turnwise.compute.attention import (
    mark_dynamic_length,
    needs_no_mask,
    uses_varlen_attention,
    varlen_arguments,
    varlen_attention,
)
from turnwise.compute.device import send
from turnwise.compute.head import LogitTransform, is_unmodified_linear, score_states
from turnwise.compute.layout import MicroBatch
from turnwise.errors import ModelError

logger = logging.getLogger(__name__)

ENTRY = "run_within_forward"
"""The method of a sharded model that runs a function of it between the hooks of its forward."""
_LOGITS_AT_ONCE = 2**27
"""The most logits at once of a head with adapters or hooks; beyond it, it runs in pieces, recomputed in backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The scores of the selected tokens, in the micro-batch's order."""

    logprob: torch.Tensor
    """[m] float."""
    entropy: torch.Tensor | None
    """[m] float: of the distribution of each token; None if not requested."""


def score(model: nn.Module, micro: MicroBatch, temperature: float, entropy: bool = True) -> Scores:
    """Scores the selected tokens of a micro-batch under a Hugging Face causal model, adapters included."""
    enter = getattr(model, ENTRY, None)
    if enter is None:
        logprob, entropies = _score(model, micro, temperature, entropy)
    else:
        logprob, entropies = enter(_score, micro, temperature, entropy)
    return Scores(logprob=logprob, entropy=entropies if entropy else None)


def _score(model: nn.Module, micro: MicroBatch, temperature: float, entropy: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs [m] and entropies [m]; a pair of tensors, in which a sharded model finds where backward begins."""
    hidden = hidden_states(backbone_of(model), micro.ids, micro.positions)  # [B, W, H]
    predicting = hidden.flatten(0, 1)[micro.before]  # [m, H]
    head = _head(model)
    if is_unmodified_linear(head):
        assert isinstance(head, nn.Linear)
        transform = LogitTransform(temperature=temperature, softcap=_softcap(model))
        return score_states(predicting, head, micro.target, transform, entropy=entropy)
    return _score_in_pieces(model, predicting, micro.target, temperature, entropy)


def backbone_of(model: nn.Module) -> nn.Module:
    """The model without its LM head; of a PeftModel, its base model's with the adapters inside."""
    find = getattr(model, "get_decoder", None)
    backbone = find() if find is not None else getattr(model, "base_model", None)
    if not isinstance(backbone, nn.Module) or backbone is model:
        raise ModelError(f"{type(model).__name__} is not a causal language model: it has no backbone below an LM head")
    return backbone


def hidden_states(backbone: nn.Module, ids: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
    """States [B, W, H] of ids [B, W], padded on the right; or of packed rows, whose `positions` restart at 0.

    No attention mask: padding comes after every real token and attention is causal, so none can see it; without
    a mask, attention takes its fastest path. Where positions restart, the backbone begins a new row.
    """
    arguments: dict[str, object] = {}
    if positions is not None:
        ids, arguments["position_ids"] = mark_dynamic_length(ids), mark_dynamic_length(send(positions, ids.device))
        if uses_varlen_attention(backbone):
            arguments |= varlen_arguments(positions, ids.device)
    hidden = backbone(input_ids=ids, use_cache=False, **arguments).last_hidden_state
    assert isinstance(hidden, torch.Tensor)
    return hidden


def check_scoring(model: nn.Module, device: torch.device) -> None:
    """Raises unless backbone and head, run separately, give the model's own logits: some families scale them."""
    ids = torch.arange(min(4, _vocabulary(model)), device=device)[None]  # [1, W]
    with torch.no_grad():
        apart = _logits(model, hidden_states(backbone_of(model), ids))  # [1, W, V]
        whole = model(input_ids=ids, use_cache=False).logits  # [1, W, V]
    if not torch.allclose(apart, whole, rtol=1e-2, atol=1e-2 * float(whole.abs().max())):
        raise ModelError(
            f"{type(model).__name__} changes its logits after the LM head in a way that is not supported: "
            "train a model of the Llama, Qwen, Mistral or Gemma families"
        )


def check_packing(model: nn.Module, device: torch.device, *, setting: str = "packing") -> None:
    """Raises if a packed row depends on the rows before it, as in a recurrent layer; `setting` turns packing off."""
    row = torch.arange(min(4, _vocabulary(model)), device=device)  # [W]
    positions = torch.arange(len(row), device=device).repeat(2)[None]  # [1, 2W]
    with torch.no_grad():
        behind = [
            hidden_states(backbone_of(model), torch.cat([before, row])[None], positions)[0, len(row) :]  # [W, H]
            for before in (row, torch.zeros_like(row))
        ]
    noise = 16 * torch.finfo(behind[0].dtype).eps * float(behind[0].abs().max())
    if not torch.allclose(behind[0], behind[1], rtol=0, atol=noise):
        raise ModelError(f"{type(model).__name__} lets tokens see across packed rows: set {setting}: false")


def supports_varlen_attention(model: nn.Module, device: torch.device) -> bool:
    """Whether a model gives packed rows the states of each row alone; tried on three short rows.

    A model that mixes tokens by other means than attention, or whose attention is not supported here, does not.
    """
    backbone = backbone_of(model)
    if not needs_no_mask(backbone):
        return False
    row = torch.arange(min(6, _vocabulary(model)), device=device)  # [W]
    branch = row.flip(0)[2:]  # [W − 2]: after the first two tokens of the row before it
    whole = [row, torch.cat([row[:2], branch]), row[:3]]
    packed = torch.cat([row, branch, row[:3]])[None]  # [1, …]
    positions = torch.cat([torch.arange(begin, len(one)) for begin, one in zip((0, 2, 0), whole, strict=True)])
    with torch.no_grad():
        alone = [hidden_states(backbone, one[None])[0] for one in whole]
    expected = torch.cat([alone[0], alone[1][2:], alone[2]])
    try:
        with varlen_attention(backbone):
            found = hidden_states(backbone, packed, positions[None])[0]
            _run_backward(backbone, found)
    except (ModelError, RuntimeError, TypeError) as error:  # its attention has a feature, or its device no kernel
        logger.info("%s does not support variable-length attention: %s", type(model).__name__, error)
        return False
    return torch.allclose(found, expected, rtol=0, atol=_rounding(expected))


def _run_backward(backbone: nn.Module, states: torch.Tensor) -> None:
    """Runs a backward pass, which may fail, and keeps no gradient."""
    trained = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    if trained:
        torch.autograd.grad(states.sum(), trained[0], allow_unused=True)


def _rounding(states: torch.Tensor) -> float:
    """The rounding error allowed between two computations of the same states, in their precision."""
    device = states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    return float(torch.finfo(dtype).eps ** 0.5 * states.abs().max())


def _score_in_pieces(
    model: nn.Module, states: torch.Tensor, target: torch.Tensor, temperature: float, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `score_states`, by calling the head as a module."""
    size = max(1, _LOGITS_AT_ONCE // _vocabulary(model))
    if len(states) <= size:
        return _score_piece(model, states, target, temperature, entropy)
    pieces = [
        checkpoint(_score_piece, model, some, ids, temperature, entropy, use_reentrant=False)
        for some, ids in zip(torch.split(states, size), torch.split(target, size), strict=True)
    ]
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def _score_piece(
    model: nn.Module, states: torch.Tensor, target: torch.Tensor, temperature: float, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = _logits(model, states)  # [m, V]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    log_total = logits.logsumexp(-1)  # [m]
    logprob = logits.gather(-1, target[:, None]).squeeze(-1) - log_total  # [m]
    if not entropy:
        return logprob, torch.zeros_like(logprob)
    mean_logit = (logits.softmax(-1) * logits).sum(-1)  # [m]
    return logprob, log_total - mean_logit


def _logits(model: nn.Module, states: torch.Tensor) -> torch.Tensor:
    logits = _head(model)(states)  # [..., V]
    assert isinstance(logits, torch.Tensor)
    cap = _softcap(model)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _softcap(model: nn.Module) -> float | None:
    cap: float | None = getattr(text_config(model), "final_logit_softcapping", None)
    return cap


def _head(model: nn.Module) -> nn.Module:
    find = getattr(model, "get_output_embeddings", None)
    head = find() if find is not None else None
    if not isinstance(head, nn.Module):
        raise ModelError(f"{type(model).__name__} has no LM head to score tokens with")
    return head


def _vocabulary(model: nn.Module) -> int:
    return int(getattr(text_config(model), "vocab_size", 0)) or 1


def text_config(model: nn.Module) -> object:
    """The configuration of the language model, also inside a multimodal one."""
    config = getattr(model, "config", None)
    find = getattr(config, "get_text_config", None)
    return config if find is None else find()
