"""How likely the policy finds tokens, and how undecided it was: logprob and entropy of selected tokens alone.

Invariant: the LM head runs on the states that predict selected tokens and on nothing else, and logprobs are those
of the distribution the sampler drew from (tempered, float32), so the two can be compared.
Shapes: B rows padded to W (or B = 1 and rows end to end), m selected tokens, H hidden size, V vocabulary.
"""

import logging
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from turnwise.compute.attention import (
    attending_by_rows,
    describe_rows,
    is_by_rows,
    of_any_length,
    tells_attention_all,
)
from turnwise.compute.device import send
from turnwise.compute.head import Squash, is_plain, score_states
from turnwise.compute.layout import MicroBatch
from turnwise.errors import ModelError

logger = logging.getLogger(__name__)

_LOGITS_AT_ONCE = 2**27
"""The most logits of a head that is not a plain matrix; beyond it, it runs in pieces, again in the backward pass."""


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
    predicting = hidden.flatten(0, 1)[micro.before]  # [m, H]
    head = _head(model)
    if is_plain(head):
        assert isinstance(head, nn.Linear)
        squash = Squash(temperature=temperature, softcap=_softcap(model))
        logprob, spread = score_states(predicting, head, micro.target, squash, entropy=entropy)  # [m]
    else:
        logprob, spread = _score_in_pieces(model, predicting, micro.target, temperature, entropy)  # [m]
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
    where: dict[str, object] = {}
    if positions is not None:
        ids, where["position_ids"] = of_any_length(ids), of_any_length(send(positions, ids.device))
        if is_by_rows(trunk):
            where |= describe_rows(positions, ids.device)
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


def can_attend_by_rows(model: nn.Module, device: torch.device) -> bool:
    """Whether a model that attends by rows says what it says of each row alone; tried out on three short ones.

    One that mixes tokens by other means than attention, or attends in a way that is not known here, does not.
    """
    trunk = trunk_of(model)
    if not tells_attention_all(trunk):
        return False
    row = torch.arange(min(6, _vocabulary(model)), device=device)  # [W]
    branch = row.flip(0)[2:]  # [W − 2]: after the first two tokens of the row before it
    whole = [row, torch.cat([row[:2], branch]), row[:3]]
    packed = torch.cat([row, branch, row[:3]])[None]  # [1, …]
    positions = torch.cat([torch.arange(begin, len(one)) for begin, one in zip((0, 2, 0), whole, strict=True)])
    with torch.no_grad():
        alone = [hidden_states(trunk, one[None])[0] for one in whole]
    expected = torch.cat([alone[0], alone[1][2:], alone[2]])
    try:
        with attending_by_rows(trunk):
            found = hidden_states(trunk, packed, positions[None])[0]
            _run_backward(trunk, found)
    except (ModelError, RuntimeError, TypeError) as error:  # its attention has a feature, or its device no kernel
        logger.info("%s does not attend by rows: %s", type(model).__name__, error)
        return False
    return torch.allclose(found, expected, rtol=0, atol=_rounding(expected))


def _run_backward(trunk: nn.Module, states: torch.Tensor) -> None:
    """Sees whether a gradient can be taken at all, and leaves none behind."""
    learns = [parameter for parameter in trunk.parameters() if parameter.requires_grad]
    if learns:
        torch.autograd.grad(states.sum(), learns[0], allow_unused=True)


def _rounding(states: torch.Tensor) -> float:
    """How far two ways to the same states may lie apart, in the precision they are computed in."""
    place = states.device.type
    dtype = torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else states.dtype
    return float(torch.finfo(dtype).eps ** 0.5 * states.abs().max())


def _score_in_pieces(
    model: nn.Module, states: torch.Tensor, target: torch.Tensor, temperature: float, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `score_states`, by calling the head, whatever it is."""
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
    """The configuration of the language model, also where it is a part of a larger one."""
    config = getattr(model, "config", None)
    find = getattr(config, "get_text_config", None)
    return config if find is None else find()
