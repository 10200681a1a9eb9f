"""A lean forward over a Hugging Face decoder's own weights: flat tokens, joined projections, our cache.

Invariant: it computes what the model's own forward computes; that is looked at once, before it is used. Every
dense step sees real tokens alone: only attention knows rows. Shapes: N tokens, E width of the stream, V vocabulary.
"""

import logging
from typing import Protocol

import torch
from transformers import PreTrainedModel

from turnwise.engines.local.architecture import Activation, Anatomy, Layer, Norm
from turnwise.engines.local.cache import Decode, KeyValues, Prefill
from turnwise.engines.local.projections import Projections

logger = logging.getLogger(__name__)

_PROBE = 8
"""Tokens on which the two forwards are compared."""


class Steps(Protocol):
    """What lies between matrix products; `plain.PlainSteps` says what each does."""

    @property
    def replays_prefills(self) -> bool:
        """Whether tokens that no feed has change nothing, so that a prefill can be padded and its graph replayed."""
        ...

    def add_norm(self, stream: torch.Tensor, update: torch.Tensor | None, norm: Norm) -> torch.Tensor: ...

    def norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor: ...

    def gate(self, gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor: ...

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: Layer,
        held: tuple[torch.Tensor, torch.Tensor],
        aim: Decode | Prefill,
    ) -> torch.Tensor: ...


class LeanForward:
    """The forward of a decoder whose anatomy is known."""

    pads = False
    """A prefill costs its tokens, however uneven its feeds are."""

    def __init__(self, anatomy: Anatomy, cache: KeyValues, steps: Steps, *, dtype: torch.dtype | None) -> None:
        """`dtype` is what matrix products are computed in; None is that of the weights."""
        self.cache = cache
        self._anatomy, self._steps = anatomy, steps
        self._inputs = [Projections((layer.query, layer.key, layer.value), dtype) for layer in anatomy.layers]
        self._outputs = [Projections((layer.output,), dtype) for layer in anatomy.layers]
        self._gates = [Projections((layer.gate, layer.up), dtype) for layer in anatomy.layers]
        self._downs = [Projections((layer.down,), dtype) for layer in anatomy.layers]
        self._head = Projections((anatomy.head,), dtype)

    @property
    def replays_prefills(self) -> bool:
        return self._steps.replays_prefills

    def refresh(self) -> bool:
        """Takes note of new weights; True if some moved in memory."""
        every = [*self._inputs, *self._outputs, *self._gates, *self._downs, self._head]
        moved = [projections.refresh() for projections in every]
        return any(moved)

    def decode(self, aim: Decode) -> torch.Tensor:
        """Logits [N, V] after each lane's token, in the type of products."""
        return self._logits(self._states(aim))

    def prefill(self, aim: Prefill) -> torch.Tensor:
        """Logits [F, V] after the last token of each feed."""
        return self._logits(self._states(aim)[aim.starts[1:] - 1])

    def _states(self, aim: Decode | Prefill) -> torch.Tensor:
        """The last layer's [N, E], normed."""
        anatomy, steps = self._anatomy, self._steps
        stream: torch.Tensor = anatomy.embed(aim.ids)  # [N, E]
        update: torch.Tensor | None = None
        parts = zip(anatomy.layers, self._inputs, self._outputs, self._gates, self._downs, strict=True)
        for index, (layer, inputs, output, gates, down) in enumerate(parts):
            query, key, value = inputs(steps.add_norm(stream, update, layer.before_attention))
            (update,) = output(self._attend(index, query, key, value, aim))
            if layer.after_attention is not None:
                update = steps.norm(update, layer.after_attention)
            gate, up = gates(steps.add_norm(stream, update, layer.before_mlp))
            (update,) = down(steps.gate(gate, up, anatomy.activation))
            if layer.after_mlp is not None:
                update = steps.norm(update, layer.after_mlp)
        return steps.add_norm(stream, update, anatomy.last_norm)

    def _attend(
        self, index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, aim: Decode | Prefill
    ) -> torch.Tensor:
        size, tokens = self._anatomy.head_size, len(aim.ids)
        query, key, value = (states.view(tokens, -1, size) for states in (query, key, value))
        held = self.cache.layer(index, key)
        return self._steps.attend(query, key, value, self._anatomy.layers[index], held, aim)

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        (logits,) = self._head(states)  # [N, V]
        cap = self._anatomy.logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap


def agrees(forward: LeanForward, model: PreTrainedModel, *, tolerance: float) -> bool:
    """Whether a few tokens get the logits that the model's own forward gives them, but for a share of the largest."""
    device = model.get_input_embeddings().weight.device
    ids = torch.arange(_PROBE, device=device) % model.config.get_text_config().vocab_size  # [N]
    zeros = torch.zeros_like(ids)
    starts = torch.tensor([0, _PROBE], device=device)
    aim = Prefill(
        ids=ids,
        positions=torch.arange(_PROBE, device=device),
        rows=zeros,
        feed=zeros,
        column=torch.arange(_PROBE, device=device),
        starts=starts,
        lanes=zeros[:1],
        width=_PROBE,
        length=_PROBE,
    )
    lean = forward.prefill(aim)[0].float()  # [V]
    own = model(input_ids=ids[None], use_cache=False).logits[0, -1].float()  # [V]
    forward.cache.clear()
    close = bool((lean - own).abs().max() <= tolerance * own.abs().max())
    if not close:
        logger.warning(
            "%s computes something that the fast forward does not know: it is sampled by its own, which is slower",
            type(model).__name__,
        )
    return close
