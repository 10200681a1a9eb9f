"""Tiny random models of many families, to find out which of them the local engine samples, and how."""

from collections.abc import Mapping

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tiny_models import SHAPE

_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 160}
_EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 12, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}

FAMILIES: Mapping[str, Mapping[str, object]] = {
    "bloom": {"n_layer": 2, "n_head": 4},
    "codegen": {**_GPT, "rotary_dim": 4},
    "cohere": {},
    "deepseek_v3": {**_LATENT, **_ROUTED, "num_key_value_heads": 4, "head_dim": None},
    "exaone4": {},
    "falcon": {"num_key_value_heads": None, "head_dim": None},
    "falcon, alibi": {"alibi": True, "multi_query": False, "num_key_value_heads": None, "head_dim": None},
    "gemma": {},
    "gemma2": {"sliding_window": 9, "query_pre_attn_scalar": 8, "attn_implementation": "eager"},
    "gemma3_text": {"sliding_window": 9, "query_pre_attn_scalar": 8},
    "glm4": {},
    "gpt2": _GPT,
    "gpt_bigcode": _GPT,
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 9},
    "gpt_neox": {},
    "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 9, "attn_implementation": "eager"},
    "gptj": {**_GPT, "rotary_dim": 4},
    "granite": {},
    "jamba": {},
    "llama": {},
    "mamba": {"state_size": 4},
    "mistral": {"sliding_window": 9},
    "mixtral": {"num_local_experts": 2},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 160},
    "olmo2": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "phi": {},
    "phi3": {},
    "qwen2": {},
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 16},
    "qwen3": {},
    "qwen3_moe": _EXPERTS,
    "recurrent_gemma": {"attention_window_size": 16, "lru_width": 32, "block_types": ["recurrent", "attention"]},
    "rwkv": {"attention_hidden_size": 32, "context_length": 160},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {},
}
"""By name: what a config has besides the shape that all share; None takes a key of that shape away."""


def make_family(name: str) -> PreTrainedModel:
    """A model with random weights, the same ones every time."""
    given = {key: value for key, value in {**SHAPE, **FAMILIES[name]}.items() if value is not None}
    attention = given.pop("attn_implementation", None)
    torch.manual_seed(5)
    config = AutoConfig.for_model(name.partition(",")[0], **given)
    options = {} if attention is None else {"attn_implementation": attention}
    return AutoModelForCausalLM.from_config(config, **options).eval()
