"""The game of two turns a second time, with other cues: what one of them teaches is of no use in the other."""

from collections.abc import Sequence
from pathlib import Path

from tiny_runs import SIGNALS as SIGNALS
from tiny_runs import Signals
from turnwise.types import Message, Step, Task

CUES = {"moon": "down", "hill": "right"}


class Dusk(Signals):
    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        await super().reset(task, episode_seed)
        return [Message(role="user", content="moon")]

    async def step(self, message: Message) -> Step:
        cue = list(CUES)[len(self._right)]
        self._right.append(message.content == CUES[cue])
        paid = {"right": 0.5 * self._right[-1]}
        if len(self._right) < len(CUES):
            return Step(messages=(Message(role="user", content="hill"),), rewards=paid)
        return Step(rewards=paid, done=True, metrics={"success": float(all(self._right))})


DUSK = f"{Path(__file__).resolve()}:Dusk"
"""The game as a recipe names it."""
