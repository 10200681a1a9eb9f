"""The `learner` and `sft` sections of a recipe. No torch: a recipe is checked before it loads."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from turnwise.settings import Settings


class OptimizerSettings(Settings):
    """AdamW and its learning rate."""

    lr: float = Field(default=1e-6, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Of the learning rate, after its warm-up, over the steps of the run."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises to `lr`."""
    final_lr_share: float = Field(default=0.0, ge=0, le=1)
    """The share of `lr` at which the `linear` and `cosine` schedules end."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Acts on matrices alone, not on biases and norms."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Gradient-clipping norm; null disables it."""

    def unread(self) -> Mapping[str, str]:
        return {"final_lr_share": "schedule"} if self.schedule == "constant" else {}


class CriticSettings(Settings):
    """How the critic learns; read by estimators that have one."""

    optimizer: OptimizerSettings = OptimizerSettings(lr=1e-5)
    warmup: int = Field(default=0, ge=0)
    """Updates at the start in which only the critic learns."""


class LearnerSettings(Settings):
    """How a batch becomes optimizer steps."""

    epochs: int = Field(default=1, ge=1)
    """Passes over each batch."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps per epoch; a mini-batch holds whole trajectories."""
    tokens_per_microbatch: int = Field(default=16384, ge=1)
    """The most tokens, padding included, that go through a model at once; it changes memory, never the gradient."""
    packing: bool | None = None
    """On, rows of a micro-batch lie end to end, and long prompts that are equal are read once; off, rows are padded to
    the longest. None packs where the model's attention can be done row by row: where it cannot, packed rows are kept
    apart by a mask, and cost the square of the micro-batch. It never changes the gradient."""
    compile: bool = False
    """Layers, or on a GPU the whole trunk, run as torch.compile makes them, which takes the first update a minute or
    more and every other less time."""
    checkpointing: bool = False
    """Layers are run again in the backward pass, in place of keeping what they computed: less memory, more time."""
    optimizer: OptimizerSettings = OptimizerSettings()
    critic: CriticSettings = CriticSettings()


class SFTSettings(Settings):
    """Supervised fine-tuning on demonstrations, before reinforcement learning."""

    demonstrations: int = Field(default=1000, ge=1)
    """Episodes that the environment's expert plays; read when `chats` is null."""
    chats: str | None = None
    """A JSONL file of chats to imitate in place of the expert: one `{"messages": [...], "tools": [...]}` a line."""
    batch: int = Field(default=16, ge=1)
    """Demonstrations per optimizer step."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the demonstrations."""
    context_weight: float = Field(default=0.0, ge=0, le=1)
    """Loss weight of a context token beside an action token's 1; 0 masks it. Above 0 for models that never saw text."""
    tokens_per_microbatch: int = Field(default=16384, ge=1)
    """The most tokens, padding included, that go through the model at once."""
    optimizer: OptimizerSettings = OptimizerSettings(lr=1e-5, schedule="cosine")

    def unread(self) -> Mapping[str, str]:
        return {} if self.chats is None else {"demonstrations": "chats"}
