"""`VerifiersEnv`: an environment of verifiers, with its dataset, its turns and its rewards, as one of ours.

Invariant: verifiers runs in a process of its own, which serves all episodes and ends with this object; its model calls
come through the gateway, so tokens are kept as for any other program. An episode that failed there is never scored.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import cast

from turnwise.envs.functions import Expert
from turnwise.envs.lazy_tasks import LazyTasks
from turnwise.errors import EnvError
from turnwise.gateway.client import AgentClient
from turnwise.gateway.env import Score
from turnwise.gateway.program import AgentProgram
from turnwise.gateway.session import Ended
from turnwise.gateway.verifiers.process import Worker
from turnwise.sources import require_trusted, spell_command
from turnwise.types import Json, Message, Task


class VerifiersEnv(AgentProgram):
    """`VerifiersEnv(taskset="my-taskset", command=[".venv-verifiers/bin/python"])`.

    Args:
        taskset: The taskset's id, as `vf-eval` takes it: a package that the interpreter below can import.
        command: The interpreter that has verifiers and the taskset; further words are passed to it.
        config: The rest of the environment's config, such as `{"taskset": {"difficulty": 2}, "player": {...}}`.
        tasks: How many tasks of the taskset are trained on; the test's follow these.
        test_tasks: How many are the test's.
        success_at: The sum of rewards that is a success.
        expert: A function of the task and the conversation that writes demonstrations, or its name.
        path: Folders that the interpreter finds modules in, such as that of the taskset.
        seconds: The deadline of an episode.
        concurrency: Episodes that run at once.
    """

    def __init__(
        self,
        *,
        taskset: str,
        command: Sequence[str],
        config: Mapping[str, Json] | None = None,
        tasks: int = 1000,
        test_tasks: int = 200,
        success_at: float = 1.0,
        expert: Expert | str | None = None,
        path: Sequence[str] = (),
        seconds: float = 600.0,
        concurrency: int = 64,
    ) -> None:
        """Starts the interpreter and loads the environment, to see that both are there."""
        if isinstance(command, str) or not command:
            raise EnvError("VerifiersEnv: command is a list of words: the interpreter that has verifiers")
        require_trusted("env.args.command", spell_command(command))
        given = dict(config or {})
        rest = given.get("taskset")
        given["taskset"] = {**(rest if isinstance(rest, Mapping) else {}), "id": taskset}
        folders = [os.path.abspath(folder) for folder in path]
        self._worker = Worker(command, given, folders)
        self._counts = {"train": tasks, "test": test_tasks}
        self._success_at = success_at
        worker = self._worker

        async def run(task: Task, client: AgentClient) -> Mapping[str, Json]:
            return await worker.play(task, client.openai_base_url)

        super().__init__(function=run, expert=expert, seconds=seconds, concurrency=concurrency)

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self._counts:
            raise EnvError(f"there is no split '{split}'; the splits are: {', '.join(self._counts)}")
        first = 0 if split == "train" else self._counts["train"]
        return LazyTasks(self._task, range(first, first + self._counts[split]))

    async def score(self, ended: Ended, conversation: tuple[Message, ...]) -> Score:
        """What the environment there paid and measured."""
        result = cast(Mapping[str, Mapping[str, float]], ended.result)
        rewards = dict(result["rewards"])
        success = float(math.fsum(rewards.values()) >= self._success_at)
        return Score(rewards=rewards, metrics={**result["metrics"], "success": success})

    def _task(self, place: int) -> Task:
        data = self._worker.task(place)
        return Task(id=str(data.get("id") or data.get("name") or place), seed=place, data=data)
