"""A tool and an environment of your own: guess a number with a tool that answers higher or lower.

turnwise check examples/guess.py:Guess
turnwise play examples/guess.py:Guess
python examples/guess.py
"""

import random

import turnwise
from turnwise import Episode, Task, ToolEnv, ToolResult, reward, tool


class Guess(ToolEnv):
    def __init__(self) -> None:
        tasks = [Task(id=str(seed), seed=seed, data={"question": "Find my number, 1 to 10."}) for seed in range(500)]
        super().__init__(tasks=tasks, process={"closer": 0.1}, max_turns=4)

    def begin(self, task: Task, episode_seed: int) -> None:
        self.number, self.best = random.Random(task.seed).randint(1, 10), 10

    @tool
    def guess(self, n: int) -> ToolResult:
        """Guesses the number and tells whether it is higher, lower or equal."""
        distance = abs(n - self.number)
        closer, self.best = distance < self.best, min(distance, self.best)
        answer = "equal" if not distance else "higher" if n < self.number else "lower"
        return ToolResult(content=answer, rewards={"closer": float(closer)})

    @reward
    def found(self, episode: Episode) -> float:
        """1 when a guess was right, whatever the final answer."""
        return float(self.best == 0)


if __name__ == "__main__":
    rollout = {"groups_per_step": 2, "group_size": 4, "turn_tokens": 16}
    turnwise.train(model="small", env=Guess(), steps=2, rollout=rollout, evaluate={"tasks": 8}, run="runs/guess")
