"""Which model is trained: the `model` section of a recipe. No torch: a recipe is checked before it loads."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from turnwise.settings import Settings

SMALL = "small"
"""The name of the built-in transformer."""
LARGE = 50_000_000
"""Parameters from which on a GPU's time decides how long a step takes: of a smaller model it is the host's."""
FEWEST_TOKENS = 267
"""The tokens that every tokenizer of the built-in transformer has: 256 bytes and 11 markers."""


class SmallSettings(Settings):
    """The shape of the built-in transformer; the defaults make a million parameters."""

    layers: int = Field(default=4, ge=1)
    """Transformer layers."""
    width: int = Field(default=128, ge=8)
    """The size of the residual stream; a multiple of `heads`."""
    heads: int = Field(default=4, ge=1)
    """Attention heads of a layer."""
    kv_heads: int | None = Field(default=None, ge=1)
    """Key-value heads, shared by query heads (GQA); null: as many as `heads`."""
    ffn: int | None = Field(default=None, ge=1)
    """Inner size of the gated MLP; null: 8/3 of the width, rounded up to a multiple of 32."""
    positions: int = Field(default=512, ge=8)
    """Most tokens in one conversation."""
    vocabulary: int = Field(default=1024, ge=FEWEST_TOKENS)
    """Most tokens of the tokenizer: 256 bytes, 11 markers, and those it learns from the texts."""
    induction: bool = True
    """Initialise some heads as induction heads, which every pretrained model has; needs two layers or more."""
    induction_heads: int | None = Field(default=None, ge=1)
    """Induction heads in each of the first two layers, at most half of `heads`; null: a quarter."""

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
    """The rank of an adapter's two matrices."""
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's output is scaled by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Acts in SFT, and in RL where `learner.dropout` is on."""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Linear layers to adapt, by the end of their names: `[q_proj, v_proj]`."""


class ModelSettings(Settings):
    """Which model is trained."""

    short_form = "name"

    name: str = SMALL
    """`small` for the built-in transformer, a Hugging Face id, a folder, or the path of a .gguf file."""
    small: SmallSettings = SmallSettings()
    """The shape of the built-in transformer; read when `name` is `small`."""
    lora: LoraSettings | None = None
    """Train adapters and freeze the weights; null trains all weights."""
    tokenizer: str | None = None
    """Id or folder of a tokenizer to use in place of the model's own."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights; adapters are float32 either way."""
    autocast: bool | None = None
    """bfloat16 autocast, in sampling and training alike; the weights stay in `dtype`. null: on a GPU that computes in
    bfloat16, for float32 weights of 50 million parameters or more."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU where there is one."""

    def autocasts(self, *, parameters: int) -> bool:
        """What is asked for, or what a GPU is for."""
        return self.dtype == "float32" and parameters >= LARGE if self.autocast is None else self.autocast

    def unread(self) -> Mapping[str, str]:
        return {} if self.name == SMALL else {"small": "name"}
