"""Every dataset of reasoning-gym as a single-turn environment, scored by the dataset's own scorer.

Invariant: a question is made from the task's seed alone, and the hash of its text decides its split, so none is both
trained and tested on. Scorers evaluate what the model wrote, so they run in a child process: an answer that no scorer
can read, or that it does not finish within its seconds, scores 0 and is counted.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Self, cast

from turnwise.envs.adapters.child import Children, ChildTimeoutError, ForeignError, require_package
from turnwise.envs.base import Env
from turnwise.envs.games.game import SPLITS, check_count, of_same_split
from turnwise.envs.lazy_tasks import LazyTasks
from turnwise.errors import EnvError
from turnwise.rewards import final_answer
from turnwise.seeds import derive_seed
from turnwise.tools.episode_thread import EpisodeThread, Paces
from turnwise.types import Json, Message, Step, Task

SYSTEM = "Answer the question. Reply: <answer>your answer</answer>"
_SERVER = "turnwise.envs.adapters.worlds.reasoning_gym:ReasoningGymServer"
_SEEDS = 2**31
"""Some datasets give their seed to numpy, which takes no larger one."""
_MOST_DRAWS = 50
_WITHOUT_ANSWER = ("boxnet", "rush_hour")
"""Datasets that score answers and show none, so that they have no expert."""


class ReasoningGym(Env):
    """`ReasoningGym(dataset="countdown", options={"min_numbers": 3})`: one question, one answer, one score."""

    def __init__(
        self,
        *,
        dataset: str,
        options: Mapping[str, Json] | None = None,
        system: str = SYSTEM,
        format_penalty: float = 0.1,
        expert_noise: float = 0.0,
        train_tasks: int = 10_000,
        test_tasks: int = 256,
        seed: int = 0,
        seconds: float = 30.0,
        processes: int = 1,
    ) -> None:
        """Makes the dataset once, to see that it can be made.

        Args:
            dataset: The name under which reasoning-gym knows it; `composite` mixes several, given in its options.
            options: The arguments of `reasoning_gym.create_dataset`, without `seed` and `size`.
            system: The system message.
            format_penalty: What a reply without `<answer>` costs.
            expert_noise: The share of the expert's answers that are those of another question.
            train_tasks: How many questions there are to train on.
            test_tasks: How many others there are to test on.
            seed: Another seed makes other questions.
            seconds: What making a question or scoring an answer may take.
            processes: How many processes make and score, side by side.
        """
        require_package("reasoning_gym", "reasoning-gym")
        check_count("train_tasks", train_tasks)
        check_count("test_tasks", test_tasks)
        if not format_penalty >= 0:
            raise EnvError(f"format_penalty is {format_penalty}; it is taken away, so give 0 or more")
        if not 0 <= expert_noise <= 1:
            raise EnvError(f"expert_noise is {expert_noise}; it is a share, from 0 to 1")
        self._dataset, self._system, self._seed = dataset, system, seed
        self._format_penalty, self._expert_noise = format_penalty, expert_noise
        self._sizes = dict(zip(SPLITS, (train_tasks, test_tasks), strict=True))
        settings: dict[str, Json] = {"dataset": dataset, "options": dict(options or {})}
        self._children = Children(_SERVER, settings, count=processes, seconds=seconds)
        self._paces = Paces()
        self._done = True
        try:
            self._children.assign().call("ready")
        except ForeignError as error:
            raise EnvError(f"reasoning-gym cannot make '{dataset}': {error}") from None

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self._sizes:
            raise EnvError(f"there is no split '{split}'; the splits are: {', '.join(SPLITS)}")
        return LazyTasks(lambda place: self._task(split, place), range(self._sizes[split]))

    def _task(self, split: str, place: int) -> Task:
        seed = derive_seed(f"reasoning_gym/{self._seed}", split, place)
        return Task(id=f"{split}-{place}", seed=seed - seed % 2 + SPLITS.index(split))

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        self._thread, self._child = EpisodeThread(self._paces), self._children.assign()
        self._question, self._answer, self._drawn = await self._thread.run(
            lambda: self._draw(task, episode_seed), what="question", seconds=None
        )
        self._task_id, self._done = task.id, False
        return (Message(role="system", content=self._system), Message(role="user", content=self._question))

    async def step(self, message: Message) -> Step:
        if self._done:
            raise EnvError("ReasoningGym was stepped before reset or after the episode was done; call reset first")
        self._done = True
        answer = final_answer(message.content)
        score, failed = 0.0, 0.0
        if answer is not None:
            score, failed = await self._thread.run(lambda: self._score(answer), what="score", seconds=None)
        return Step(
            rewards={"score": score, "format": 0.0 if answer is not None else -self._format_penalty},
            done=True,
            metrics={"success": float(score >= 1.0), "score": score, "unscored": failed},
        )

    @property
    def has_deadline(self) -> bool:
        """Each call has one in its process; the wait for a turn there, behind other episodes, is no hang."""
        return True

    @property
    def has_expert(self) -> bool:
        return self._dataset not in _WITHOUT_ANSWER

    def expert(self) -> Message:
        if self._answer is None:
            raise EnvError(f"{self._dataset} shows no answer to this question, so it has no expert")
        return Message(role="assistant", content=f"<answer>{self._answer}</answer>")

    def state_key(self) -> str:
        return self._task_id

    def spawn(self) -> Self:
        twin = super().spawn()
        twin._done = True
        return twin

    def _draw(self, task: Task, episode_seed: int) -> tuple[str, str | None, int]:
        """The first question of this seed whose own hash is of the task's split, with its answer and its seed."""
        rng = random.Random(derive_seed(episode_seed, "expert"))
        noisy = rng.random() < self._expert_noise
        for number in range(_MOST_DRAWS):
            drawn = derive_seed(task.seed, "question", number) % _SEEDS
            made = self._ask(drawn)
            if of_same_split(task.seed, str(made["question"])):
                break
        answer = self._ask(rng.randrange(_SEEDS))["answer"] if noisy else made["answer"]
        return str(made["question"]), None if answer is None else str(answer), drawn

    def _ask(self, seed: int) -> dict[str, Json]:
        return cast(dict[str, Json], self._child.call("question", seed))

    def _score(self, answer: str) -> tuple[float, float]:
        """The score, and 1 where the scorer raised or was killed over this answer."""
        try:
            return float(cast(float, self._child.call("score", self._drawn, answer))), 0.0
        except (ForeignError, ChildTimeoutError):
            return 0.0, 1.0
