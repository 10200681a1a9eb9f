"""What is evaluated, and how."""

from collections.abc import Mapping

from pydantic import Field

from turnwise.agents.decoding import Decoding
from turnwise.settings import Settings


class EvaluateSettings(Decoding, Settings):
    """What is evaluated, when, and how it is decoded."""

    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    tasks: int = Field(default=200, ge=1)
    """How many tasks of the split, from its beginning."""
    samples_per_task: int = Field(default=1, ge=1)
    """Episodes per task; with several, pass@k is reported too."""
    split: str = "test"
    """The environment's tasks to evaluate on."""
    hold_out: int = Field(default=0, ge=0)
    """Evaluate on so many of the training tasks in place of `split`; neither SFT nor RL then sees any of them.
    For choosing settings without a look at the test. They are the same in every run; of a mixture, so many of each.
    `evaluate.tasks` does not cut them, and what `sft.chats` holds is not looked at."""
    group_by: tuple[str, ...] | None = None
    """Fields of the tasks' data to report scores by; null: `hops` and `source`, where tasks have them."""
    every: int = Field(default=0, ge=0)
    """Evaluate every this many training steps; 0: only before and after training."""
    untrained: bool = False
    """Also evaluate the model before SFT."""

    @property
    def asked_split(self) -> str:
        """The split that the tasks are of: those held out are of training."""
        return "train" if self.hold_out else self.split

    def unread(self) -> Mapping[str, str]:
        return dict.fromkeys(("split", "tasks"), "hold_out") if self.hold_out else {}
