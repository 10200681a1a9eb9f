"""Induction heads for a small transformer: the circuit that copies what followed a token last time.

Every pretrained language model has induction heads (Olsson et al., 2022, arXiv 2209.11895): "... Ada Holm ... Ada"
makes it expect "Holm". A model of a million parameters spends most of a short training finding them. Some heads of its
first two layers are therefore initialised to that circuit, from which training goes on freely; the others are left to
learn what the task needs:

    layer 0   attends to the token before, by position alone   and writes a sketch M x of it, along directions R
    layer 1   compares R'h of each position with M x of its own token: so finds what came after that token before,
              and writes it, along its own embedding, where the output layer reads it

Rotary positions (angle = distance × frequency) serve both: a query and a key on the fast frequencies, the key turned
by one step, score highest at distance one; the slow frequencies hardly turn within a context, so content sits there.
Shapes: W width, D head size, n slow dimensions of a head.
"""

import torch
from transformers import LlamaForCausalLM

from turnwise.errors import ModelError

_SLOW = 0.01
"""Radians per token under which a frequency counts as still."""
_LOOK_BACK = 6.0
"""The length of the position query: at 6, the token before gets nearly all the attention of its head."""
_MATCH = 4.0
"""The gain of a match over no match, before the softmax."""
_COPY = 4.0
"""The weight of what is copied, in units of an embedding."""


@torch.no_grad()
def plant_induction(model: LlamaForCausalLM, *, count: int, generator: torch.Generator) -> None:
    """Initialises `count` heads a layer, in place. Needs two layers, attention biases, and a key head to every head."""
    width, heads = model.config.hidden_size, model.config.num_attention_heads
    size = width // heads  # D
    frequency = model.model.rotary_emb.inv_freq.float().cpu()  # [D/2]
    slow = (frequency < _SLOW).nonzero().flatten()
    if not len(slow):
        raise ModelError(
            f"model.small: heads of size {size} have no frequency slow enough for induction: give them at least 4"
            " dimensions, or set induction: false"
        )
    content = torch.cat([slow, slow + size // 2])  # [n]: a rotary pair is (i, i + D/2)
    sketches = _orthonormal(width, generator)  # [W, W]: M, n rows a head
    directions = _orthonormal(width, generator)  # [W, W]: R, n columns a head
    embedding = model.model.embed_tokens.weight.std()
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    query, key = _previous_token(frequency)  # [D]
    for head in range(count):
        rows = slice(head * size, (head + 1) * size)
        part = slice(head * len(content), (head + 1) * len(content))
        sketch, direction = sketches[part], directions[:, part]  # [n, W], [W, n]
        for projection in (first.q_proj, first.k_proj, second.q_proj, second.k_proj):
            projection.weight[rows] *= 0.1
        first.q_proj.bias[rows], first.k_proj.bias[rows] = query, key
        first.v_proj.weight[rows] = _rows(sketch, size)
        first.o_proj.weight[:, rows] = _rows(direction.T, size).T * embedding
        second.q_proj.weight[rows][content] += sketch * _MATCH**0.5
        second.k_proj.weight[rows][content] += direction.T * _MATCH**0.5
        copied = sketches[width - (head + 1) * size : width - head * size]  # [D, W]
        second.v_proj.weight[rows] = copied
        second.o_proj.weight[:, rows] = copied.T * embedding * _COPY


def _previous_token(frequency: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A query and a key [D] whose score is highest when the key stands one step before."""
    strength = _LOOK_BACK * (frequency >= _SLOW)  # [D/2]
    query = torch.cat([strength, torch.zeros_like(strength)])
    key = torch.cat([strength * frequency.cos(), strength * frequency.sin()])
    return query, key


def _orthonormal(size: int, generator: torch.Generator) -> torch.Tensor:
    basis: torch.Tensor = torch.linalg.qr(torch.randn(size, size, generator=generator)).Q
    return basis


def _rows(matrix: torch.Tensor, count: int) -> torch.Tensor:
    """The rows of a matrix, and rows of zeros up to `count`."""
    padded = torch.zeros(count, matrix.shape[1])
    padded[: len(matrix)] = matrix
    return padded
