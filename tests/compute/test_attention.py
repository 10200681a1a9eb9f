"""Attention row by row against each row alone under the model's own: states, gradients, and what is refused."""

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.llama import modeling_llama

from episodes_by_hand import VOCABULARY, tiny_llama
from turnwise.compute import attention
from turnwise.compute.attention import VARLEN_ATTENTION, varlen_arguments, varlen_attention
from turnwise.compute.score import backbone_of, hidden_states, supports_varlen_attention
from turnwise.learner.forward_runner import Packing, choose_packing

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "max_position_embeddings": 64,
}
FAMILIES = {
    "llama": lambda: tiny_llama(num_attention_heads=4, num_key_value_heads=2),
    "mistral, window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=3)),
    "qwen2, windows": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=3, max_window_layers=1)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8)),
    "gemma3, windows": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**SIZES, head_dim=8, sliding_window=3, layer_types=["sliding_attention", "full_attention"])
    ),
}
ROWS = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 9, 8], [1, 2, 3, 4, 5], [11, 12], [13]]
"""The second and the third open with the four tokens that the first opens with."""
POSITIONS = [*range(7), 4, 5, 4, 0, 1, 0]
IDS = [*ROWS[0], *ROWS[1][4:], *ROWS[2][4:], *ROWS[3], *ROWS[4]]


def _build(family):
    torch.manual_seed(0)
    return FAMILIES[family]().double().eval()


def _loss(states):
    """Something that weighs every number of every state differently."""
    return sum(
        (state * torch.linspace(-1, 2, state.numel(), dtype=state.dtype).view_as(state)).sum() for state in states
    )


def _gradients(model, states):
    _loss(states).backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


def _alone(model):
    return [hidden_states(backbone_of(model), torch.tensor([row]))[0] for row in ROWS]


def _together(model, ids=IDS, positions=POSITIONS):
    with varlen_attention(model):
        hidden = hidden_states(backbone_of(model), torch.tensor([ids]), torch.tensor([positions]))[0]
    first, second, third, *rest = hidden.split([7, 2, 1, 2, 1])
    return [first, torch.cat([first[:4], second]), torch.cat([first[:4], third]), *rest]


def _assert_same(found, expected, tolerance=1e-6):
    """To what float32 leaves of it, in which these models take their norms."""
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=tolerance * float(other.detach().abs().max()), rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_end_to_end_are_rows_alone(family):
    """Prompts that are read once, windows of three tokens, heads that share keys; forward and backward."""
    model = _build(family)
    _assert_same(_together(model), _alone(model))
    _assert_same(_gradients(model, _together(model)), _gradients(model, _alone(model)))


def test_positions_tell_how_rows_lie():
    rows = varlen_arguments(torch.tensor([POSITIONS]), torch.device("cpu"))
    assert rows["cu_seq_lens_q"].tolist() == [0, 7, 9, 10, 12, 13]
    assert rows["cu_seq_lens_k"].tolist() == [0, 7, 13, 18, 20, 21]
    seen = rows["key_index"].tolist()
    assert seen == [*range(7), *(0, 1, 2, 3, 7, 8), *(0, 1, 2, 3, 9), 10, 11, 12]
    assert [IDS[place] for place in seen] == [token for row in ROWS for token in row]
    assert rows["max_length_q"] >= 7
    assert varlen_arguments(torch.tensor([[0, 1, 2, 0, 1]]), torch.device("cpu"))["key_index"] is None


def _flash(query, key, value, query_offsets, key_offsets, longest_query, longest_key, *, scale, window_size):
    """What torch documents of its kernel: pieces apart, causal from the bottom right, a window to the left."""
    assert query.dim() == key.dim() == 3
    assert query_offsets.dtype == key_offsets.dtype == torch.int32
    assert int(query_offsets.diff().max()) <= longest_query
    assert int(key_offsets.diff().max()) <= longest_key
    left, right = window_size
    assert right == 0
    found = []
    for a, b, c, d in zip(query_offsets[:-1], query_offsets[1:], key_offsets[:-1], key_offsets[1:], strict=True):
        own, seen = int(b - a), int(d - c)
        behind = (torch.arange(own) + seen - own)[:, None] - torch.arange(seen)
        mask = (behind >= 0) & ((behind <= left) | (left < 0))
        piece = F.scaled_dot_product_attention(
            query[a:b].transpose(0, 1)[None],
            key[c:d].transpose(0, 1)[None],
            value[c:d].transpose(0, 1)[None],
            mask,
            scale=scale,
            enable_gqa=True,
        )
        found.append(piece[0].transpose(0, 1))
    return torch.cat(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_kernel_of_a_gpu_is_told_the_same(monkeypatch, family):
    monkeypatch.setattr(attention, "_has_kernel", lambda query: True)
    monkeypatch.setattr(attention, "_varlen_kernel", _flash)
    model = _build(family)
    expected = _gradients(model, _alone(model))
    _assert_same(_gradients(model, _together(model)), expected, 1e-5)


def test_which_tensors_have_a_kernel():
    class Query(torch.Tensor):
        is_cuda = True

    for dtype, width, expected in [
        (torch.bfloat16, 64, True),
        (torch.float16, 256, True),
        (torch.float32, 64, False),
        (torch.bfloat16, 257, False),
        (torch.bfloat16, 20, False),
    ]:
        query = torch.empty(1, 2, 3, width, dtype=dtype).as_subclass(Query)
        assert attention._has_kernel(query) is expected
    assert not attention._has_kernel(torch.empty(1, 2, 3, 64, dtype=torch.bfloat16)), "not on a CPU"


def test_no_mask_is_built_and_the_models_own_attention_comes_back(monkeypatch):
    model = _build("llama")
    masks = []
    real = modeling_llama.create_causal_mask
    monkeypatch.setattr(modeling_llama, "create_causal_mask", lambda **given: masks.append(real(**given)) or masks[-1])
    _together(model)
    assert masks == [None]
    assert model.config._attn_implementation == "sdpa"
    with varlen_attention(model):
        assert model.config._attn_implementation == VARLEN_ATTENTION
        with pytest.raises(IndexError):
            hidden_states(backbone_of(model), torch.tensor([[VOCABULARY]]))
    assert model.config._attn_implementation == "sdpa"


def test_what_attention_cannot_be_told_is_left_to_a_mask():
    """Gemma 2 bends its scores, and gpt-oss adds a sink to them."""
    torch.manual_seed(0)
    gemma2 = Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8)).eval()
    sinks = {**SIZES, "intermediate_size": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8}
    gpt_oss = GptOssForCausalLM(GptOssConfig(**sinks)).eval()
    for model in (gemma2, gpt_oss):
        assert not supports_varlen_attention(model, CPU)
        assert choose_packing(model, CPU, asked=None) is Packing.PADDED
        assert choose_packing(model, CPU, asked=True) is Packing.MASKED
        assert model.config._attn_implementation != VARLEN_ATTENTION


def test_an_attention_that_gives_other_states_is_not_used(monkeypatch):
    model = _build("llama")
    assert choose_packing(model, CPU, asked=None) is Packing.BY_ROWS
    assert choose_packing(model, CPU, asked=True) is Packing.BY_ROWS
    assert choose_packing(model, CPU, asked=False) is Packing.PADDED
    monkeypatch.setattr(attention, "_keys_of", lambda pieces, piece, head, prompt: pieces[piece])
    assert not supports_varlen_attention(model, CPU), "shared prompts are not seen"


def test_dropout_is_drawn_in_training_alone():
    model = _build("llama")
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    quiet = _together(model)
    _assert_same(_together(model), quiet)
    model.train()
    drawn = []
    for _ in range(2):
        torch.manual_seed(1)
        drawn.append(_together(model)[0])
    assert torch.equal(*drawn)
    assert not torch.allclose(drawn[0], quiet[0], atol=1e-3)
