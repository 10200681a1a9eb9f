"""Crossing the street: the light says when, and nobody should talk about it for long."""

import random
from collections.abc import Mapping, Sequence

from turnwise import Message, Reward, Task, ToolEnv
from turnwise.rewards import choose_rewards
from turnwise.seeds import derive_seed
from turnwise.types import Json

LIGHTS = {"red": "wait", "green": "go"}


class Crossing(ToolEnv):
    """One light, one word: `wait` or `go`."""

    def __init__(
        self,
        *,
        rewards: Mapping[str, float] | Sequence[str | Reward | Mapping[str, Json]],
        streets: int = 64,
        hasty: float = 0.5,
    ) -> None:
        """`hasty` is the share of the expert's episodes in which it does not look at the light."""
        colours = list(LIGHTS)
        tasks = [
            Task(id=f"street-{street}", seed=street, data={"question": f"The light is {colours[street % 2]}."})
            for street in range(streets)
        ]
        super().__init__(tasks=tasks, rewards=choose_rewards(rewards))
        self._hasty = hasty

    def begin(self, task: Task, episode_seed: int) -> None:
        self._colour = list(LIGHTS)[task.seed % 2]
        self._chance = random.Random(derive_seed(episode_seed, "expert"))

    def expert(self) -> Message:
        looks = self._chance.random() >= self._hasty
        word = LIGHTS[self._colour] if looks else self._chance.choice(list(LIGHTS.values()))
        return Message(role="assistant", content=word)
