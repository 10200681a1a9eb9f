"""From settings to the servers of an engine: those of others by their addresses, and those that we start."""

from functools import partial
from pathlib import Path

import torch

from turnwise.engines.probe import WeightProbe
from turnwise.engines.servers.replica import Replica
from turnwise.engines.servers.wire import OpenAIServer, VLLMServer
from turnwise.engines.settings import OpenAIEngineSettings, VLLMEngineSettings
from turnwise.engines.vllm.arguments import engine_arguments, environment, to_flags
from turnwise.engines.vllm.process import ServerProcess
from turnwise.errors import ConfigError


def make_replicas(
    settings: VLLMEngineSettings | OpenAIEngineSettings,
    probe: WeightProbe,
    *,
    logs: Path,
    dtype: torch.dtype,
    context_limit: int,
) -> list[Replica]:
    """The servers, none of which is started or asked yet; ours write their logs into the folder `logs`."""
    if isinstance(settings, OpenAIEngineSettings):
        connect = partial(OpenAIServer, model=settings.model, timeout=settings.timeout, key_env=settings.key_env)
        return [Replica(connect, probe, url=settings.url)]
    connect_vllm = partial(VLLMServer, timeout=settings.timeout)
    if not isinstance(settings.servers, int):
        return [Replica(connect_vllm, probe, url=url) for url in settings.servers]
    needed = settings.servers * settings.tensor_parallel
    if settings.devices and len(settings.devices) < needed:
        raise ConfigError(
            f"engine.devices: {settings.servers} servers need {needed} GPUs; name as many, or start fewer"
        )
    on_cpu = not torch.cuda.is_available()
    arguments = engine_arguments(
        settings, dtype=str(dtype).removeprefix("torch."), context_limit=context_limit, on_cpu=on_cpu
    )
    flags = [*to_flags(arguments), "--enable-scale-out", "--enable-prompt-tokens-details"]
    own = environment(settings, on_cpu=on_cpu)
    processes = []
    for place in range(settings.servers):
        devices = settings.devices[place * settings.tensor_parallel : (place + 1) * settings.tensor_parallel]
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))} if devices else {}
        log = logs / f"server-{place}.log"
        processes.append(ServerProcess(flags, {**own, **seen}, log))
    return [
        Replica(connect_vllm, probe, process=process, start_seconds=settings.start_seconds) for process in processes
    ]
