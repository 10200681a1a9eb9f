"""A fast forward over a Hugging Face decoder's own weights: packed tokens, fused projections, our KV cache.

Invariant: it computes what the model's own forward computes, which `agreement` checks once before it is used. Dense
ops run on packed tokens without padding; only attention knows rows. Shapes: N tokens, E hidden size, V vocabulary.
"""

from typing import Protocol

import torch

from turnwise.engines.local.architecture import Activation, Architecture, Layer, Norm
from turnwise.engines.local.cache import DecodeInputs, KVCache, PrefillInputs
from turnwise.engines.local.projections import Projections


class LayerOps(Protocol):
    """The operations between matrix products; `torch_ops.TorchOps` documents each."""

    @property
    def replays_prefills(self) -> bool:
        """Whether padding tokens change nothing, so that a prefill can be padded and its CUDA graph replayed."""
        ...

    @property
    def reads_any_row(self) -> bool:
        """Whether a decode step attends to its inputs' rows wherever they are in the cache."""
        ...

    def add_norm(self, residual: torch.Tensor, update: torch.Tensor | None, norm: Norm) -> torch.Tensor: ...

    def norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor: ...

    def gate(self, gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor: ...

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: Layer,
        cache: tuple[torch.Tensor, torch.Tensor],
        inputs: DecodeInputs | PrefillInputs,
    ) -> torch.Tensor: ...


class FusedForward:
    """The forward of a decoder whose architecture is known."""

    pads = False
    """Chunks of uneven length cost no padding."""
    slow_reason = None

    def __init__(self, architecture: Architecture, cache: KVCache, ops: LayerOps, *, dtype: torch.dtype | None) -> None:
        """`dtype` is the type of matrix products; None is that of the weights."""
        self.cache = cache
        self._architecture, self._ops = architecture, ops
        self._qkv = [Projections((layer.query, layer.key, layer.value), dtype) for layer in architecture.layers]
        self._outputs = [Projections((layer.output,), dtype) for layer in architecture.layers]
        self._gate_up = [Projections((layer.gate, layer.up), dtype) for layer in architecture.layers]
        self._downs = [Projections((layer.down,), dtype) for layer in architecture.layers]
        self._head = Projections((architecture.head,), dtype)

    @property
    def replays_prefills(self) -> bool:
        return self._ops.replays_prefills

    @property
    def reads_any_row(self) -> bool:
        return self._ops.reads_any_row

    def refresh(self) -> bool:
        """Picks up new weights; True if some moved in memory."""
        projections = [*self._qkv, *self._outputs, *self._gate_up, *self._downs, self._head]
        moved = [projection.refresh() for projection in projections]
        return any(moved)

    def decode(self, inputs: DecodeInputs) -> torch.Tensor:
        """Logits [N, V] after each slot's token, in the type of matrix products."""
        return self._logits(self._states(inputs))

    def prefill(self, inputs: PrefillInputs) -> torch.Tensor:
        """Logits [M, V] after the last token of each chunk."""
        return self._logits(self._states(inputs)[inputs.starts[1:] - 1])

    def _states(self, inputs: DecodeInputs | PrefillInputs) -> torch.Tensor:
        """The hidden states after the last norm, [N, E]."""
        architecture, ops = self._architecture, self._ops
        residual: torch.Tensor = architecture.embed(inputs.ids)  # [N, E]
        update: torch.Tensor | None = None
        parts = zip(architecture.layers, self._qkv, self._outputs, self._gate_up, self._downs, strict=True)
        for index, (layer, qkv, output, gate_up, down) in enumerate(parts):
            query, key, value = qkv(ops.add_norm(residual, update, layer.before_attention))
            (update,) = output(self._attend(index, query, key, value, inputs))
            if layer.after_attention is not None:
                update = ops.norm(update, layer.after_attention)
            gate, up = gate_up(ops.add_norm(residual, update, layer.before_mlp))
            (update,) = down(ops.gate(gate, up, architecture.activation))
            if layer.after_mlp is not None:
                update = ops.norm(update, layer.after_mlp)
        return ops.add_norm(residual, update, architecture.last_norm)

    def _attend(
        self,
        index: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        inputs: DecodeInputs | PrefillInputs,
    ) -> torch.Tensor:
        size, tokens = self._architecture.head_size, len(inputs.ids)
        query, key, value = (states.view(tokens, -1, size) for states in (query, key, value))
        cache = self.cache.layer(index, key)
        return self._ops.attend(query, key, value, self._architecture.layers[index], cache, inputs)

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        (logits,) = self._head(states)  # [N, V]
        cap = self._architecture.logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap
