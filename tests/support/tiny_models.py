"""Tiny random models and the plain full forward that the engine is measured against."""

from collections.abc import Sequence

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 61
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 160,
    # Random weights this large make the next token depend visibly on the whole context.
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make_model(kind: str = "llama") -> PreTrainedModel:
    """A two-layer model with random weights, the same ones every time; on the GPU where there is one."""
    torch.manual_seed(5)
    return _build(kind).eval().to("cuda" if torch.cuda.is_available() else "cpu")


def _build(kind: str) -> PreTrainedModel:
    match kind:
        case "llama":
            return LlamaForCausalLM(LlamaConfig(**SHAPE))
        case "llama, one key head per query head":
            return LlamaForCausalLM(LlamaConfig(**SHAPE | {"num_key_value_heads": 4}))
        case "llama, eager":
            return LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation="eager"))
        case "qwen2":
            return Qwen2ForCausalLM(Qwen2Config(**SHAPE))
        case "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**SHAPE))
        case "mistral, sliding":
            return MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=9))
        case "gemma":
            return GemmaForCausalLM(GemmaConfig(**SHAPE))
        case "gemma2, capped, half sliding":
            config = Gemma2Config(**SHAPE, sliding_window=9, query_pre_attn_scalar=8, attn_implementation="eager")
            return Gemma2ForCausalLM(config)
        case "gemma3, half sliding":
            kinds = ["sliding_attention", "full_attention"]
            config = Gemma3TextConfig(**SHAPE, sliding_window=9, layer_types=kinds, query_pre_attn_scalar=8)
            return Gemma3ForCausalLM(config)
    raise AssertionError(f"no model of kind {kind}")


ALL_KINDS = (
    "llama",
    "llama, one key head per query head",
    "llama, eager",
    "qwen2",
    "qwen3",
    "mistral, sliding",
    "gemma",
    "gemma2, capped, half sliding",
    "gemma3, half sliding",
)


@torch.no_grad()
def greedy_by_full_forwards(model: PreTrainedModel, prompt: Sequence[int], count: int) -> tuple[list[int], list[float]]:
    """Argmax after argmax, the whole sequence computed anew for each."""
    ids, logprobs = list(prompt), []
    for _ in range(count):
        scores = model(torch.tensor([ids], device=model.device), use_cache=False).logits[0, -1].log_softmax(-1)
        ids.append(int(scores.argmax()))
        logprobs.append(float(scores.max()))
    return ids[len(prompt) :], logprobs


@torch.no_grad()
def logprobs_by_full_forward(
    model: PreTrainedModel,
    prompt: Sequence[int],
    ids: Sequence[int],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> list[float]:
    """The logprob of each sampled id under the truncated, tempered distribution, written for clarity."""
    logits = model(torch.tensor([[*prompt, *ids]], device=model.device), use_cache=False).logits[
        0, len(prompt) - 1 : -1
    ]
    found = []
    for row, token in zip(logits, ids, strict=True):
        probabilities = (row / (temperature or 1.0)).double().softmax(-1).tolist()
        kept = sorted(range(len(row)), key=lambda token: -probabilities[token])
        if temperature:
            kept = kept[: top_k or None]
            nucleus, mass, whole = [], 0.0, sum(probabilities[token] for token in kept)
            for candidate in kept:
                if mass < top_p * whole or not nucleus or top_p >= 1:
                    nucleus.append(candidate)
                mass += probabilities[candidate]
            kept = nucleus
        assert token in kept, "a token outside the truncated distribution was sampled"
        share = probabilities[token] / sum(probabilities[candidate] for candidate in kept)
        found.append(float(torch.tensor(share, dtype=torch.float64).log()))
    return found
