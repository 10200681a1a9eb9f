"""`MCPEnv`: an agent whose tools are behind MCP servers, from a recipe.

Invariant: what the servers answer is `MCPTools`' business and what the episode is worth is `ToolEnv`'s; a server that
scores an episode and cannot be reached fails it, and is never taken for a zero.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import Field

from turnwise.envs.functions import Expert, WithFunctions, find_expert, find_tasks
from turnwise.envs.tool_env import TaskList, ToolEnv
from turnwise.errors import EnvError
from turnwise.rewards import Episode, Reward
from turnwise.rewards.named import choose_rewards
from turnwise.settings import Settings, parse_settings
from turnwise.sources import require_trusted, spell_command, split_command
from turnwise.tools.mcp import MCPTools, ServerLostError
from turnwise.tools.mcp.server import CallAnswer
from turnwise.tools.mcp.tools import OpenMCPTools, known_of
from turnwise.types import Json, Message, Task

_NUMBER_KEYS = ("reward", "score", "result")


class ServerSettings(Settings):
    """One server: `{command: python server.py, per_episode: true}` or `{url: "http://localhost:8000/mcp"}`."""

    command: str | list[str] | None = None
    """Starts a server that talks over stdin and stdout."""
    url: str | None = None
    """A server that is there, over streamable HTTP."""
    per_episode: bool = False
    """A server, or behind a URL a session, for each episode; else all share one."""
    setup: str | None = None
    """A hidden tool that is called as an episode begins, with what it names of the task."""
    score: str | None = None
    """A hidden tool that is called when the episode ends, with what it names of the task and of `answer`, and returns
    its reward."""
    only: list[str] | None = None
    """The tools to offer; null offers all."""
    prefix: str = ""
    """Put before the names of its tools."""
    timeout: float = Field(default=30.0, gt=0)
    """Seconds per call."""
    max_chars: int = Field(default=4000, ge=1)
    """Longer answers are cut, with a note."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the command; `$NAME` is taken from the environment."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers for the URL; `$NAME` is taken from the environment."""
    cwd: str | None = None
    """The folder that the command runs in."""
    start_seconds: float = Field(default=60.0, gt=0)
    """How long it may take to start."""
    concurrency: int = Field(default=16, ge=1)
    """With per_episode: servers that run at once."""

    def connect(self) -> MCPTools:
        """The server's tools; a command in the config of an opened run is started only if the run is trusted."""
        if (self.command is None) == (self.url is None):
            raise EnvError("env.args.servers: give each server a command or a url, one of the two")
        if self.command is not None:
            require_trusted("env.args.servers", spell_command(split_command(self.command)))
        return MCPTools(
            self.command or self.url or "",
            hidden=[self.score] if self.score else [],
            **{
                name: getattr(self, name) for name in type(self).model_fields if name not in ("command", "url", "score")
            },
        )


class MCPEnv(WithFunctions, ToolEnv):
    """`MCPEnv(servers=[{"command": "python server.py"}], tasks=[...], rewards="exact_match")`."""

    def __init__(
        self,
        *,
        servers: Sequence[Mapping[str, Json]],
        tasks: TaskList | Mapping[str, TaskList] | str = (),
        rewards: str | Mapping[str, float] | Sequence[str | Reward | Mapping[str, Json]] = (),
        process: Mapping[str, float] | None = None,
        system: str = "",
        max_turns: int | None = None,
        expert: Expert | str | None = None,
    ) -> None:
        """Connects to every server, to see that it can be reached and what it offers.

        Args:
            servers: The servers, each with the arguments of `MCPTools`, a `command` or a `url` among them.
            tasks: One list for every split, or a list per split, a .jsonl file, or the name of a function of the split.
            rewards: Paid once, at the end, before those of servers that score. The first defines success.
            process: The weight of each channel that servers pay into, by `turnwise/rewards` in the `_meta` of a result.
            system: The system message, if any.
            max_turns: Part of the task: the last turn allowed ends the episode, scored on no answer.
            expert: A function of the task and the conversation that writes demonstrations, or its name.
        """
        read = [parse_settings(ServerSettings, server, source="env.args.servers") for server in servers]
        if not read:
            raise EnvError("env.args.servers is empty: name a server by its command or url")
        scored = [
            _score_by(place, server.score, f"score_{place}" if place else "score")
            for place, server in enumerate(read)
            if server.score
        ]
        self._tasks_of = find_tasks(tasks)
        self._expert_of = find_expert(expert)
        super().__init__(
            tools=[server.connect() for server in read],
            rewards=[*choose_rewards(rewards), *scored],
            process=process,
            system=system,
            max_turns=max_turns,
        )

    def episode_so_far(self) -> tuple[Task, Sequence[Message]]:
        if self._turnwise_progress is None:
            raise EnvError("MCPEnv's expert was asked before reset; call reset first")
        return self._turnwise_progress.task, self._turnwise_progress.messages

    def prompt(self, task: Task) -> str:
        """The task's `question`; without one, what the servers' setup tools answered."""
        told = [one.opening for one in self._turnwise_opened.values() if isinstance(one, OpenMCPTools) and one.opening]
        return "\n\n".join(told) if told and "question" not in task.data else super().prompt(task)

    def server(self, place: int) -> OpenMCPTools:
        """The server of this episode, by its place in `servers`."""
        return cast(OpenMCPTools, self._turnwise_opened[place])


def _score_by(place: int, tool: str, name: str) -> Reward:
    async def score(episode: Episode) -> float:
        server = cast(MCPEnv, episode.env).server(place)
        known: dict[str, Json] = {**known_of(episode.task), "answer": episode.answer}
        return read_number(tool, await server.call_with(tool, known))

    return Reward(name=name, function=score)


def read_number(tool: str, answer: CallAnswer) -> float:
    """The number that a tool answered: as structured content, alone or under `reward`, `score` or `result`; or text."""
    value = answer.structured
    if isinstance(value, Mapping):
        value = next((value[key] for key in _NUMBER_KEYS if key in value), None)
    try:
        if answer.ok and not isinstance(value, Sequence | Mapping):
            return float(answer.text if value is None else value)
    except ValueError:
        pass
    raise ServerLostError(f"the server's tool {tool} gave no number as the reward: {answer.text[:200]}")
