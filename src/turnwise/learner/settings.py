"""How a learner is set up: the `learner` section of a recipe."""

from pydantic import Field

from turnwise.learner.optimizer import OptimizerSettings
from turnwise.settings import Settings


class CriticSettings(Settings):
    """How the critic learns; read by estimators that have one."""

    optimizer: OptimizerSettings = OptimizerSettings(lr=1e-5)
    warmup: int = Field(default=0, ge=0)
    """Updates at the start in which only the critic learns."""


class LearnerSettings(Settings):
    """How a batch becomes optimizer steps."""

    epochs: int = Field(default=1, ge=1)
    """How often each batch is gone through."""
    minibatches: int = Field(default=1, ge=1)
    """Into how many optimizer steps an epoch is split, by whole trajectories."""
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
