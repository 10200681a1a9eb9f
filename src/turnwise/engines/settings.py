"""The `engine` section of a recipe: one settings class for each kind of engine, without torch.

Invariant: a key that the chosen kind does not read is an error.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, JsonValue, NonNegativeInt, PositiveInt, Tag, field_validator, model_validator

from turnwise.endpoints import ChatEndpointSettings
from turnwise.http import parse_address
from turnwise.settings import Settings, by_kind


class LocalEngineSettings(Settings):
    """The engine in this process, on the learner's own weights."""

    kind: Literal["local"] = "local"
    """Which engine samples."""
    slots: PositiveInt = 64
    """Conversations that are sampled, or keep their KV cache, at the same time."""
    prefill_tokens: PositiveInt = 8192
    """The most prompt tokens, padding included, of one forward; longer prompts are prefilled in chunks."""


class VLLMEngineSettings(Settings):
    """vLLM, in this process or as servers; needs the extra `vllm`, but for servers that others started."""

    kind: Literal["vllm"] = "vllm"
    """Which engine samples."""
    slots: PositiveInt = 64
    """Conversations that are sampled at the same time, by each server; vLLM's `max_num_seqs`."""
    prefill_tokens: PositiveInt = 8192
    """The most tokens of one forward; longer prompts are prefilled in chunks; vLLM's `max_num_batched_tokens`."""
    servers: NonNegativeInt | tuple[str, ...] = 0
    """0 samples in this process; a number starts so many servers here; addresses (`[http://10.0.0.2:8000]`) name
    servers that run already."""
    devices: tuple[NonNegativeInt, ...] = ()
    """GPUs of the servers that are started here, `tensor_parallel` for each in this order; empty: all see all."""
    tensor_parallel: PositiveInt = 1
    """GPUs that share the weights of one server."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights and KV cache in vLLM; `auto`: bfloat16 under `model.autocast`, else the model's."""
    block_tokens: PositiveInt = 32
    """Tokens in a block of the KV cache; prompts share whole blocks alone."""
    gpu_memory: float = Field(default=0.5, gt=0, le=1)
    """The share of a GPU's memory that vLLM takes; in this process, the learner needs the rest."""
    cpu_cache_gigabytes: PositiveInt = 1
    """The size of the KV cache on a CPU."""
    eager: bool | None = None
    """Without torch.compile and CUDA graphs: slower steps, a quicker start; null: on a CPU alone."""
    options: dict[str, JsonValue] = Field(default={})
    """Further arguments of vLLM's engine by its own names (`{swap_space: 4}`); they replace ours."""
    weights_folder: str | None = None
    """Where servers read new weights, a folder that all of them see under this path; null: this machine's memory."""
    start_seconds: float = Field(default=600.0, gt=0)
    """How long a server may take to start."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds for one request to a server: for a turn, or for new weights."""

    @field_validator("servers")
    @classmethod
    def _check_servers(cls, servers: int | tuple[str, ...]) -> int | tuple[str, ...]:
        if isinstance(servers, int):
            return servers
        if not servers:
            raise ValueError("an empty list names no server: write their addresses, a number to start, or 0 for none")
        for url in servers:
            if parse_address(url) is None:
                raise ValueError(f"'{url}' is not the address of a server; write e.g. http://127.0.0.1:8000")
        return tuple(url.rstrip("/").removesuffix("/v1") for url in servers)

    @model_validator(mode="after")
    def _check_parallel(self) -> "VLLMEngineSettings":
        if self.tensor_parallel > 1 and not self.servers:
            raise ValueError(f"tensor_parallel {self.tensor_parallel} is for servers: set servers to 1 or more")
        return self

    def unread(self) -> Mapping[str, str]:
        unread: list[str] = []
        if not self.servers:
            unread += ["weights_folder", "start_seconds", "timeout", "devices"]
        elif not isinstance(self.servers, int):  # they were started by others, with options of their own
            unread += ["slots", "prefill_tokens", "devices", "tensor_parallel", "dtype", "block_tokens", "gpu_memory"]
            unread += ["cpu_cache_gigabytes", "eager", "options", "start_seconds"]
        return dict.fromkeys(unread, "servers")


class OpenAIEngineSettings(ChatEndpointSettings):
    """A model behind an OpenAI-compatible server: it plays in evaluations; to train, it must give ids and logprobs."""

    kind: Literal["openai"] = "openai"
    """Which engine samples."""
    slots: PositiveInt = 64
    """Requests under way at the same time."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds for one request."""
    weights_folder: str | None = None
    """Where the server reads new weights in training, under this same path; null: this machine's memory."""


EngineSettings: TypeAlias = Annotated[
    Annotated[LocalEngineSettings, Tag("local")]
    | Annotated[VLLMEngineSettings, Tag("vllm")]
    | Annotated[OpenAIEngineSettings, Tag("openai")],
    by_kind("local"),
]
"""The settings of any engine, chosen by `kind`."""
