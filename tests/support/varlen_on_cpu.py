"""A GPU's attention over rows end to end, as an operator that a CPU has too: in it, packed rows are in one graph."""

import torch


def varlen_attention(query, key, value, query_offsets, key_offsets, longest_query, longest_key, *, scale, window_size):
    """As torch's, for queries [W, H, D] over keys and values […, K, D]; windows are not known here."""
    assert window_size == (-1, 0)
    assert longest_query > 0 < longest_key
    return _attend(query, key, value, query_offsets, key_offsets, scale)


@torch.library.custom_op("turnwise_tests::varlen_attention", mutates_args=())
def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_offsets: torch.Tensor,
    key_offsets: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    pieces = _pieces(query, key, value, query_offsets, key_offsets)
    return torch.cat([torch.einsum("hab,bhd->ahd", _look(own, seen, scale), worth) for own, seen, worth in pieces])


@torch.library.custom_op("turnwise_tests::varlen_attention_backward", mutates_args=())
def _go_back(
    above: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_offsets: torch.Tensor,
    key_offsets: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    pieces = _pieces(query, key, value, query_offsets, key_offsets)
    found = []
    for (own, seen, worth), over in zip(pieces, above.split(query_offsets.diff().tolist()), strict=True):
        look = _look(own, seen, scale)  # [H, a, b]
        of_look = torch.einsum("ahd,bhd->hab", over, worth)
        of_score = scale * look * (of_look - (of_look * look).sum(-1, keepdim=True))
        of_key, of_value = torch.einsum("hab,ahd->bhd", of_score, own), torch.einsum("hab,ahd->bhd", look, over)
        heads = (len(of_key), key.shape[1], -1, key.shape[2])
        found.append(
            (torch.einsum("hab,bhd->ahd", of_score, seen), of_key.view(heads).sum(2), of_value.view(heads).sum(2))
        )
    of_query, of_key, of_value = map(torch.cat, zip(*found, strict=True))
    return of_query, of_key, of_value


def _pieces(query, key, value, query_offsets, key_offsets):
    """Queries [a, H, D] of each piece and what they see [b, H, D], which is there for every piece already."""
    group = query.shape[1] // key.shape[1]
    seen, worth = (states.repeat_interleave(group, dim=1).split(key_offsets.diff().tolist()) for states in (key, value))
    return list(zip(query.split(query_offsets.diff().tolist()), seen, worth, strict=True))


def _look(own, seen, scale):
    """[H, a, b]: how much each query looks at each key; a piece is the end of what it sees."""
    score = scale * torch.einsum("ahd,bhd->hab", own, seen)
    hidden = torch.ones(score.shape[1:], dtype=torch.bool).triu(len(seen) - len(own) + 1)
    return score.masked_fill(hidden, -torch.inf).softmax(-1)


@_attend.register_fake
def _(query, key, value, query_offsets, key_offsets, scale):
    return torch.empty_like(query, memory_format=torch.contiguous_format)


@_go_back.register_fake
def _(above, query, key, value, query_offsets, key_offsets, scale):
    return tuple(torch.empty_like(states, memory_format=torch.contiguous_format) for states in (query, key, value))


def _keep(ctx, inputs, output):
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _hand_down(ctx, above):
    return (*_go_back(above, *ctx.saved_tensors, ctx.scale), None, None, None)


_attend.register_autograd(_hand_down, setup_context=_keep)
