"""The game of two turns, played several times over: too long a conversation for the context it is given."""

from collections.abc import Sequence
from pathlib import Path

from tiny_runs import CUES, Signals
from turnwise.types import Message, Step, Task

ROUNDS = 8


class LongSignals(Signals):
    """Shows the cues in turn, `ROUNDS` in all, and pays for each word that is right; half of them right is success."""

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        opening = await super().reset(task, episode_seed)
        self._shown = 0
        self._won = 0
        return opening

    async def step(self, message: Message) -> Step:
        cues = list(CUES)
        right = message.content == CUES[cues[self._shown % len(cues)]]
        self._shown += 1
        self._won += right
        paid = {"right": right / ROUNDS}
        if self._shown < ROUNDS:
            return Step(messages=(Message(role="user", content=cues[self._shown % len(cues)]),), rewards=paid)
        return Step(rewards=paid, done=True, metrics={"success": float(self._won > ROUNDS / 2)})

    def state_key(self) -> str:
        return str(self._shown)

    def expert_summary(self) -> Message:
        return self.expert()


LONG_SIGNALS = f"{Path(__file__).resolve()}:LongSignals"
"""The game as a recipe names it."""
