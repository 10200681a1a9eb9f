"""A model's adapters merged into its weights, for engines and checkpoints; works without peft.

Invariant: the frozen weights never change, not even by rounding: merging makes new tensors.
"""

from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

if TYPE_CHECKING:
    from peft import PeftModel


def has_lora(model: "PreTrainedModel | PeftModel") -> bool:
    """Whether the model trains adapters; works without peft."""
    return hasattr(model, "peft_config")


def merged_weights(model: "PreTrainedModel | PeftModel") -> dict[str, torch.Tensor]:
    """The weights of the policy under the plain model's names, adapters merged into new tensors.

    For engines and checkpoints; for a model without adapters, its own `state_dict`.
    """
    if not has_lora(model):
        weights: dict[str, torch.Tensor] = model.state_dict()
        return weights
    plain = model.get_base_model()
    merged = {
        name.replace(".base_layer.", "."): weight for name, weight in plain.state_dict().items() if ".lora_" not in name
    }
    for name, module in plain.named_modules():
        if hasattr(module, "get_delta_weight"):
            with torch.no_grad():
                delta = sum(module.get_delta_weight(adapter) for adapter in module.active_adapters)  # [out, in]
                frozen = module.base_layer.weight  # [out, in]
                merged[f"{name}.weight"] = (frozen + delta).to(frozen.dtype)  # summed in the wider dtype, rounded once
    return merged
