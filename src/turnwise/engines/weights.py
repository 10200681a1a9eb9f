"""An engine's view of a model: its context limit, the module to sample from, and its weights.

Invariant: `copy_weights` checks every name and shape before it writes, so a rejected load changes nothing.
"""

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from turnwise.compute.adapters import merged_weights
from turnwise.errors import ModelError


def resolve_context_limit(model: PreTrainedModel, asked: int | None) -> int:
    """The context asked for, or all the positions the model has."""
    positions: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    limit = asked or positions
    if limit is None:
        raise ModelError("the model names no max_position_embeddings: set a context limit")
    if positions is not None and limit > positions:
        raise ModelError(f"a context of {limit} tokens does not fit a model of {positions} positions: lower the limit")
    return limit


def count_tokens(model: PreTrainedModel) -> int:
    """The rows of the model's embedding: ids beyond them have none."""
    return int(model.get_input_embeddings().weight.shape[0])


def sampled_model(model: PreTrainedModel) -> PreTrainedModel:
    """The model whose forward takes our cache and masks: for a LoRA wrapper, the base model with its adapters."""
    if not hasattr(model, "get_base_model"):
        return model
    if model.active_peft_config.is_prompt_learning:
        raise ModelError(f"{model.active_peft_config.peft_type} adapters cannot be sampled from: use LoRA")
    return model.get_base_model()


def copy_weights(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> None:
    """Copies weights into the model, skipping tensors that are the model's own already."""
    own: dict[str, torch.Tensor] = model.state_dict()
    if unknown := sorted(weights.keys() - own.keys()):
        raise ModelError(f"the model has no weight '{unknown[0]}' ({len(unknown)} unknown names)")
    given = {own[name].data_ptr() for name in weights}
    missing = [name for name, weight in model.named_parameters() if weight.data_ptr() not in given]
    if missing:
        raise ModelError(f"no value given for the weight '{missing[0]}' ({len(missing)} missing)")
    for name, weight in weights.items():
        if weight.shape != own[name].shape:
            raise ModelError(f"the weight '{name}' has shape {tuple(weight.shape)}, not {tuple(own[name].shape)}")
    with torch.no_grad():
        for name, weight in weights.items():
            if weight.data_ptr() != own[name].data_ptr():
                own[name].copy_(weight)


def checkpoint_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The model's weights as a checkpoint names them, adapters merged; a tied head is there under its own name, too.

    vLLM keeps a repacked copy of a tied head on some devices, which stays as it was unless the head is sent.
    """
    weights = merged_weights(model)
    plain = sampled_model(model)
    head = plain.get_output_embeddings()
    if head is not None:
        name = next(name for name, module in plain.named_modules() if module is head)
        weights.setdefault(f"{name}.weight", head.weight)
    return weights
