"""A model without its weights: what another process needs to make the same one, with no file and no download.

Invariant: a model that was built and given the weights computes what the original does, bit for bit; buffers that no
checkpoint holds (rotary frequencies, rounded to the model's type or not) are the original's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from turnwise.models.loading import LoadedModel, find_device
from turnwise.models.lora import add_lora
from turnwise.models.settings import LoraSettings, ModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """`Architecture.of(loaded, settings).build(settings, weights)` is a copy of a loaded model."""

    cls: type[PreTrainedModel]
    config: PretrainedConfig
    dtype: torch.dtype
    lora: LoraSettings | None
    buffers: Mapping[str, torch.Tensor]
    """Those that a state_dict does not have, on the CPU."""

    @classmethod
    def of(cls, loaded: LoadedModel, settings: ModelSettings) -> "Architecture":
        model = loaded.model
        base = model if settings.lora is None else model.get_base_model()
        saved = model.state_dict().keys()
        return cls(
            cls=type(base),
            config=base.config,
            dtype=base.dtype,
            lora=settings.lora,
            buffers={name: buffer.cpu() for name, buffer in model.named_buffers() if name not in saved},
        )

    def build(self, device: Literal["auto", "cpu", "cuda"], weights: Mapping[str, torch.Tensor]) -> PreTrainedModel:
        """The model with these weights, in evaluation mode: on the GPU where there is one and `device` allows it."""
        with no_init_weights():
            model = self.cls._from_config(self.config, dtype=self.dtype)
        if self.lora is not None:
            model = add_lora(model, self.lora, seed=0)
        model.load_state_dict(weights)
        for name, buffer in self.buffers.items():
            owner, _, own = name.rpartition(".")
            setattr(model.get_submodule(owner), own, buffer.clone())
        return model.to(find_device(device)).eval()
