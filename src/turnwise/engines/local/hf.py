"""The model's own forward over our cache: for decoders whose anatomy is not known.

Invariant: as in `lean`, but rows are padded to the longest feed. Shapes: B rows of a forward, W new tokens per row,
L keys read, C capacity, H key/value heads, G query heads to each of them, D head size, V vocabulary.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, Cache, PreTrainedModel

from turnwise.engines.local.cache import Decode, KeyValues, Prefill
from turnwise.errors import ModelError

ATTENTION = "turnwise_slots"
"""The name under which transformers finds `attend`."""


class SlotCache(Cache):  # type: ignore[misc] # transformers is untyped here
    """Our cache as transformers sees it, aimed at some rows before each forward.

    Of the Cache's interface only `update` is used: positions and masks are passed beside it.
    """

    def __init__(self, held: KeyValues) -> None:
        super().__init__(layers=[])
        self._held = held

    def aim(self, *, read: slice | torch.Tensor, length: int, rows: torch.Tensor, positions: torch.Tensor) -> None:
        """The next forward writes its tokens at (rows, positions), both [B, W], and reads `length` keys of `read`."""
        self._read, self._length, self._rows, self._positions = read, length, rows, positions

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_args: object, **_kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes a layer's new keys and values [B, H, W, D]; gives those to attend to, [B, H, L, D]."""
        new_keys, new_values = key_states.transpose(1, 2), value_states.transpose(1, 2)  # [B, W, H, D]
        keys, values = self._held.layer(layer_idx, new_keys)  # [S + 1, H, C, D]
        keys[self._rows, :, self._positions] = new_keys.to(keys.dtype)
        values[self._rows, :, self._positions] = new_values.to(values.dtype)
        return keys[self._read, :, : self._length], values[self._read, :, : self._length]


class WholeForward:
    """The forward of any decoder that transformers can run with a cache."""

    pads = True
    """A prefill costs its longest feed for every one."""
    replays_prefills = False

    def __init__(self, model: PreTrainedModel, cache: KeyValues, windows: Mapping[str, int | None]) -> None:
        """`windows` says how far back each kind of layer sees."""
        self.cache = cache
        self._model, self._windows = model, windows
        self._view = SlotCache(cache)

    def refresh(self) -> bool:
        """Weights are the model's own: there is nothing to take note of."""
        return False

    def decode(self, aim: Decode) -> torch.Tensor:
        """Logits [B, V] after each lane's token."""
        self._view.aim(
            read=slice(0, len(aim.ids)), length=aim.length, rows=aim.rows[:, None], positions=aim.positions[:, None]
        )
        return self._forward(aim.ids[:, None], aim.positions[:, None], aim.length)

    def prefill(self, aim: Prefill) -> torch.Tensor:
        """Logits [F, V] after the last token of each feed. Padded on the left, so that all end in one column."""
        feeds = len(aim.lanes)
        column = aim.column + (aim.width - (aim.starts[1:] - aim.starts[:-1]))[aim.feed]  # [N]
        ids, positions = (torch.zeros(feeds, aim.width, dtype=torch.long, device=aim.ids.device) for _ in range(2))
        rows = torch.full_like(ids, self.cache.spare)  # [B, W], as the two above
        for padded, flat in ((ids, aim.ids), (positions, aim.positions), (rows, aim.rows)):
            padded[aim.feed, column] = flat
        self._view.aim(read=aim.lanes, length=aim.length, rows=rows, positions=positions)
        return self._forward(ids, positions, aim.length)

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
        """Additive masks [B, 1, W, L]: one, or one for each kind of layer where a model mixes them."""
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
