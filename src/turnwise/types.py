"""The vocabulary: what flows from a task to a gradient, with no torch in it.

Invariant: the action mask is derived from which list a token sits in (`Turn.context_ids` or
`Turn.action_ids`), never stored beside the tokens, so the two cannot disagree.

    Task -> [Message] -> Turn -> Step -> Turn -> ... -> Trajectory -> Group -> [Row]
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import accumulate, chain, pairwise
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from turnwise.errors import RewardError, TokensError

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Versions: TypeAlias = tuple[tuple[int, int], ...]
"""Which weights sampled which tokens of a turn: (first token, version) of each span, `((0, 3), (17, 4))`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What an episode is about: `Task(id="train-7", seed=7, data={"question": "...", "answers": ["Oslo"]})`."""

    id: str
    seed: int = 0
    """Fixes the level or the question; an episode's episode seed is a seed of its own."""
    data: Mapping[str, Json] = field(default_factory=dict)
    env: str = ""
    """In a mixture, the name of its environment there; else empty."""
    origin: str = field(default="", compare=False, repr=False)
    """The file and row it was read from, for messages; else empty. Not stored with a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the model is told of it; `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Json]

    def to_openai(self) -> dict[str, Json]:
        """`{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}`."""
        function: dict[str, Json] = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call as the model wrote it; `arguments` is the raw JSON text, so that nothing malformed is lost."""

    id: str
    name: str
    arguments: str
    problem: str = ""
    """What the parser could not read, in words for the model; empty when the call is well formed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a chat, in OpenAI's shape: `Message(role="user", content="Who founded Lumen?")`."""

    role: Role
    content: str
    thinking: str = ""
    """The text between think tags, apart from `content`; only an assistant's message has any."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    """On a tool's message: the tool that answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a call came to: `ToolResult(content="Oslo is in Norway.", rewards={"found": 0.1})`."""

    content: str
    ok: bool = True
    """False when the call itself failed (bad name, bad arguments, exception, timeout)."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Process rewards earned by this call, by channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What an environment answers to one move of the agent."""

    messages: tuple[Message, ...] = ()
    """What the agent reads next, after everything it has read so far."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """What was paid for this move, weights applied, by channel; their sum is the reward."""
    done: bool = False
    truncated: bool = False
    """Done by the environment's own clock, though the task could have gone on: not an end, as `done` alone is."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Facts worth a curve that are not paid for, such as `success`; the last value of an episode counts."""
    rewrites: tuple[Message, ...] | None = None
    """The whole conversation as the agent shall read it from now on, in place of appending `messages`."""
    resumes: int | None = None
    """With `rewrites`: the turn, counted from 0, after whose reply the conversation goes on with `messages`; a policy
    then takes the ids of that conversation as they were read and sampled."""

    def __post_init__(self) -> None:
        assert self.done or not self.truncated, "a step that its clock cut off is done"
        assert self.resumes is None or self.rewrites is not None, "a resumed conversation is told in full"
        for name, value in self.rewards.items():
            if isinstance(value, str) or not math.isfinite(value):
                raise RewardError(f"reward '{name}' is {value!r}: return a finite number from its reward function")


class StopReason(StrEnum):
    """Who ended an episode. DONE ends the task itself, AGENT_QUIT is the agent's choice; all else cut it off."""

    DONE = "done"
    """The environment said so: terminal, nothing to bootstrap."""
    TIME_UP = "time_up"
    """The environment's own clock ran out (`Step.truncated`)."""
    MAX_TURNS = "max_turns"
    """The rollout's limit on turns."""
    CONTEXT_FULL = "context_full"
    """The next prompt would leave the model no room to answer."""
    TOKEN_BUDGET = "token_budget"
    """The rollout's limit on sampled tokens per episode."""
    TIMEOUT = "timeout"
    """The rollout's limit on seconds per episode."""
    AGENT_QUIT = "agent_quit"
    """The agent left before the environment was done, by its own choice: a person, a script that ran out."""
    ENV_FAILED = "env_failed"
    """Environment, tool or endpoint infrastructure broke; never scored, never trained on."""

    @property
    def truncated(self) -> bool:
        """Cut off while the task could have gone on: estimators with a critic bootstrap."""
        return self not in (StopReason.DONE, StopReason.AGENT_QUIT, StopReason.ENV_FAILED)


class Finish(StrEnum):
    """How a completion ended."""

    STOP = "stop"
    """The model sampled an end-of-turn token, which is the last of its ids."""
    LENGTH = "length"
    """The token limit of the turn cut it off; no end token was sampled."""
    STOP_STRING = "stop_string"
    """A stop string of the request cut it off; no end token was sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """What an environment asks of the next turn beyond its messages: `TurnRequest(max_tokens=64, stop=("\\n",))`."""

    max_tokens: int | None = None
    """The most tokens of the turn, where that is less than the rollout's limit."""
    stop: tuple[str, ...] = ()
    """The turn ends with the token that completes one of these in its text."""


def fill_versions(versions: Versions, version: int, length: int) -> Versions:
    """The spans of a turn of this many tokens: as they are given, or one of `version`."""
    if not versions:
        return ((0, version),) if length else ()
    firsts = [first for first, _ in versions]
    assert versions[0] == (0, version), "the first span is that of the first token"
    assert firsts == sorted(set(firsts)), "spans are in order"
    assert firsts[-1] < length, "a span has a token"
    return versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One move of the agent: what it read since its last move, and what it sampled in reply.

    An agent that is not ours (a model behind an API, a person) gives no tokens: all three tuples are then empty.
    """

    context_ids: tuple[int, ...] = ()
    action_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """One per action id, under the distribution that was actually sampled from."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    version: int = 0
    """The version of the weights that sampled the first token."""
    versions: Versions = ()
    """Which weights sampled which tokens, where new ones were loaded within the turn; by default, `version` all."""
    opens_row: bool = False
    """True when `context_ids` is the whole conversation (the first turn, or after a rewrite)."""
    finish: Finish = Finish.STOP
    state_key: str | None = None
    """Names the state the agent acted in, for estimators that compare equal states (GiGPO)."""
    message: Message | None = field(default=None, compare=False)
    """The move as the environment received it; not stored with tokens, which can be parsed again."""
    seconds: float = field(default=0.0, compare=False)
    """Until the agent had made its move; episodes that sample side by side share the time."""
    env_seconds: float = field(default=0.0, compare=False)
    """From the move until the environment had answered: its tools and rewards run here."""

    def __post_init__(self) -> None:
        assert self.action_ids or not self.context_ids, "a turn that read tokens without an action is not a turn"
        assert len(self.action_ids) == len(self.logprobs), "one logprob per action id"
        object.__setattr__(self, "versions", fill_versions(self.versions, self.version, len(self.action_ids)))

    @property
    def has_tokens(self) -> bool:
        return bool(self.action_ids)

    @property
    def token_versions(self) -> list[int]:
        """The version of the weights that sampled each action id."""
        ends = [*(first for first, _ in self.versions[1:]), len(self.action_ids)]
        return [version for (first, version), end in zip(self.versions, ends, strict=True) for _ in range(first, end)]

    @property
    def reward(self) -> float:
        return math.fsum(self.rewards.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Tokens that train in one piece, or several such rows end to end. L = its length; every array has shape [L]."""

    ids: npt.NDArray[np.int64]
    action_mask: npt.NDArray[np.bool_]
    """True where the agent sampled the token."""
    prompt_mask: npt.NDArray[np.bool_]
    """True before the row's first action: the prompt, which no mask switch ever trains on."""
    logprobs: npt.NDArray[np.float32]
    """The sampler's, on action tokens; zero elsewhere."""
    rewards: npt.NDArray[np.float64]
    """A turn's reward, on the last action token of that turn; zero elsewhere."""
    turn_index: npt.NDArray[np.int64]
    """The turn that read or sampled the token, counted from the trajectory's first; a tail's, the turn never taken."""
    tail_mask: npt.NDArray[np.bool_]
    """True after the trajectory's last action: what no turn has read, which no mask switch ever trains on."""

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, end: int) -> "Row":
        """The tokens from `start` up to `end`."""
        return Row(**{each.name: getattr(self, each.name)[start:end] for each in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode: a task, the agent's turns, and who ended it. What needs its tokens says so (`require_tokens`)."""

    task: Task
    turns: tuple[Turn, ...]
    stop: StopReason
    episode_seed: int = 0
    """The seed of this episode's own noise: members of a group differ in it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    failure: str = ""
    """What broke: why it stopped with ENV_FAILED, or else a clean-up that failed after the episode was over."""
    tail_ids: tuple[int, ...] = ()
    """What the agent would have read next, where a limit of ours cut it off between turns and the rest still fits;
    empty where a rewrite would have opened a new row."""
    messages: tuple[Message, ...] = ()
    """The conversation, of an agent whose turns have no tokens that tell it."""

    def __post_init__(self) -> None:
        assert not self.turns or self.turns[0].opens_row == self.has_tokens, "the first turn opens a row"
        assert not self.tail_ids or (self.turns and self.stop.truncated), "only what was cut off has a tail"

    @property
    def reward(self) -> float:
        """Everything that was paid, on the way and at the end."""
        return math.fsum(turn.reward for turn in self.turns)

    @property
    def rewards(self) -> dict[str, float]:
        """What was paid, by channel: `{"exact_match": 1.0, "found_gold": 0.1}`."""
        paid: dict[str, float] = {}
        for turn in self.turns:
            for name, value in turn.rewards.items():
                paid[name] = paid.get(name, 0.0) + value
        return paid

    @property
    def success(self) -> bool:
        """The environment's own verdict, by its metric `success`."""
        return self.metrics.get("success", 0.0) > 0.0

    @property
    def action_tokens(self) -> int:
        return sum(len(turn.action_ids) for turn in self.turns)

    @property
    def has_tokens(self) -> bool:
        """Whether its turns can be laid out as rows: all of them have tokens."""
        return all(turn.has_tokens for turn in self.turns)

    def require_tokens(self, purpose: str) -> None:
        """`trajectory.require_tokens("train on it")`: an error where the agent gave none."""
        if not self.has_tokens:
            raise TokensError(
                f"task '{self.task.id}': the agent of this trajectory gave no tokens, so one cannot {purpose}; "
                "let the policy play it"
            )

    def rows(self, *, tail: bool = True) -> tuple[Row, ...]:
        """Lays the turns out as token rows: a turn that extends its predecessor shares its row.

        An append-only episode of T turns is one row of O(T) tokens; each rewrite opens another. The tail ends the
        last row as context, so that a critic's word on it is of a state in which an action would have been chosen.
        """
        rows = lay_out([self], tail=tail)
        ends = accumulate(rows.lengths, initial=0)
        return tuple(rows.every.part(start, end) for start, end in pairwise(ends))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The trajectories of one task, all from the same initial state; they differ in episode seed alone."""

    task: Task
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOf:
    """The rows of some trajectories."""

    every: Row
    """All of them end to end, as if they were one."""
    lengths: list[int]
    prompts: list[int]
    """How many tokens each opens with before its first action."""
    owner: list[int]
    """Whose each is, by its place among the trajectories."""


def lay_out(trajectories: Sequence[Trajectory], *, tail: bool) -> RowsOf:
    """By whole stretches, a context or an action at a time: there are thousands of tokens to every step."""
    stretches: list[tuple[int, ...]] = []
    opens: list[int] = []
    owner: list[int] = []
    numbers: list[int] = []
    actions: list[int] = []
    tails: list[int] = []
    for place, trajectory in enumerate(trajectories):
        trajectory.require_tokens("train on it")
        for number, turn in enumerate(trajectory.turns):
            if turn.opens_row:
                opens.append(len(stretches))
                owner.append(place)
            actions.append(len(stretches) + 1)
            stretches += (turn.context_ids, turn.action_ids)
            numbers += (number, number)
        if tail and trajectory.tail_ids:
            tails.append(len(stretches))
            stretches.append(trajectory.tail_ids)
            numbers.append(len(trajectory.turns))
    lengths = np.fromiter(map(len, stretches), np.int64, len(stretches))  # [stretches], as `kind` and `end` are
    kind = np.zeros((3, len(stretches)), np.bool_)  # is it an action, a prompt, a tail?
    kind[0, actions], kind[1, opens], kind[2, tails] = True, True, True
    action, prompt, behind = np.repeat(kind, lengths, axis=1)  # [L] each
    end = lengths.cumsum()
    total = int(lengths.sum())
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    logprobs = np.zeros(total, np.float32)
    logprobs[action] = np.fromiter(chain.from_iterable(turn.logprobs for turn in turns), np.float32)
    rewards = np.zeros(total, np.float64)
    rewards[end[actions] - 1] = [turn.reward if turn.rewards else 0.0 for turn in turns]
    every = Row(
        ids=np.fromiter(chain.from_iterable(stretches), np.int64, total),
        action_mask=action,
        prompt_mask=prompt,
        logprobs=logprobs,
        rewards=rewards,
        turn_index=np.repeat(np.asarray(numbers, np.int64), lengths),
        tail_mask=behind,
    )
    starts = (end - lengths)[opens]
    return RowsOf(
        every=every,
        lengths=np.diff(starts, append=total).tolist(),
        prompts=lengths[opens].tolist(),
        owner=owner,
    )
