"""RAGEN's two-armed bandit: a sure little against a rare lot, told apart by their names alone.

Invariant: the task's seed decides which arm is named first, so its place reveals nothing; the
episode's seed decides what is paid.
"""

import random
from typing import Unpack

from turnwise.envs.games.game import GameOptions, Move, TextGame
from turnwise.errors import EnvError
from turnwise.seeds import derive_seed
from turnwise.types import Task

SURE = (0.1, 0.15)
"""The low arm pays evenly between these."""
JACKPOT, CHANCE = 1.0, 0.25
"""What the high arm pays, and how often; else nothing. Its mean, .25, is twice the low arm's."""


class Bandit(TextGame):
    """`Bandit()` pays best for the Dragon; with `reverse=True` the two names have changed places.

    One pull by default; `max_actions=10` makes it a bandit of ten pulls, on which the agent reads what each one paid.
    """

    def __init__(
        self, *, low: str = "Phoenix", high: str = "Dragon", reverse: bool = False, **shared: Unpack[GameOptions]
    ) -> None:
        """Names the arms.

        Args:
            low: The arm that pays 0.1 to 0.15, always.
            high: The arm that pays 1 one time in four.
            reverse: The names change places: what an agent learnt about them is now wrong.
            shared: What all games share.
        """
        shared.setdefault("max_actions", 1)
        shared.setdefault("max_actions_per_turn", 1)
        super().__init__(**shared)
        names = (low.strip(), high.strip())
        if not all(names) or names[0].casefold() == names[1].casefold() or any("|" in name for name in names):
            raise EnvError(f"the arms are called '{low}' and '{high}'; give two different names, without '|'")
        self._low, self._high = names[::-1] if reverse else names

    def begin(self, task: Task, episode_seed: int) -> None:
        arms = [self._low, self._high]
        random.Random(derive_seed(task.seed, "arms")).shuffle(arms)
        self.actions = tuple(arms)
        self._payouts = random.Random(derive_seed(episode_seed, "payouts"))
        self._paid = ""

    def rules(self) -> str:
        return "Pull an arm. One pays a little for sure, the other much or nothing; only the names tell which."

    def show(self) -> str:
        return f"{self._paid}{' or '.join(self.actions)}?"

    def play(self, action: str) -> Move:
        if action == self._high:
            reward = JACKPOT if self._payouts.random() < CHANCE else 0.0
        else:
            reward = self._payouts.uniform(*SURE)
        self._paid = f"{action} paid {reward:.2f}. "
        return Move(reward=reward, success=action == self._high)

    def plan(self) -> list[str]:
        return [self._high] * self.actions_left

    def explain(self) -> str:
        return f"{self._high} pays more than {self._low} on average."

    def state_key(self) -> str:
        return "/".join(self.actions)
