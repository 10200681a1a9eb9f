"""Low-rank adapters through peft: W' = W + (alpha / rank) B A, with A and B trained and W frozen.

Invariant: the frozen weights never change, not even by rounding: merging (`compute/adapters.py`) makes new tensors
instead of adding and subtracting in place. The policy without its adapter (a KL reference) is
`with model.disable_adapter():`.
"""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from turnwise.compute.adapters import has_lora, merged_weights
from turnwise.errors import ModelError
from turnwise.models.settings import LoraSettings
from turnwise.seeds import derive_seed

if TYPE_CHECKING:
    from peft import PeftModel

__all__ = ["add_lora", "has_lora", "load_adapter", "merged_weights", "require_peft", "save_adapter"]

_ADAPTER_WEIGHTS = "adapter_model.safetensors"


def require_peft() -> None:
    """Raises, before any weights are read, if peft is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise ModelError("model.lora needs the peft package, which is not installed: pip install turnwise[lora]")


def add_lora(model: PreTrainedModel, settings: LoraSettings, *, seed: int) -> "PeftModel":
    """Freezes the model and adds fresh adapters: B is zero, so the policy begins as the model itself."""
    require_peft()
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=settings.targets if isinstance(settings.targets, str) else list(settings.targets),
        task_type="CAUSAL_LM",
    )
    _require_targets(model, settings.targets)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "lora"))  # peft draws A on the CPU, wherever the model is
        return get_peft_model(model, config)


def save_adapter(model: "PeftModel", folder: Path) -> None:
    """Writes the adapter alone, as `PeftModel.from_pretrained` reads it."""
    # By default, peft asks the model hub whether the vocabulary has grown.
    model.save_pretrained(folder, save_embedding_layers=False)


def load_adapter(model: "PeftModel", folder: Path) -> None:
    """Loads a saved adapter into the model's own, in place, so that an optimizer's references stay valid."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    file = folder / _ADAPTER_WEIGHTS
    if not file.is_file():
        raise ModelError(f"{folder} holds no adapter: resume with the model.lora settings the run was started with")
    saved = load_file(file)
    own = get_peft_model_state_dict(model, save_embedding_layers=False)
    if {name: weight.shape for name, weight in saved.items()} != {name: weight.shape for name, weight in own.items()}:
        raise ModelError(f"the adapter in {folder} has other shapes: resume with the run's own model.lora settings")
    set_peft_model_state_dict(model, saved)


def _require_targets(model: PreTrainedModel, targets: Literal["all-linear"] | tuple[str, ...]) -> None:
    """Every named target must be a linear layer inside the blocks: a tied embedding and head cannot be merged apart."""
    if targets == "all-linear":
        return
    outer = (model.get_input_embeddings(), model.get_output_embeddings())
    inner = [name for name, module in model.named_modules() if _is_matrix(module) and module not in outer]
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in inner):
            raise ModelError(
                f"model.lora.targets: '{target}' is no linear layer of the model's blocks; try \"all-linear\""
            )


def _is_matrix(module: torch.nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.dim() == 2
