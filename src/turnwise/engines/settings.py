"""The `engine` section of a recipe: one settings class for each kind of engine, without torch.

Invariant: a key that the chosen kind does not read is an error.
"""

from typing import Literal, TypeAlias

from pydantic import PositiveInt

from turnwise.settings import Settings


class LocalEngineSettings(Settings):
    """The engine in this process, on the learner's own weights."""

    kind: Literal["local"] = "local"
    """Which engine samples."""
    slots: PositiveInt = 64
    """Conversations that are sampled, or keep their KV cache, at the same time."""
    prefill_tokens: PositiveInt = 8192
    """The most prompt tokens, padding included, of one forward; longer prompts are prefilled in chunks."""


EngineSettings: TypeAlias = LocalEngineSettings
"""The settings of any engine. With a second kind this becomes a union chosen by `kind`:

    Annotated[
        Annotated[LocalEngineSettings, Tag("local")] | Annotated[OtherSettings, Tag("other")], by_kind("local")
    ]
"""
