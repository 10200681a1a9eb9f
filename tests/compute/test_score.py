"""Scores against the model's own full, unpadded logits; padding, pieces and adapters change nothing."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from episodes_by_hand import VOCABULARY, episode, group, tiny_llama, turn
from turnwise.compute import score as score_module
from turnwise.compute.score import check_packing, check_scoring, score
from turnwise.errors import ModelError
from turnwise.learner.batch import Batch

GROUPS = [
    group(
        episode(turn([1, 2, 3], [4, 5], opens=True), turn([6], [7, 8])),
        episode(turn([9, 2], [3], opens=True)),
        episode(turn([5], [6, 7, 8], opens=True), turn([2, 2], [10], opens=True)),
    )
]
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.3,
}


def _expected(model, batch, temperature):
    """Row by row, without padding, from the model's own forward pass."""
    logprob, entropy = torch.zeros(len(batch.ids)), torch.zeros(len(batch.ids))
    for start, end in zip(batch.row_start[:-1], batch.row_start[1:], strict=True):
        ids = batch.ids[start:end]
        with torch.no_grad():
            said = (model(ids[None]).logits[0].float() / temperature).log_softmax(-1)
        logprob[start + 1 : end] = said[:-1].gather(-1, ids[1:, None]).squeeze(-1)
        entropy[start + 1 : end] = -(said[:-1].exp() * said[:-1]).sum(-1)
    return logprob, entropy


def _assert_scores_match(model, temperature=1.0, budget=1000, packing=False, **masks):
    batch = Batch.of(GROUPS, **masks)
    logprob, entropy = _expected(model, batch, temperature)
    for micro in batch.micro_batches(budget, packing=packing):
        with torch.no_grad():
            scores = score(model, micro, temperature)
        torch.testing.assert_close(scores.logprob.float(), logprob[micro.token], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(scores.entropy.float(), entropy[micro.token], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("budget", [1, 12, 1000])
@pytest.mark.parametrize("action_mask", [True, False])
@pytest.mark.parametrize("packing", [True, False])
def test_scores_are_those_of_the_full_logits(temperature, budget, action_mask, packing):
    _assert_scores_match(tiny_llama(), temperature, budget, packing, action_mask=action_mask)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("packing", [True, False])
def test_other_rows_and_padding_are_invisible_to_every_attention(attention, packing):
    _assert_scores_match(tiny_llama(attn_implementation=attention), packing=packing)


@pytest.mark.parametrize("packing", [True, False])
def test_other_families(packing):
    torch.manual_seed(0)
    qwen = Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True)).eval()
    _assert_scores_match(qwen, packing=packing)
    gemma = Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=2.0, sliding_window=3)).eval()
    _assert_scores_match(gemma, temperature=0.7, packing=packing)


def test_adapters_are_part_of_the_policy():
    model = tiny_llama(dtype=torch.float32)
    (micro,) = Batch.of(GROUPS).micro_batches(1000)
    plain = score(model, micro, 1.0).logprob
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    adapted.eval()
    _assert_scores_match(adapted)
    assert not torch.allclose(score(adapted, micro, 1.0).logprob, plain, atol=1e-3)


def test_the_head_in_pieces_gives_the_same_scores_and_gradients(monkeypatch):
    """By itself in tiles, and called in pieces where somebody listens."""
    model = tiny_llama()
    (micro,) = Batch.of(GROUPS).micro_batches(1000)

    def run():
        scores = score(model, micro, 0.8)
        (scores.logprob.sum() + 2 * scores.entropy.sum()).backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        return [scores.logprob.detach(), scores.entropy.detach(), *gradients]

    whole = run()
    calls = []
    model.lm_head.register_forward_hook(lambda *_: calls.append(None))
    called = run()
    assert len(calls) == 1
    monkeypatch.setattr(score_module, "_LOGITS_AT_ONCE", 3 * VOCABULARY)
    in_pieces = run()
    assert len(calls) == 1 + 2 * 3, "three pieces, each once more in the backward pass"
    for found in (called, in_pieces):
        for piece, expected in zip(found, whole, strict=True):
            torch.testing.assert_close(piece, expected, atol=1e-10, rtol=1e-8)


def test_the_head_never_sees_context():
    model = tiny_llama()
    seen = []
    model.lm_head.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape))
    (micro,) = Batch.of(GROUPS).micro_batches(1000)
    score(model, micro, 1.0)
    assert seen == [(9, 16)], "nine action tokens among seventeen"


def test_a_model_that_scales_its_logits_unknown_to_us_is_refused():
    torch.manual_seed(0)
    with pytest.raises(ModelError, match="GraniteForCausalLM changes its logits"):
        check_scoring(GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=8.0)), torch.device("cpu"))
    check_scoring(tiny_llama(), torch.device("cpu"))


class Recurrent(nn.Module):
    """A backbone that sums what it has read and ignores positions that restart."""

    def __init__(self):
        super().__init__()
        self.config = LlamaConfig(vocab_size=VOCABULARY)
        self.embedding = nn.Embedding(VOCABULARY, 8)

    def get_decoder(self):
        return _Sums(self.embedding)


class _Sums(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def forward(self, input_ids, use_cache, position_ids=None):
        return type("Output", (), {"last_hidden_state": self.embedding(input_ids).cumsum(1)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_whose_rows_cannot_be_kept_apart_is_not_packed(dtype):
    with pytest.raises(ModelError, match=r"^Recurrent lets tokens see across packed rows[^\n]*learner.packing: false$"):
        check_packing(Recurrent().to(dtype), torch.device("cpu"), setting="learner.packing")
    check_packing(tiny_llama(dtype=torch.float32), torch.device("cpu"))
