"""The memory of a learner and of an engine: what is kept is counted by formula, activations on tensors without content.

    weights     P · w                        P parameters, T of them trained, w bytes each (4, or 2 in bfloat16)
    gradients   T · w
    moments     T · 8, and T · 4 more for float32 masters where weights are bfloat16
    reference   T · w                        with a KL term
    critic      as much again, without an LM head
    activations tokens of a micro-batch · what layers save for one token, and with autocast weights in half precision
    logits      a few tiles of the LM head
    KV cache    slots · context · 2 · layers · KV heads · head size · bytes

Under `learner.shard` all but activations and logits is divided among the ranks, and one layer is gathered at a time.
"""

import functools
from dataclasses import asdict, dataclass

from turnwise.config import Config
from turnwise.planning.shape import ModelShape

_PIECE = 256
"""Tokens of the pass in which activations are counted."""
_TILES = 3
"""Tiles of logits that are alive at once: logits, their softmax, its gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerMemory:
    """Bytes of one process."""

    weights: float
    gradients: float
    moments: float
    reference: float
    critic: float
    activations: float
    logits: float
    gathered: float
    """Layers that are gathered while they compute, and rank 0's whole copy, under sharding."""

    @property
    def total(self) -> float:
        return float(sum(asdict(self).values()))


def learner_memory(
    config: Config, shape: ModelShape, *, trained: int, ranks: int = 1, tile: int = 2**27
) -> LearnerMemory:
    """Of a rank; `trained` of the parameters are, and a tile of the LM head has so many logits."""
    settings, half = config.learner, config.model.dtype == "bfloat16"
    size = 2 if half else 4
    per_trained = 8 + (4 if half else 0)
    share = ranks if settings.shard else 1
    backbone = shape.body + shape.head
    critic = backbone * (2 * size + per_trained) if config.credit.needs_critic else 0
    layer = shape.body / shape.layers
    gathered = (2 * layer * size + shape.parameters * size) if share > 1 else 0
    return LearnerMemory(
        weights=shape.parameters * size / share,
        gradients=trained * size / share,
        moments=trained * per_trained / share,
        reference=(trained * size if config.loss.kl_coef > 0 else 0) / share,
        critic=critic / share,
        activations=activation_bytes(config, shape),
        logits=_TILES * 4 * min(tile, settings.first_microbatch * shape.vocabulary),
        gathered=gathered,
    )


def engine_memory(config: Config, shape: ModelShape, *, context: float) -> float:
    """Bytes of an engine of its own: half-precision weights where products are, and the KV cache of all slots."""
    half = config.model.autocasts(parameters=shape.parameters) or config.model.dtype == "bfloat16"
    size = 2 if half else 4
    return shape.parameters * size + config.engine.slots * context * shape.kv_numbers * size


def activation_bytes(config: Config, shape: ModelShape) -> float:
    """What the layers keep for the backward pass of a full micro-batch; compiled ones keep less."""
    casts = 2 * shape.body if config.model.autocasts(parameters=shape.parameters) else 0
    return casts + _kept_by_layers(config, shape)


def _kept_by_layers(config: Config, shape: ModelShape) -> float:
    tokens, settings = config.learner.first_microbatch, config.learner
    autocast = config.model.autocasts(parameters=shape.parameters)
    layer = saved_bytes_per_token(shape, half=config.model.dtype == "bfloat16", autocast=autocast)
    inputs = shape.width * (2 if config.model.dtype == "bfloat16" else 4)
    if settings.checkpointing:
        kept = 0 if settings.activation_offload else shape.layers * inputs
        return tokens * (kept + layer)
    return tokens * (layer if settings.activation_offload else shape.layers * layer)


@functools.cache
def saved_bytes_per_token(shape: ModelShape, *, half: bool, autocast: bool) -> float:
    """What a layer of a Llama of this shape saves for one token, counted on tensors that have no content."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import AutoModel, LlamaConfig

    def count(layers: int, tokens: int) -> int:
        described = LlamaConfig(
            hidden_size=shape.width,
            num_hidden_layers=layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_size,
            intermediate_size=shape.ffn,
            vocab_size=8,
            attn_implementation="sdpa",
        )
        sizes: dict[int, int] = {}
        alive = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if not isinstance(tensor, torch.nn.Parameter) and not isinstance(tensor._base, torch.nn.Parameter):
                storage = tensor.untyped_storage()
                sizes[storage._cdata] = storage.nbytes()
                alive.append(tensor)
            return tensor

        with FakeTensorMode(allow_non_fake_inputs=True):
            model = AutoModel.from_config(described, dtype=torch.bfloat16 if half else torch.float32)
            ids = torch.zeros(1, tokens, dtype=torch.long)
            precision = torch.autocast("cpu", torch.bfloat16, enabled=autocast)
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), precision:
                model(ids, use_cache=False)
        return sum(sizes.values())

    # Weights that autocast has rounded are saved too, and masks, which belong to no layer: neither grows with both.
    long, short = (count(3, tokens) - count(1, tokens) for tokens in (2 * _PIECE, _PIECE))
    return (long - short) / 2 / _PIECE
