"""`AgentProgram`: any program that talks to an OpenAI- or Anthropic-style API, as an environment that trains it.

Invariant: a program costs at most its episode. It has a deadline, its processes end with it, and what breaks in it is
counted as a failure and never scored, unless `crash="score"` says that a crash is the agent's own doing.
"""

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, cast

from turnwise.envs.functions import Expert, WithFunctions, find_argument, find_expert, find_tasks
from turnwise.envs.tool_env import TaskList
from turnwise.errors import EnvError
from turnwise.gateway.client import AgentClient
from turnwise.gateway.env import Score, SessionEnv
from turnwise.gateway.running import AgentFunction, Places, RunningCommand, RunningFunction, describe_episode
from turnwise.gateway.scoring import Outcome, Scorer, score_outcome
from turnwise.gateway.server import Gateway
from turnwise.gateway.session import Ended, Session
from turnwise.rewards import Reward
from turnwise.rewards.named import choose_rewards
from turnwise.sources import require_trusted, spell_command
from turnwise.types import Json, Message, Task


class AgentProgram(WithFunctions, SessionEnv):
    """`AgentProgram(command=["python", "agent.py"], tasks=[...], rewards="exact_match")`."""

    def __init__(
        self,
        *,
        command: Sequence[str] = (),
        function: AgentFunction | str | None = None,
        tasks: TaskList | Mapping[str, TaskList] | str = (),
        rewards: str | Mapping[str, float] | Sequence[str | Reward | Mapping[str, Json]] = (),
        score: Scorer | str | None = None,
        expert: Expert | str | None = None,
        seconds: float = 600.0,
        crash: Literal["fail", "score"] = "fail",
        concurrency: int = 64,
        variables: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        """A program by command (a process per episode) or by function (a thread per episode).

        Args:
            command: The program and its arguments. OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL,
                ANTHROPIC_API_KEY, TURNWISE_TASK (JSON of id, seed and data) and TURNWISE_SESSION_URL are set for it.
            function: `async def run(task, client)`, or its name: `module:run`, `file.py:run`.
            tasks: One list for every split, or a list per split, or the name of a function of the split.
            rewards: Rewards of the episode, whose answer is `Outcome.answer`. The first defines success.
            score: A function of the `Outcome`, or its name, that returns a reward or rewards by name.
            expert: A function of the task and the conversation that writes demonstrations, or its name.
            seconds: The deadline of an episode; one that exceeds it failed.
            crash: What a crash of the program is: `fail`, an episode that is not scored, or `score`, one that is.
            concurrency: Programs that run at once.
            variables: Further environment variables of a command.
            cwd: The folder a command runs in.
        """
        super().__init__(seconds=seconds)
        if bool(command) == (function is not None):
            raise EnvError("AgentProgram: give a command or a function, one of the two")
        if isinstance(command, str):
            raise EnvError(f"AgentProgram: command is a list of words: {command.split()}")
        if command:
            require_trusted("env.args.command", spell_command(command))
        self._command, self._variables, self._cwd = tuple(command), dict(variables or {}), cwd
        self._function = cast(
            AgentFunction | None, find_argument("function", function, "write `async def run(task, client)`")
        )
        self._scorer = cast(Scorer | None, find_argument("score", score, "write a function of an Outcome"))
        self._expert_of = find_expert(expert)
        self._rewards = choose_rewards(rewards)
        self._tasks_of = find_tasks(tasks)
        self._crash, self._places = crash, Places(concurrency)
        self._running: RunningCommand | RunningFunction | None = None

    def episode_so_far(self) -> tuple[Task, Sequence[Message]]:
        return self.task, self.conversation

    async def begin(self, task: Task, episode_seed: int) -> Session:
        gateway = shared_gateway()
        places = self._places.here()
        await places.acquire()
        try:
            session = gateway.open()
            url = gateway.session_url(session.name)
            running: RunningCommand | RunningFunction
            if self._function is not None:
                running = RunningFunction(self._function, task, AgentClient(session, url), session)
            else:
                variables = {**os.environ, **describe_episode(task, session, url, episode_seed), **self._variables}
                running = await RunningCommand.start(self._command, variables, self._cwd, session)
        except BaseException:
            places.release()
            raise
        self._running = running
        self._release = places.release, gateway, session
        return session

    async def stop(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        release, gateway, session = self._release
        try:
            await running.stop()
        finally:
            gateway.forget(session)
            release()

    async def score(self, ended: Ended, conversation: tuple[Message, ...]) -> Score:
        outcome = Outcome(
            task=self.task,
            messages=conversation,
            result=ended.result,
            output=ended.output,
            last_line=ended.last_line,
            exit_code=ended.exit_code,
        )
        return await score_outcome(outcome, self._rewards, self._scorer)

    def scores(self, ended: Ended) -> bool:
        return not ended.failure or (ended.crashed and self._crash == "score")


def shared_gateway() -> Gateway:
    """The gateway of this process, started when the first program needs it."""
    return _gateway_of(os.getpid())


@lru_cache(maxsize=1)
def _gateway_of(process: int) -> Gateway:
    """By process, because a forked one has the object of its parent, but not the thread that serves."""
    gateway = Gateway()
    gateway.start()
    return gateway


def stop_shared_gateway() -> None:
    """Ends the gateway of this process, if it runs; the next program starts another."""
    if _gateway_of.cache_info().currsize:
        shared_gateway().stop()
        _gateway_of.cache_clear()
