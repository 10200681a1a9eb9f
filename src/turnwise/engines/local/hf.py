"""The model's own forward over our cache: for decoders whose architecture is not known.

Invariant: as in `fused`, but rows are padded to the longest chunk. Shapes: B rows of a forward, W new tokens per row,
L keys read, C capacity, H key/value heads, G query heads to each of them, D head size, V vocabulary.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, Cache, PreTrainedModel

from turnwise.engines.local.cache import DecodeInputs, KVCache, PrefillInputs
from turnwise.errors import ModelError

ATTENTION = "turnwise_slots"
"""The name under which transformers finds `attend`."""


class SlotCache(Cache):  # type: ignore[misc] # transformers is untyped here
    """Our KV cache behind the interface of transformers; `select` chooses its rows before each forward.

    Of that interface only `update` is used: positions and masks are passed as arguments.
    """

    def __init__(self, cache: KVCache) -> None:
        super().__init__(layers=[])
        self.cache = cache

    def select(self, *, read: slice | torch.Tensor, length: int, rows: torch.Tensor, positions: torch.Tensor) -> None:
        """The next forward writes its tokens at (rows, positions), both [B, W], and reads `length` keys of `read`."""
        self._read, self._length, self._rows, self._positions = read, length, rows, positions

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_args: object, **_kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores a layer's new keys and values [B, H, W, D] and returns those to attend to, [B, H, L, D]."""
        new_keys, new_values = key_states.transpose(1, 2), value_states.transpose(1, 2)  # [B, W, H, D]
        keys, values = self.cache.layer(layer_idx, new_keys)  # [S + 1, H, C, D]
        keys[self._rows, :, self._positions] = new_keys.to(keys.dtype)
        values[self._rows, :, self._positions] = new_values.to(values.dtype)
        return keys[self._read, :, : self._length], values[self._read, :, : self._length]


class HFForward:
    """The forward of any decoder that transformers can run with a cache."""

    pads = True
    """Every chunk of a prefill costs as much as its longest one."""
    replays_prefills = False
    reads_any_row = False

    def __init__(
        self, model: PreTrainedModel, cache: KVCache, windows: Mapping[str, int | None], *, slow_reason: str
    ) -> None:
        """`windows` is the attention window of each kind of layer; `slow_reason`, why not the fused forward."""
        self.slow_reason = slow_reason
        self._model, self._windows = model, windows
        self._view = SlotCache(cache)

    @property
    def cache(self) -> KVCache:
        return self._view.cache

    @cache.setter
    def cache(self, cache: KVCache) -> None:
        self._view.cache = cache

    def refresh(self) -> bool:
        """The weights are the model's own: nothing to pick up."""
        return False

    def decode(self, inputs: DecodeInputs) -> torch.Tensor:
        """Logits [B, V] after each slot's token."""
        self._view.select(
            read=slice(0, len(inputs.ids)),
            length=inputs.length,
            rows=inputs.rows[:, None],
            positions=inputs.positions[:, None],
        )
        return self._forward(inputs.ids[:, None], inputs.positions[:, None], inputs.length)

    def prefill(self, inputs: PrefillInputs) -> torch.Tensor:
        """Logits [M, V] after the last token of each chunk. Padded on the left, so that all end in one column."""
        chunks = len(inputs.slots)
        column = inputs.column + (inputs.width - (inputs.starts[1:] - inputs.starts[:-1]))[inputs.chunk]  # [N]
        ids, positions = (
            torch.zeros(chunks, inputs.width, dtype=torch.long, device=inputs.ids.device) for _ in range(2)
        )
        rows = torch.full_like(ids, self.cache.spare)  # [B, W], as the two above
        for padded, flat in ((ids, inputs.ids), (positions, inputs.positions), (rows, inputs.rows)):
            padded[inputs.chunk, column] = flat
        self._view.select(read=inputs.slots, length=inputs.length, rows=rows, positions=positions)
        return self._forward(ids, positions, inputs.length)

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
        config = self._model.config.get_text_config()
        attention = config._attn_implementation
        if attention != "eager":
            config._attn_implementation = ATTENTION
        try:
            output = self._model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=self._mask(positions, length),
                past_key_values=self._view,
                use_cache=True,
                logits_to_keep=1,
            )
        finally:
            config._attn_implementation = attention
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _mask(self, positions: torch.Tensor, length: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """Additive masks [B, 1, W, L]: one, or one for each kind of layer if the model mixes kinds."""
        dtype = (
            torch.get_autocast_dtype(positions.device.type)
            if torch.is_autocast_enabled(positions.device.type)
            else self._model.dtype
        )
        shown = torch.zeros((), dtype=dtype, device=positions.device)
        hidden = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=positions.device)
        key = torch.arange(length, device=positions.device)  # [L]
        query = positions[:, None, :, None]  # [B, 1, W, 1]
        causal = key <= query  # [B, 1, W, L]
        masks = {
            kind: torch.where(causal if window is None else causal & (key > query - window), shown, hidden)
            for kind, window in self._windows.items()
        }
        return masks if len(masks) > 1 else next(iter(masks.values()))


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
    values are read in place and never repeated.
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
