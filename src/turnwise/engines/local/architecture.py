"""The architecture of a decoder, as the fused forward needs it: its modules by role, and the constants between them.

Invariant: the modules are the model's own, not copies; a decoder with a part that is not described here has no
`Architecture`, and its own forward samples instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

import torch
from torch import nn
from transformers import PreTrainedModel

Activation: TypeAlias = Literal["silu", "gelu"]

_ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}
_FAMILIES: Mapping[str, bool] = {
    "llama": False,
    "mistral": False,
    "qwen2": False,
    "qwen3": False,
    "gemma": True,
    "gemma2": True,
    "gemma3_text": True,
}
"""The families with the layers below, and whether their norms multiply by 1 + weight."""
_STATIC_ROTARY = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings whose angles depend on the position alone, not on the length of the context."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Norm:
    """RMSNorm: x / sqrt(mean(x²) + eps) · (weight + offset)."""

    weight: nn.Parameter
    eps: float
    offset: float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Layer:
    """One decoder layer, its parts in order of use."""

    before_attention: Norm
    query: nn.Module
    key: nn.Module
    value: nn.Module
    query_norm: Norm | None
    key_norm: Norm | None
    window: int | None
    """How many tokens back a token attends, itself included; None attends to all."""
    kind: str
    """Which of the rotary embeddings applies to its queries and keys."""
    output: nn.Module
    after_attention: Norm | None
    before_mlp: Norm
    gate: nn.Module
    up: nn.Module
    down: nn.Module
    after_mlp: Norm | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Architecture:
    """A decoder-only language model."""

    embed: nn.Module
    layers: tuple[Layer, ...]
    last_norm: Norm
    head: nn.Module
    rotary: nn.Module
    """Cosines and sines by position."""
    activation: Activation
    query_heads: int
    heads: int
    """Of keys and values."""
    head_size: int
    scale: float
    score_cap: float | None
    """Soft cap on attention scores: cap · tanh(score / cap)."""
    logit_cap: float | None

    def angles(self, length: int, device: torch.device) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Cosines and sines of positions 0 to `length` − 1, [length, head_size] float32 each, by kind of layer."""
        positions = torch.arange(length, device=device)[None]  # [1, length]
        like = torch.zeros((), dtype=torch.float32, device=device)
        tables = {}
        for kind in dict.fromkeys(layer.kind for layer in self.layers):
            cosine, sine = self.rotary(like, positions, *((kind,) if _rotates_by_kind(self.rotary) else ()))
            tables[kind] = (cosine[0], sine[0])
        return tables


def read_architecture(model: PreTrainedModel, windows: Mapping[str, int | None]) -> Architecture | None:
    """The architecture of a model of a known family; None if a part is missing or unknown."""
    config = model.config.get_text_config()
    backbone, head = model.get_decoder(), model.get_output_embeddings()
    activation = _ACTIVATIONS.get(str(getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", "")))
    offset = _FAMILIES.get(config.model_type)
    if offset is None or activation is None or head is None or not _static(backbone.rotary_emb):
        return None
    kinds = getattr(config, "layer_types", None) or [next(iter(windows))] * config.num_hidden_layers
    attention = backbone.layers[0].self_attn
    if getattr(config, "use_bidirectional_attention", False) or attention.config is not config:
        return None
    return Architecture(
        embed=backbone.embed_tokens,
        layers=tuple(
            _read_layer(layer, kind, windows[kind], float(offset))
            for layer, kind in zip(backbone.layers, kinds, strict=True)
        ),
        last_norm=_norm(backbone.norm, float(offset)),
        head=head,
        rotary=backbone.rotary_emb,
        activation=activation,
        query_heads=config.num_attention_heads,
        heads=config.num_key_value_heads,
        head_size=attention.head_dim,
        scale=attention.scaling,
        score_cap=getattr(attention, "attn_logit_softcapping", None),
        logit_cap=getattr(config, "final_logit_softcapping", None),
    )


def _read_layer(layer: nn.Module, kind: str, window: int | None, offset: float) -> Layer:
    attention, mlp = cast(nn.Module, layer.self_attn), cast(nn.Module, layer.mlp)
    sandwich = hasattr(layer, "pre_feedforward_layernorm")  # Gemma 2 and 3 also norm the output of each part

    def norm_of(owner: nn.Module, name: str) -> Norm:
        return _norm(owner.get_submodule(name), offset)

    def optional(owner: nn.Module, name: str) -> Norm | None:
        return norm_of(owner, name) if isinstance(getattr(owner, name, None), nn.Module) else None

    return Layer(
        before_attention=norm_of(layer, "input_layernorm"),
        query=attention.get_submodule("q_proj"),
        key=attention.get_submodule("k_proj"),
        value=attention.get_submodule("v_proj"),
        query_norm=optional(attention, "q_norm"),
        key_norm=optional(attention, "k_norm"),
        window=window,
        kind=kind,
        output=attention.get_submodule("o_proj"),
        after_attention=norm_of(layer, "post_attention_layernorm") if sandwich else None,
        before_mlp=norm_of(layer, "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"),
        gate=mlp.get_submodule("gate_proj"),
        up=mlp.get_submodule("up_proj"),
        down=mlp.get_submodule("down_proj"),
        after_mlp=optional(layer, "post_feedforward_layernorm"),
    )


def _norm(module: nn.Module, offset: float) -> Norm:
    eps = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None)
    assert isinstance(module.weight, nn.Parameter)
    assert isinstance(eps, float)
    return Norm(weight=module.weight, eps=eps, offset=offset)


def _rotates_by_kind(rotary: nn.Module) -> bool:
    """Whether kinds of layers have rotary embeddings of their own, as in Gemma 3."""
    return isinstance(rotary.rope_type, dict)


def _static(rotary: nn.Module) -> bool:
    kinds = rotary.rope_type.values() if isinstance(rotary.rope_type, dict) else [rotary.rope_type]
    return set(kinds) <= _STATIC_ROTARY
