"""How likely the policy finds tokens, and how undecided it was: logprob and entropy of selected tokens alone.

Invariant: the LM head runs on the states that predict selected tokens and on nothing else, and logprobs are those
of the distribution the sampler drew from (tempered, float32), so the two can be compared.
Shapes: B rows padded to W (or B = 1 and rows end to end), m selected tokens, H hidden size, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from turnwise.errors import ModelError
from turnwise.learner.batch import MicroBatch

_LOGITS_AT_ONCE = 2**27
"""The most logits held at a time; beyond it the head runs in pieces that are recomputed in the backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the policy says of the selected tokens, in the micro-batch's order."""

    logprob: torch.Tensor
    """[m] float."""
    entropy: torch.Tensor | None
    """[m] float: of the distribution the token was chosen from; None when not asked for."""


def score(model: nn.Module, micro: MicroBatch, temperature: float, entropy: bool = True) -> Scores:
    """Scores the selected tokens of a micro-batch under a Hugging Face causal model, adapters included."""
    hidden = hidden_states(trunk_of(model), micro.ids, micro.positions)  # [B, W, H]
    predicting = hidden.flatten(0, 1)[micro.position - 1]  # [m, H]
    size = max(1, _LOGITS_AT_ONCE // _vocabulary(model))
    if len(predicting) <= size:
        logprob, spread = _score_states(model, predicting, micro.target, temperature, entropy)
    else:
        pieces = [
            checkpoint(_score_states, model, states, target, temperature, entropy, use_reentrant=False)
            for states, target in zip(torch.split(predicting, size), torch.split(micro.target, size), strict=True)
        ]
        logprob = torch.cat([piece[0] for piece in pieces])  # [m]
        spread = torch.cat([piece[1] for piece in pieces])  # [m] or [0]
    return Scores(logprob=logprob, entropy=spread if entropy else None)


def trunk_of(model: nn.Module) -> nn.Module:
    """The model without its LM head; a PeftModel hands out its base model's, adapters inside."""
    find = getattr(model, "get_decoder", None)
    trunk = find() if find is not None else getattr(model, "base_model", None)
    if not isinstance(trunk, nn.Module) or trunk is model:
        raise ModelError(f"{type(model).__name__} is not a causal language model: it has no trunk beneath an LM head")
    return trunk


def hidden_states(trunk: nn.Module, ids: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
    """States [B, W, H] of ids [B, W], padded on the right; or of rows end to end, whose `positions` begin again at 0.

    No attention mask: padding comes after every real token and attention is causal, so none can see it; without
    a mask, attention takes its fastest path. Where positions begin again, the trunk lets none look back past it.
    """
    where = {} if positions is None else {"position_ids": positions}
    hidden = trunk(input_ids=ids, use_cache=False, **where).last_hidden_state
    assert isinstance(hidden, torch.Tensor)
    return hidden


def check_scoring(model: nn.Module, device: torch.device) -> None:
    """Raises unless trunk and head, run apart, give the model's own logits: some families scale them on the way."""
    ids = torch.arange(min(4, _vocabulary(model)), device=device)[None]  # [1, W]
    with torch.no_grad():
        apart = _logits(model, hidden_states(trunk_of(model), ids))  # [1, W, V]
        whole = model(input_ids=ids, use_cache=False).logits  # [1, W, V]
    if not torch.allclose(apart, whole, rtol=1e-2, atol=1e-2 * float(whole.abs().max())):
        raise ModelError(
            f"{type(model).__name__} changes its logits after the LM head in a way that is not known here: "
            "train a model of the Llama, Qwen, Mistral or Gemma families"
        )


def check_packing(model: nn.Module, device: torch.device) -> None:
    """Raises if a row can tell what lies before it, end to end: a recurrent layer, for one, carries a state across."""
    row = torch.arange(min(4, _vocabulary(model)), device=device)  # [W]
    positions = torch.arange(len(row), device=device).repeat(2)[None]  # [1, 2W]
    with torch.no_grad():
        behind = [
            hidden_states(trunk_of(model), torch.cat([before, row])[None], positions)[0, len(row) :]  # [W, H]
            for before in (row, torch.zeros_like(row))
        ]
    noise = 16 * torch.finfo(behind[0].dtype).eps * float(behind[0].abs().max())
    if not torch.allclose(behind[0], behind[1], rtol=0, atol=noise):
        raise ModelError(
            f"{type(model).__name__} lets tokens see across rows that lie end to end: set learner.packing: false"
        )


def _score_states(
    model: nn.Module, states: torch.Tensor, target: torch.Tensor, temperature: float, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = _logits(model, states)  # [m, V]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    log_total = logits.logsumexp(-1)  # [m]
    logprob = logits.gather(-1, target[:, None]).squeeze(-1) - log_total  # [m]
    if not entropy:
        return logprob, logprob.new_empty(0)
    mean_logit = (logits.softmax(-1) * logits).sum(-1)  # [m]
    return logprob, log_total - mean_logit


def _logits(model: nn.Module, states: torch.Tensor) -> torch.Tensor:
    logits = _head(model)(states)  # [..., V]
    assert isinstance(logits, torch.Tensor)
    cap = getattr(text_config(model), "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _head(model: nn.Module) -> nn.Module:
    find = getattr(model, "get_output_embeddings", None)
    head = find() if find is not None else None
    if not isinstance(head, nn.Module):
        raise ModelError(f"{type(model).__name__} has no LM head to score tokens with")
    return head


def _vocabulary(model: nn.Module) -> int:
    return int(getattr(text_config(model), "vocab_size", 0)) or 1


def text_config(model: nn.Module) -> object:
    """The configuration of the language model, also where it is a part of a larger one."""
    config = getattr(model, "config", None)
    find = getattr(config, "get_text_config", None)
    return config if find is None else find()
