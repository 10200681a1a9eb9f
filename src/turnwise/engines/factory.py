"""Makes the engine that the settings choose, importing only that one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnwise.engines.base import Engine
from turnwise.engines.settings import EngineSettings
from turnwise.ledger import Ledger

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


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
    `prompt_ids` is a prompt of the run, on which a local engine checks its forward.
    """
    match settings.kind:
        case "local":
            from turnwise.engines.local.engine import LocalEngine

            return LocalEngine(
                model,
                settings=settings,
                context_limit=context_limit,
                autocast=autocast,
                ledger=ledger,
                prompt_ids=prompt_ids,
            )
