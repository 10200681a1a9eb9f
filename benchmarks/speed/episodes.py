"""Episodes of a fixed shape: every prompt, turn and answer has its number of tokens, whatever a random model samples.

Invariant: what is sampled decides nothing, so two ways of playing the same shape read and sample equally many tokens.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.speed.models import draw_ids
from turnwise.agents import PolicyAgent
from turnwise.engines.base import Completion, Engine, EngineStats, Sampling
from turnwise.envs.base import Env
from turnwise.rollout import Limits, run_groups
from turnwise.seeds import derive_seed
from turnwise.types import Group, Message, Step, Task, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`Shape(groups=4, members=8, prompt=257, turns=4, turn=16, observation=23)`: all but the first two in tokens."""

    groups: int
    members: int
    prompt: int
    turns: int
    turn: int
    """Sampled tokens of each turn."""
    observation: int
    """Tokens between two turns: a tool's output with the template around it."""
    jitter: int = 0
    """How many tokens shorter or longer than `turn` a turn may be, uniformly."""

    def __post_init__(self) -> None:
        assert 0 <= self.jitter < self.turn, "every turn has a token"

    @property
    def episodes(self) -> int:
        return self.groups * self.members

    @property
    def sampled(self) -> int:
        """Sampled tokens of one episode without jitter."""
        return self.turns * self.turn

    @property
    def longest(self) -> int:
        """The most tokens that an episode can have after its prompt: sampled, and read in between."""
        return self.turns * (self.turn + self.jitter) + (self.turns - 1) * self.observation

    def draw_turns(self, session: str) -> list[int]:
        """Sampled tokens of each turn of an episode."""
        longer = (derive_seed(session, "turn", number) % (2 * self.jitter + 1) for number in range(self.turns))
        return [self.turn - self.jitter + more for more in longer]

    def check(self, groups: Sequence[Group], seed: int = 0) -> None:
        """Every trajectory has exactly this shape, by the seed it was played with; else it is not the same work."""
        assert len(groups) == self.groups
        for index, group in enumerate(groups):
            assert len(group.trajectories) == self.members
            for member, one in enumerate(group.trajectories):
                read = [len(turn.context_ids) for turn in one.turns]
                assert read == [self.prompt, *[self.observation] * (self.turns - 1)], read
                sampled = [len(turn.action_ids) for turn in one.turns]
                assert sampled == self.draw_turns(f"{seed}/{index}/{member}"), sampled


_SILENCE = Message(role="assistant", content="")


class FixedRender:
    """Writes ids drawn by a number in place of text: as many for a prompt and an observation as the shape sets."""

    def __init__(self, shape: Shape, vocabulary: int) -> None:
        self._shape, self._vocabulary = shape, vocabulary

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """None: every turn is sampled to its full length."""
        return ()

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        return self._draw(messages[-1], self._shape.prompt)

    def extend(self, action_ids: Sequence[int], messages: Sequence[Message]) -> tuple[int, ...]:
        return self._draw(messages[-1], self._shape.observation)

    def parse(self, action_ids: Sequence[int]) -> Message:
        return _SILENCE

    def write(self, message: Message) -> str:
        return message.content

    def encode_action(self, text: str) -> tuple[int, ...]:
        return ()

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    def _draw(self, message: Message, length: int) -> tuple[int, ...]:
        return tuple(draw_ids(int(message.content), length, self._vocabulary))


class FixedEnv(Env):
    """Answers at once, with another number every time, and pays a random reward; done after so many turns."""

    def __init__(self, turns: int) -> None:
        self._turns = turns

    def spawn(self) -> "FixedEnv":
        return FixedEnv(self._turns)

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        self._episode_seed, self._turn = episode_seed, 0
        return (Message(role="user", content=str(derive_seed(task.seed, "prompt"))),)

    async def step(self, message: Message) -> Step:
        self._turn += 1
        if self._turn == self._turns:
            return Step(rewards={"random": derive_seed(self._episode_seed, "reward") / 2**63}, done=True)
        return Step(messages=(Message(role="tool", content=str(self._episode_seed >> self._turn)),))


class FixedLengths:
    """An engine whose turns have the lengths of a shape; everything else is the wrapped engine's."""

    def __init__(self, engine: Engine, shape: Shape) -> None:
        self._engine, self._shape = engine, shape
        self._left: dict[str, Iterator[int]] = {}

    @property
    def context_limit(self) -> int:
        return self._engine.context_limit

    @property
    def stats(self) -> EngineStats:
        return self._engine.stats

    async def generate(self, session: str, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        if session not in self._left:
            self._left[session] = iter(self._shape.draw_turns(session))
        return await self._engine.generate(session, prompt_ids, replace(sampling, max_tokens=next(self._left[session])))

    async def end(self, session: str) -> None:
        await self._engine.end(session)

    async def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        await self._engine.load(weights, version)


async def play(engine: Engine, shape: Shape, vocabulary: int, *, seed: int) -> tuple[list[Group], float]:
    """Plays a shape through the rollout that training uses; the groups, and how many seconds they took."""
    limits = Limits(max_turns=shape.turns, turn_tokens=shape.turn + shape.jitter)
    engine = FixedLengths(engine, shape) if shape.jitter else engine
    policy = PolicyAgent(engine=engine, render=FixedRender(shape, vocabulary))
    tasks = [Task(id=f"task-{index}", seed=derive_seed(seed, index)) for index in range(shape.groups)]
    began = time.perf_counter()
    env = FixedEnv(shape.turns)
    groups = await run_groups(policy, env, tasks, group_size=shape.members, seed=seed, limits=limits)
    seconds = time.perf_counter() - began
    shape.check(groups, seed)
    return groups, seconds
