"""How vLLM is started for a model: its arguments, its environment variables, and the folder that it reads.

Invariant: what the sampling contract needs (logprobs of the sampled distribution, no end token of vLLM's own, prefix
caching) is always among the arguments; environment variables that the user has set are left as they are.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedModel

from turnwise.engines.settings import VLLMEngineSettings
from turnwise.engines.weights import sampled_model

WEIGHTS_FILE = "model.safetensors"
_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",  # the folder has everything
}
_CPU_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else vLLM takes the cores from the learner
    "TORCHDYNAMO_DISABLE": "1",  # compiling takes a minute and gains nothing for small models
}


def choose_dtype(
    settings: VLLMEngineSettings, model: PreTrainedModel, autocast: torch.dtype | None
) -> Literal["float32", "bfloat16"]:
    """The type of vLLM's weights and cache: the one asked for, or that of the model's own matrix products."""
    if settings.dtype != "auto":
        return settings.dtype
    return "bfloat16" if torch.bfloat16 in (autocast, model.dtype) else "float32"


def probe_dtype(
    settings: VLLMEngineSettings, model: PreTrainedModel, autocast: torch.dtype | None
) -> Literal["float32", "bfloat16"]:
    """The coarser type of model and engine, which decides how far their logprobs may differ."""
    both = (choose_dtype(settings, model, autocast), choose_dtype(VLLMEngineSettings(), model, autocast))
    return "bfloat16" if "bfloat16" in both else "float32"


def engine_arguments(
    settings: VLLMEngineSettings, *, dtype: str, context_limit: int, on_cpu: bool
) -> dict[str, object]:
    """vLLM's engine arguments by its own names, all but the folder of the model."""
    return {
        "skip_tokenizer_init": True,  # ids in, ids out
        "generation_config": "vllm",  # no sampling defaults from the model's folder
        "dtype": dtype,
        "max_model_len": context_limit,
        "max_num_seqs": settings.slots,
        "max_num_batched_tokens": max(settings.prefill_tokens, settings.slots),
        "tensor_parallel_size": settings.tensor_parallel,
        "block_size": settings.block_tokens,
        "gpu_memory_utilization": settings.gpu_memory,
        "enable_prefix_caching": True,
        "enforce_eager": on_cpu if settings.eager is None else settings.eager,
        "logprobs_mode": "processed_logprobs",
        "seed": 0,
        "disable_log_stats": True,
        **settings.options,
    }


def to_flags(arguments: Mapping[str, object]) -> list[str]:
    """The arguments as those of a command: `["--max-model-len", "512", "--enforce-eager", ...]`."""
    flags: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            flags += [f"--{flag}", value if isinstance(value, str) else json.dumps(value)]
    return flags


def environment(settings: VLLMEngineSettings, *, on_cpu: bool) -> dict[str, str]:
    """The variables that vLLM needs and that the user has not set."""
    wanted = dict(_ENVIRONMENT)
    if on_cpu:
        wanted |= _CPU_ENVIRONMENT | {"VLLM_CPU_KVCACHE_SPACE": str(settings.cpu_cache_gigabytes)}
    return {name: value for name, value in wanted.items() if name not in os.environ}


def write_config(model: PreTrainedModel, folder: Path) -> None:
    """Writes the `config.json` by which vLLM chooses its own implementation of the model's architecture."""
    plain = sampled_model(model)
    folder.mkdir(parents=True, exist_ok=True)
    config = plain.config.to_dict() | {"architectures": [type(plain).__name__]}
    (folder / "config.json").write_text(json.dumps(config, indent=1, default=str), encoding="utf-8")
