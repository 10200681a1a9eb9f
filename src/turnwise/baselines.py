"""What an agent must beat: the same model and tasks, without the agency.

Invariant: a baseline is an environment like any other, so it is trained, decoded and scored by the same code.
"""

import dataclasses
import json
from collections.abc import Sequence

from turnwise.envs.base import Env
from turnwise.errors import EnvError
from turnwise.types import Message, Step, Task, ToolCall

SYSTEM = "Answer the question in <answer> tags."


class NaiveRag(Env):
    """Retrieve once, then answer: the passages a search for the question finds stand in the prompt; no tools, one turn.

    It wraps an environment with a search tool and tasks that have a `question` and `answers`, and is scored by it.
    """

    def __init__(self, env: Env, *, tool: str = "search", argument: str = "query") -> None:
        if tool not in {spec.name for spec in env.tools}:
            raise EnvError(f"{type(env).__name__} has no tool '{tool}' to retrieve with; name one in tool=...")
        self._env, self._tool, self._argument = env, tool, argument

    def tasks(self, split: str) -> Sequence[Task]:
        return self._env.tasks(split)

    async def reset(self, task: Task, luck: int) -> Sequence[Message]:
        self._live, self._task = self._env.spawn(), task
        await self._live.reset(task, luck)
        question = str(task.data["question"])
        call = ToolCall(id="retrieve", name=self._tool, arguments=json.dumps({self._argument: question}))
        found = await self._live.step(Message(role="assistant", content="", tool_calls=(call,)))
        passages = "\n".join(message.content for message in found.messages)
        return (
            Message(role="system", content=SYSTEM),
            Message(role="user", content=f"{passages}\n{question}"),
        )

    async def step(self, message: Message) -> Step:
        """Whatever is said is the answer: there is nothing to call."""
        return await self._live.step(dataclasses.replace(message, tool_calls=()))

    async def close(self) -> None:
        await self._live.close()

    def expert(self) -> Message:
        """The gold answer, whether or not the passages hold it."""
        answers = self._task.data["answers"]
        assert isinstance(answers, list | tuple)
        return Message(role="assistant", content=f"<answer> {answers[0]} </answer>")
