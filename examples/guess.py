"""A tool and an environment of one's own: guess a number with a tool that says higher or lower.

turnwise check examples/guess.py:Guess
turnwise play examples/guess.py:Guess
"""

import random

from turnwise import Task, ToolEnv, ToolResult, reward, tool
from turnwise.rewards import Episode


@reward
def found(episode: Episode) -> float:
    """1 when a guess was right, whatever was said in the end."""
    return float(any(message.content == "equal" for message in episode.messages))


class Guess(ToolEnv):
    def __init__(self) -> None:
        tasks = [Task(id=str(seed), seed=seed, data={"question": "Find my number, 1 to 10."}) for seed in range(500)]
        super().__init__(tasks=tasks, rewards=[found], process={"closer": 0.1}, max_turns=4)

    def begin(self, task: Task, episode_seed: int) -> None:
        self.number, self.best = random.Random(task.seed).randint(1, 10), 10

    @tool(quick=True)
    def guess(self, n: int) -> ToolResult:
        """Guesses the number and tells whether it is higher, lower or equal."""
        distance = abs(n - self.number)
        closer, self.best = distance < self.best, min(distance, self.best)
        answer = "equal" if not distance else "higher" if n < self.number else "lower"
        return ToolResult(content=answer, rewards={"closer": float(closer)})
