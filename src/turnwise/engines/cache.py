"""Keys and values of every slot, in static tensors, and the attention that reads them.

Invariant: a forward writes only where it was aimed, and whatever is not a live token's goes to a spare row
that nothing reads. Shapes: S slots, B rows of this forward, W new tokens per row, L keys read, C capacity,
H key/value heads, G query heads to each of them, D head size.
"""

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, Cache

from turnwise.errors import ModelError

ATTENTION = "turnwise_slots"
"""The name under which transformers finds `attend`."""


class SlotCache(Cache):  # type: ignore[misc] # transformers is untyped here
    """One row of keys and values per slot; each forward is aimed at some rows before it runs.

    Of the Cache's interface only `update` is used: the engine passes positions and masks itself.
    """

    def __init__(self, *, slots: int, dtype: torch.dtype | None) -> None:
        super().__init__(layers=[])
        self.spare = slots
        """The row that takes what must not be kept: padding, and lanes at rest."""
        self.capacity = 0
        self._dtype = dtype
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # [S + 1, H, C, D] each

    def reserve(self, capacity: int) -> None:
        """Makes room for `capacity` tokens per slot, keeping what is held."""
        self._layers = {
            index: (_lengthen(keys, capacity), _lengthen(values, capacity))
            for index, (keys, values) in self._layers.items()
        }
        self.capacity = capacity

    def aim(self, *, read: slice | torch.Tensor, length: int, rows: torch.Tensor, positions: torch.Tensor) -> None:
        """The next forward writes its tokens at (rows, positions), both [B, W], and reads `length` keys of `read`."""
        self._read, self._length, self._rows, self._positions = read, length, rows, positions

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_args: object, **_kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes a layer's new keys and values [B, H, W, D]; gives those to attend to, [B, H, L, D]."""
        if layer_idx not in self._layers:
            self._layers[layer_idx] = (self._allocate(key_states), self._allocate(value_states))
        keys, values = self._layers[layer_idx]  # [S + 1, H, C, D]
        keys[self._rows, :, self._positions] = key_states.transpose(1, 2).to(keys.dtype)  # [B, W, H, D]
        values[self._rows, :, self._positions] = value_states.transpose(1, 2).to(values.dtype)
        return keys[self._read, :, : self._length], values[self._read, :, : self._length]

    def copy(self, source: torch.Tensor, target: torch.Tensor, length: int) -> None:
        """Rows `target` take the first `length` tokens of rows `source`, all read before any is written."""
        for held in self._layers.values():
            for tensor in held:
                tensor[target, :, :length] = tensor[source, :, :length]

    def clear(self) -> None:
        """Zeroes everything: a masked key still enters sums as 0 × itself, so a NaN must not outlive its weights."""
        for keys, values in self._layers.values():
            keys.zero_()
            values.zero_()

    def _allocate(self, states: torch.Tensor) -> torch.Tensor:
        _, heads, _, size = states.shape
        shape = (self.spare + 1, heads, self.capacity, size)
        return torch.zeros(shape, dtype=self._dtype or states.dtype, device=states.device)


def _lengthen(tensor: torch.Tensor, capacity: int) -> torch.Tensor:
    slots, heads, held, size = tensor.shape
    longer = tensor.new_zeros(slots, heads, capacity, size)
    longer[:, :, :held] = tensor
    return longer


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_rest: object,
) -> tuple[torch.Tensor, None]:
    """Attention in the form transformers calls: query [B, H·G, W, D] over key and value [B, H, L, D].

    While decoding, the G query heads of a key head stand in for G query positions, so that grouped keys and
    values are read where they lie and never repeated.
    """
    if softcap is not None or s_aux is not None:
        raise ModelError(
            f"{type(module).__name__} caps or sinks its attention scores: load the model with "
            "attn_implementation='eager' to sample from it"
        )
    batch, query_heads, width, size = query.shape
    heads = key.shape[1]
    if width == 1:
        query = query.reshape(batch, heads, query_heads // heads, size)  # [B, H, G, D]
    elif heads != query_heads:
        key = key.repeat_interleave(query_heads // heads, dim=1)  # [B, H·G, L, D]
        value = value.repeat_interleave(query_heads // heads, dim=1)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)
    return mixed.reshape(batch, query_heads, width, -1).transpose(1, 2), None  # [B, W, H·G, D]


AttentionInterface.register(ATTENTION, attend)
