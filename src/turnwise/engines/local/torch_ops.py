"""The layer operations of the fused forward in torch: used on a CPU, and the reference of the Triton kernels.

Shapes: N tokens, E hidden size, M chunks of at most W tokens, L keys read, H key/value heads, G query heads
to each of them, D head size, I width of the MLP.
"""

import torch
import torch.nn.functional as F

from turnwise.engines.local.architecture import Activation, Architecture, Layer, Norm
from turnwise.engines.local.cache import DecodeInputs, PrefillInputs


class TorchOps:
    """Norms, rotary embeddings, attention and gated activations of one model, in a few torch calls each."""

    replays_prefills = False
    """Chunks are padded by sizes known on the host."""
    reads_any_row = False
    """The keys of the first slots are read in place: gathering them from other rows would copy them."""

    def __init__(self, architecture: Architecture, *, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        """`positions` is the longest context; `dtype` is the type of matrix products."""
        self._architecture = architecture
        self._dtype = dtype
        self._hidden = torch.tensor(torch.finfo(dtype).min, dtype=dtype, device=device)
        self._shown = torch.zeros((), dtype=dtype, device=device)
        self._key = torch.arange(positions, device=device)
        half = architecture.head_size // 2
        sign = torch.ones(architecture.head_size, device=device)
        sign[:half] = -1  # x · cos + roll(x) · (∓ sin) rotates both halves at once
        self._angles = {
            kind: (cosine[:, None].to(dtype), (sine * sign)[:, None].to(dtype))  # [C, 1, D] each
            for kind, (cosine, sine) in architecture.angles(positions, device).items()
        }

    def add_norm(self, residual: torch.Tensor, update: torch.Tensor | None, norm: Norm) -> torch.Tensor:
        """Adds [N, E] to the residual in place and returns the norm of the sum in the type of matrix products."""
        if update is not None:
            residual.add_(update)
        return self.norm(residual, norm).to(self._dtype)

    def norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        """RMSNorm over the last dimension."""
        weight = norm.weight if norm.offset == 0 else norm.weight + norm.offset
        if x.dtype == weight.dtype:
            return F.rms_norm(x, weight.shape, weight, norm.eps)
        return (F.rms_norm(x.float(), weight.shape, None, norm.eps) * weight.float()).to(x.dtype)

    def gate(self, gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """activation(gate) · up, all [N, I]."""
        if activation == "silu":
            return F.silu(gate).mul_(up)
        return F.gelu(gate, approximate="tanh").mul_(up)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: Layer,
        cache: tuple[torch.Tensor, torch.Tensor],
        inputs: DecodeInputs | PrefillInputs,
    ) -> torch.Tensor:
        """Stores keys and values [N, H, D] in the cache; returns attention [N, H·G·D] of queries [N, H·G, D]."""
        keys, values = cache  # [S + 1, H, C, D] each
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = self.norm(query, layer.query_norm), self.norm(key, layer.key_norm)
        cosine, sine = (table[inputs.positions] for table in self._angles[layer.kind])  # [N, 1, D] each
        keys[inputs.rows, :, inputs.positions] = apply_rope(key, cosine, sine).to(keys.dtype)
        values[inputs.rows, :, inputs.positions] = value.to(values.dtype)
        query = apply_rope(query, cosine, sine)
        if isinstance(inputs, DecodeInputs):
            return self._decode(query, keys, values, layer, inputs)
        return self._prefill(query, keys, values, layer, inputs)

    def _decode(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layer: Layer, inputs: DecodeInputs
    ) -> torch.Tensor:
        """The G query heads of a key head stand in for G query positions: keys are read in place."""
        count, _, size = query.shape
        grouped = query.view(count, keys.shape[1], -1, size)  # [N, H, G, D]
        mask = self._mask(inputs, layer.window, inputs.positions[:, None])  # [N, 1, 1, L]
        mixed = self._attention(grouped, keys[:count, :, : inputs.length], values[:count, :, : inputs.length], mask)
        return mixed.reshape(count, -1)

    def _prefill(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layer: Layer, inputs: PrefillInputs
    ) -> torch.Tensor:
        """Attention alone is computed on rows padded to the longest chunk."""
        count, query_heads, size = query.shape
        chunks, heads = len(inputs.slots), keys.shape[1]
        padded = query.new_zeros(chunks, inputs.width, query_heads, size)  # [M, W, H·G, D]
        padded[inputs.chunk, inputs.column] = query
        positions = torch.zeros(chunks, inputs.width, dtype=torch.long, device=query.device)  # [M, W]
        positions[inputs.chunk, inputs.column] = inputs.positions
        mask = self._mask(inputs, layer.window, positions)  # [M, 1, W, L]
        key, value = keys[inputs.slots, :, : inputs.length], values[inputs.slots, :, : inputs.length]  # [M, H, L, D]
        if heads != query_heads:
            key = key.repeat_interleave(query_heads // heads, dim=1)  # [M, H·G, L, D]
            value = value.repeat_interleave(query_heads // heads, dim=1)
        mixed = self._attention(padded.transpose(1, 2), key, value, mask)  # [M, H·G, W, D]
        return mixed.transpose(1, 2)[inputs.chunk, inputs.column].reshape(count, -1)

    def _mask(self, inputs: DecodeInputs | PrefillInputs, window: int | None, positions: torch.Tensor) -> torch.Tensor:
        """Additive, [rows, 1, columns, L], for tokens at positions [rows, columns]."""
        if window not in inputs.masks:
            key, position = self._key[: inputs.length], positions[:, None, :, None]  # [L], [rows, 1, columns, 1]
            visible = key <= position
            if window is not None:
                visible &= key > position - window
            inputs.masks[window] = torch.where(visible, self._shown, self._hidden)
        return inputs.masks[window]

    def _attention(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        query = query.to(key.dtype)
        if self._architecture.score_cap is None:
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=self._architecture.scale)
        scores = (query @ key.transpose(-1, -2)).float() * self._architecture.scale
        scores = torch.tanh(scores / self._architecture.score_cap) * self._architecture.score_cap + mask
        return scores.softmax(-1).to(value.dtype) @ value


def apply_rope(states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotates pairs (i, i + D/2) of the last dimension by their angles; the first half of `sine` is negative."""
    return torch.addcmul(states * cosine, states.roll(states.shape[-1] // 2, -1), sine)
