"""The `learner` and `sft` sections of a recipe. No torch: a recipe is checked before it loads."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from pydantic import Field

from turnwise.models.settings import LARGE
from turnwise.settings import Settings

Compile: TypeAlias = bool | Literal["layers"]
"""Whether torch.compile is used: on a GPU for the backbone as a whole, or for its `layers` one by one."""
_FIRST_MICROBATCH, _LARGEST_MICROBATCH = 16384, 65536
"""Tokens: where none are asked for, and as many as pay on a GPU."""
_ENOUGH_UPDATES, _ENOUGH_SFT_STEPS = 30, 100
"""From here on a run wins back the seconds that compiling takes."""


class _PassSettings(Settings):
    """What SFT and updates share: how passes are made."""

    tokens_per_microbatch: int | None = Field(default=None, ge=1)
    """Most tokens, padding included, in one forward pass; changes memory, never the gradient. null: 16,384, and in one
    process on a GPU twice as many after each step, up to 65,536, as long as memory is left. Where it is full, half."""

    @property
    def first_microbatch(self) -> int:
        """Tokens of the first micro-batches."""
        return self.tokens_per_microbatch or _FIRST_MICROBATCH

    @property
    def largest_microbatch(self) -> int:
        """Tokens that micro-batches may grow to."""
        return self.tokens_per_microbatch or _LARGEST_MICROBATCH


class OptimizerSettings(Settings):
    """AdamW and its learning rate."""

    lr: float = Field(default=1e-6, gt=0)
    """The learning rate, after its warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Of the learning rate, after its warm-up, over the steps of the run."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises to `lr`."""
    final_lr_share: float = Field(default=0.0, ge=0, le=1)
    """The share of `lr` at which the `linear` and `cosine` schedules end."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Acts on matrices alone, not on biases and norms."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of its averages of the gradient and of its square."""
    eps: float = Field(default=1e-8, gt=0)
    """What AdamW adds to the root of the average square before it divides by it."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Gradient-clipping norm; null disables it."""
    max_skipped: int = Field(default=2, ge=0)
    """Steps in a row that are skipped since their loss or gradient is not finite; one more ends the run."""

    def unread(self) -> Mapping[str, str]:
        return {"final_lr_share": "schedule"} if self.schedule == "constant" else {}


class CriticSettings(Settings):
    """How the critic learns; read where the estimator has one."""

    optimizer: OptimizerSettings = OptimizerSettings(lr=1e-5)
    warmup: int = Field(default=0, ge=0)
    """Updates at the start in which only the critic learns."""


class LearnerSettings(_PassSettings):
    """How a batch becomes optimizer steps."""

    epochs: int = Field(default=1, ge=1)
    """Passes over each batch."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps per epoch; a mini-batch holds whole trajectories."""
    packing: bool | None = None
    """On, rows of a micro-batch lie end to end, and long prompts that are equal are read once; off, rows are padded to
    the longest; null packs where the model supports variable-length attention: elsewhere, packed rows are kept apart by
    a mask, at a cost of the square of the micro-batch. Never changes the gradient."""
    compile: Compile | None = None
    """torch.compile. `layers`: layer by layer, which is compiled once for all of them and kept on disk; `true`: on a
    GPU the whole backbone, where the first update takes minutes longer. Every later update takes less time. null:
    `layers` in one process on a GPU, for a model of 50 million parameters or more and a run of 30 steps or more."""
    skip_zero_rows: bool | None = None
    """Leaves trajectories whose advantages are all 0 out of an update's forward and backward passes; null does so on a
    GPU. Their gradient is 0 unless the loss has other terms (entropy, KL, a critic): then all are read anyway. Never
    changes the gradient; of the metrics, `policy/approx_kl` and `policy/sampler_gap` are then over the rows that were
    read, and `policy/entropy` is the mean negative logprob of all sampled tokens, which estimates it."""
    checkpointing: bool = False
    """Activation checkpointing: layers run again in the backward pass; less memory, more time."""
    activation_offload: bool = False
    """On a GPU, what the backward pass needs of the forward pass waits in the host's memory: with `checkpointing` the
    inputs of layers, else all that they save. Less memory, more time; never changes the gradient."""
    shard: bool = False
    """FSDP2: processes that torchrun started share one copy of the policy's, the critic's and the reference's weights,
    gradients and moments, in place of one each; SFT too. Less memory, more exchange; never changes the gradient."""
    dropout: bool = False
    """Dropout in the passes that train the policy and the critic, at the rates of the model and of `model.lora`. Off,
    since the engine samples without it: dropout's noise in the probability ratio is clipped as if the policy had moved.
    SFT always trains with the model's dropout."""
    optimizer: OptimizerSettings = OptimizerSettings()
    critic: CriticSettings = CriticSettings()

    def compile_for(self, *, parameters: int, steps: int) -> Compile:
        """What is asked for, or what pays on a GPU in a run of so many steps."""
        if self.compile is not None:
            return self.compile
        plain = not (self.shard or self.checkpointing or self.activation_offload)
        return "layers" if plain and parameters >= LARGE and steps >= _ENOUGH_UPDATES else False

    def reduced(self, lr_share: float) -> "LearnerSettings":
        """These with one update a step, at a share of the policy's learning rate; a share of 1 changes nothing."""
        if lr_share == 1.0:
            return self
        optimizer = self.optimizer.model_copy(update={"lr": lr_share * self.optimizer.lr})
        return self.model_copy(update={"epochs": 1, "minibatches": 1, "optimizer": optimizer})


class SFTSettings(_PassSettings):
    """Supervised fine-tuning on demonstrations, before reinforcement learning."""

    demonstrations: int = Field(default=1000, ge=1)
    """Episodes that the environment's expert plays; read when `chats` is null."""
    workers: int = Field(default=0, ge=0)
    """Forked processes that play the demonstrations, for an environment that needs no GPU and whose connections and
    threads are made by `reset`; 0 plays in this process. The demonstrations are the same. Read when `chats` is null."""
    chats: str | None = None
    """A JSONL file of chats to train on in place of the expert's: one `{"messages": [...], "tools": [...]}` a line."""
    batch: int = Field(default=16, ge=1)
    """Demonstrations per optimizer step."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the demonstrations."""
    context_weight: float = Field(default=0.0, ge=0, le=1)
    """Loss weight of a context token beside an action token's 1; 0 masks it. Above 0 for models that never saw text."""
    compile: Compile | None = None
    """As `learner.compile`, with null for 100 steps or more: `layers` pays if SFT takes a minute, `true` if many."""
    split: str = "train"
    """The split whose tasks the expert plays; read when `chats` is null. Another than `train` keeps demonstrated tasks
    apart from those that reinforcement learning trains on."""
    optimizer: OptimizerSettings = OptimizerSettings(lr=1e-5, schedule="cosine")

    def compile_for(self, *, parameters: int, steps: int) -> Compile:
        """What is asked for, or what pays on a GPU in SFT of so many steps."""
        if self.compile is not None:
            return self.compile
        return "layers" if parameters >= LARGE and steps >= _ENOUGH_SFT_STEPS else False

    def unread(self) -> Mapping[str, str]:
        return {} if self.chats is None else dict.fromkeys(("demonstrations", "split", "workers"), "chats")
