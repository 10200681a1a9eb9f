"""What an agent must beat, and what it cannot: the same model and tasks, without the agency.

Invariant: a baseline is an environment like any other, so it is trained, decoded and scored by the same code. Each
wraps the agent's own environment, which brings the tasks and scores the answers.
"""

import dataclasses
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from turnwise.envs.base import Env, close_env
from turnwise.envs.qa.env import SearchQA
from turnwise.envs.registry import EnvSettings, make_env
from turnwise.errors import EnvError
from turnwise.settings import parse_settings
from turnwise.tools.search.retrieval import SearchDownError
from turnwise.types import Json, Message, Step, Task, ToolCall

SYSTEM = "Answer the question in <answer> tags."


class _OneAnswer(Env):
    """No tools, one turn: the message is the answer, and the wrapped environment scores it."""

    def __init__(self, env: Env | Mapping[str, Json], *, system: str | None = None) -> None:
        self._env = env if isinstance(env, Env) else make_env(parse_settings(EnvSettings, env, source="env.args.env"))
        own = self._env.answer_instruction if isinstance(self._env, SearchQA) else SYSTEM
        self._system = own if system is None else system

    def tasks(self, split: str) -> Sequence[Task]:
        return self._env.tasks(split)

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        if not isinstance(question := task.data.get("question"), str):
            raise EnvError(f"task '{task.id}' has no 'question' in its data, which is what this baseline asks")
        self._live, self._task = self._env.spawn(), task
        await self._live.reset(task, episode_seed)
        return (
            Message(role="system", content=self._system),
            Message(role="user", content=await self._ask(question)),
        )

    @abstractmethod
    async def _ask(self, question: str) -> str:
        """The user's message, once the wrapped episode has begun."""

    async def step(self, message: Message) -> Step:
        """The message is the answer: there is nothing to call."""
        return await self._live.step(dataclasses.replace(message, tool_calls=()))

    async def close(self) -> None:
        await close_env(self._live)

    def expert(self) -> Message:
        """The gold answer, whether or not anything in the prompt holds it."""
        answers = self._task.data["answers"]
        assert isinstance(answers, list | tuple)
        return Message(role="assistant", content=f"<answer> {answers[0]} </answer>")


class ClosedBook(_OneAnswer):
    """Answer from memory: the question alone, without tools or passages.

    In a recipe: `{name: turnwise.envs.qa.baselines:ClosedBook, args: {env: {name: search_qa, ...}}}`.
    """

    def __init__(self, env: Env | Mapping[str, Json], *, system: str | None = None) -> None:
        """Wraps an environment whose tasks have a `question` and `answers`.

        Args:
            env: The agent's environment, or its `name` and `args` as a recipe has them.
            system: The system message; by default the agent's own words on how to answer, without those on searching.
        """
        super().__init__(env, system=system)

    async def _ask(self, question: str) -> str:
        return question


class NaiveRag(_OneAnswer):
    """Retrieve once, then answer: the passages that a search for the question finds stand in the prompt."""

    def __init__(
        self,
        env: Env | Mapping[str, Json],
        *,
        tool: str = "search",
        argument: str = "query",
        passages: int | None = None,
        system: str | None = None,
    ) -> None:
        """Wraps an environment with a search tool, whose tasks have a `question` and `answers`.

        Args:
            env: The agent's environment, or its `name` and `args` as a recipe has them.
            tool: The name of its search tool.
            argument: What that tool calls the query.
            passages: How many are retrieved, for `SearchQA`; as many as the agent's own searches show by default.
            system: The system message; by default the agent's own words on how to answer, without those on searching.
        """
        super().__init__(env, system=system)
        if tool not in {spec.name for spec in self._env.tools}:
            raise EnvError(f"{type(self._env).__name__} has no tool '{tool}' to retrieve with; name one in tool=...")
        if passages is not None:
            if not isinstance(self._env, SearchQA):
                raise EnvError(
                    f"passages={passages} is for SearchQA; make {type(self._env).__name__} show as many itself"
                )
            self._env = self._env.showing(passages)
        self._tool, self._argument = tool, argument

    async def _ask(self, question: str) -> str:
        call = ToolCall(id="retrieve", name=self._tool, arguments=json.dumps({self._argument: question}))
        found = await self._live.step(Message(role="assistant", content="", tool_calls=(call,)))
        if found.done:
            raise EnvError("naive RAG takes a turn to retrieve and one to answer: give the environment max_turns of 2")
        if found.metrics.get("tool_errors"):
            # Not an error of the user's: the episode fails and is counted, and nothing is scored without its passages.
            raise SearchDownError("; ".join(message.content for message in found.messages))
        passages = "\n".join(message.content for message in found.messages)
        return f"{passages}\n{question}"


class GivenPassages(_OneAnswer):
    """Read and answer: the supporting passages stand in the prompt, so what is missed was not missed by searching.

    No baseline but a ceiling: what reading allows, beside what retrieval allows (`python -m benchmarks.real ceilings`).
    """

    def __init__(self, env: Env | Mapping[str, Json], *, system: str | None = None) -> None:
        """Wraps a `SearchQA` whose questions name their supporting passages by id.

        Args:
            env: The agent's environment, or its `name` and `args` as a recipe has them.
            system: The system message; by default the agent's own words on how to answer, without those on searching.
        """
        super().__init__(env, system=system)
        if not isinstance(self._env, SearchQA):
            raise EnvError(f"{type(self._env).__name__} has no supporting passages to give: wrap search_qa")
        self._given = self._env

    async def _ask(self, question: str) -> str:
        return f"{self._given.show_supporting(self._task)}\n{question}"
