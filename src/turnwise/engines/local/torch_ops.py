"""The steps of a lean forward in plain torch: what runs on a CPU, and what the Triton kernels are measured against.

Shapes: N tokens, E width of the stream, F feeds of at most W tokens, L keys read, H key/value heads, G query heads
to each of them, D head size, I width of the MLP.
"""

import torch
import torch.nn.functional as F

from turnwise.engines.local.architecture import Activation, Anatomy, Layer, Norm
from turnwise.engines.local.cache import Decode, Prefill


class PlainSteps:
    """Norms, rotations, attention and gates of one model, a torch call or a few for each."""

    replays_prefills = False
    """Feeds are put side by side by numbers of the host."""

    def __init__(self, anatomy: Anatomy, *, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        """`positions` is the longest context; `dtype` is what matrix products are computed in."""
        self._anatomy = anatomy
        self._dtype = dtype
        self._hidden = torch.tensor(torch.finfo(dtype).min, dtype=dtype, device=device)
        self._shown = torch.zeros((), dtype=dtype, device=device)
        self._key = torch.arange(positions, device=device)
        half = anatomy.head_size // 2
        sign = torch.ones(anatomy.head_size, device=device)
        sign[:half] = -1  # x · cos + roll(x) · (∓ sin) turns both halves at once
        self._angles = {
            kind: (cosine[:, None].to(dtype), (sine * sign)[:, None].to(dtype))  # [C, 1, D] each
            for kind, (cosine, sine) in anatomy.angles(positions, device).items()
        }

    def add_norm(self, stream: torch.Tensor, update: torch.Tensor | None, norm: Norm) -> torch.Tensor:
        """Adds [N, E] to the stream, in place, and gives the norm of the sum in the type of products."""
        if update is not None:
            stream.add_(update)
        return self.norm(stream, norm).to(self._dtype)

    def norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        """Of the last dimension."""
        weight = norm.weight if norm.offset == 0 else norm.weight + norm.offset
        if x.dtype == weight.dtype:
            return F.rms_norm(x, weight.shape, weight, norm.eps)
        return (F.rms_norm(x.float(), weight.shape, None, norm.eps) * weight.float()).to(x.dtype)

    def gate(self, gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """[N, I] of two [N, I]."""
        if activation == "silu":
            return F.silu(gate).mul_(up)
        return F.gelu(gate, approximate="tanh").mul_(up)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: Layer,
        held: tuple[torch.Tensor, torch.Tensor],
        aim: Decode | Prefill,
    ) -> torch.Tensor:
        """Puts keys and values [N, H, D] in their place and gives what queries [N, H·G, D] see, [N, H·G·D]."""
        keys, values = held  # [S + 1, H, C, D] each
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = self.norm(query, layer.query_norm), self.norm(key, layer.key_norm)
        cosine, sine = (table[aim.positions] for table in self._angles[layer.kind])  # [N, 1, D] each
        keys[aim.rows, :, aim.positions] = _turn(key, cosine, sine).to(keys.dtype)
        values[aim.rows, :, aim.positions] = value.to(values.dtype)
        query = _turn(query, cosine, sine)
        if isinstance(aim, Decode):
            return self._decode(query, keys, values, layer, aim)
        return self._prefill(query, keys, values, layer, aim)

    def _decode(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layer: Layer, aim: Decode
    ) -> torch.Tensor:
        """The G query heads of a key head stand in for G query positions: keys are read where they lie."""
        count, _, size = query.shape
        grouped = query.view(count, keys.shape[1], -1, size)  # [N, H, G, D]
        mask = self._mask(aim, layer.window, aim.positions[:, None])  # [N, 1, 1, L]
        mixed = self._mix(grouped, keys[:count, :, : aim.length], values[:count, :, : aim.length], mask)
        return mixed.reshape(count, -1)

    def _prefill(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layer: Layer, aim: Prefill
    ) -> torch.Tensor:
        """Attention alone is computed on rows padded to the longest feed."""
        count, query_heads, size = query.shape
        feeds, heads = len(aim.lanes), keys.shape[1]
        padded = query.new_zeros(feeds, aim.width, query_heads, size)  # [F, W, H·G, D]
        padded[aim.feed, aim.column] = query
        positions = torch.zeros(feeds, aim.width, dtype=torch.long, device=query.device)  # [F, W]
        positions[aim.feed, aim.column] = aim.positions
        mask = self._mask(aim, layer.window, positions)  # [F, 1, W, L]
        key, value = keys[aim.lanes, :, : aim.length], values[aim.lanes, :, : aim.length]  # [F, H, L, D]
        if heads != query_heads:
            key = key.repeat_interleave(query_heads // heads, dim=1)  # [F, H·G, L, D]
            value = value.repeat_interleave(query_heads // heads, dim=1)
        mixed = self._mix(padded.transpose(1, 2), key, value, mask)  # [F, H·G, W, D]
        return mixed.transpose(1, 2)[aim.feed, aim.column].reshape(count, -1)

    def _mask(self, aim: Decode | Prefill, window: int | None, positions: torch.Tensor) -> torch.Tensor:
        """Additive, [rows, 1, columns, L], for tokens at positions [rows, columns]."""
        if window not in aim.masks:
            key, position = self._key[: aim.length], positions[:, None, :, None]  # [L], [rows, 1, columns, 1]
            seen = key <= position
            if window is not None:
                seen &= key > position - window
            aim.masks[window] = torch.where(seen, self._shown, self._hidden)
        return aim.masks[window]

    def _mix(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query = query.to(key.dtype)
        if self._anatomy.score_cap is None:
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=self._anatomy.scale)
        scores = (query @ key.transpose(-1, -2)).float() * self._anatomy.scale
        scores = torch.tanh(scores / self._anatomy.score_cap) * self._anatomy.score_cap + mask
        return scores.softmax(-1).to(value.dtype) @ value


def _turn(states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotates pairs (i, i + D/2) of the last dimension by their angles; the first half of `sine` is negative."""
    return torch.addcmul(states * cosine, states.roll(states.shape[-1] // 2, -1), sine)
