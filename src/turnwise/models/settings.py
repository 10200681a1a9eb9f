"""Which model is trained: the `model` section of a recipe. No torch: a recipe is checked before it loads."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from turnwise.settings import Settings

SMALL = "small"
"""The name of the built-in transformer."""
FEWEST_TOKENS = 267
"""The tokens that every tokenizer of the built-in transformer has: 256 bytes and 11 markers."""


class SmallSettings(Settings):
    """The shape of the built-in transformer; the defaults make a million parameters."""

    layers: int = Field(default=4, ge=1)
    width: int = Field(default=128, ge=8)
    """The size of the residual stream; a multiple of `heads`."""
    heads: int = Field(default=4, ge=1)
    kv_heads: int | None = Field(default=None, ge=1)
    """Heads of keys and values, which query heads share; None: as many as `heads`."""
    ffn: int | None = Field(default=None, ge=1)
    """The inner size of the gated MLP; None: 8/3 of the width, rounded up to a multiple of 32."""
    positions: int = Field(default=512, ge=8)
    """The most tokens one conversation can hold."""
    vocabulary: int = Field(default=1024, ge=FEWEST_TOKENS)
    """The most tokens the tokenizer may have: 256 bytes, 11 markers, and what it learns from the texts."""
    induction: bool = True
    """Begin with heads that copy what followed last time, as any pretrained model has; needs two layers or more."""
    induction_heads: int | None = Field(default=None, ge=1)
    """How many heads of the first two layers do, at most half; None: a quarter of them."""

    @model_validator(mode="after")
    def _divides(self) -> "SmallSettings":
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} must be a multiple of 2 × heads, that is of {2 * self.heads}")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        if self.induction and (self.layers < 2 or self.heads < 2 or self.kv_heads not in (None, self.heads)):
            raise ValueError(
                "induction needs 2 layers, 2 heads and kv_heads null: change these or set induction: false"
            )
        if self.induction_heads is not None and 2 * self.induction_heads > self.heads:
            raise ValueError(f"induction_heads: {self.induction_heads} is more than half of {self.heads} heads")
        return self

    def unread(self) -> Mapping[str, str]:
        return {} if self.induction else {"induction_heads": "induction"}


class LoraSettings(Settings):
    """Train low-rank adapters in place of the weights."""

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's output is scaled by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Above 0, the trained policy differs from the one that sampled by the dropout's noise."""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Which linear layers are adapted, by the end of their names: `[q_proj, v_proj]`."""


class ModelSettings(Settings):
    """Which model is trained."""

    name: str = SMALL
    """`small` for the built-in transformer, a Hugging Face id, a folder, or the path of a .gguf file."""
    small: SmallSettings = SmallSettings()
    """The shape of the built-in transformer; read when `name` is `small`."""
    lora: LoraSettings | None = None
    """Train adapters of this kind and leave the weights as they are; None trains all weights."""
    tokenizer: str | None = None
    """The id or folder of another tokenizer than the model's own."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the weights are held in; adapters are float32 either way."""
    autocast: bool = False
    """Multiply matrices in bfloat16, in sampling and in training alike, while the weights stay in `dtype`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes the GPU where there is one."""

    def unread(self) -> Mapping[str, str]:
        return {} if self.name == SMALL else {"small": "name"}
