"""Episodes of a fixed shape: every prompt, turn and answer has its number of tokens, whatever a random model says.

Invariant: what is sampled decides nothing, so two ways of playing the same shape read and sample equally many tokens.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.bench.speed_models import draw_ids
from turnwise.engines.base import Engine
from turnwise.envs.base import Env
from turnwise.rollout import Limits, Player, run_groups
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
    """Tokens between two turns: what a tool said, with all that is written around it."""

    @property
    def episodes(self) -> int:
        return self.groups * self.members

    @property
    def sampled(self) -> int:
        """Of one episode."""
        return self.turns * self.turn

    @property
    def completion(self) -> int:
        """All after the prompt: what was sampled, and what was read in between."""
        return self.sampled + (self.turns - 1) * self.observation

    def check(self, groups: Sequence[Group]) -> None:
        """Every trajectory has exactly this shape; anything else is not the same work."""
        played = [trajectory for group in groups for trajectory in group.trajectories]
        found = {
            (len(played), len(one.turns[0].context_ids), sum(map(len, one.rows(tail=False))), one.action_tokens)
            for one in played
        }
        assert found == {(self.episodes, self.prompt, self.prompt + self.completion, self.sampled)}, found


class FixedRender:
    """Writes ids drawn by a number in place of text: as many for a prompt, and for an answer, as the shape says."""

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
        return Message(role="assistant", content="")

    def write(self, message: Message) -> str:
        return message.content

    def encode_action(self, text: str) -> tuple[int, ...]:
        return ()

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    def _draw(self, message: Message, length: int) -> tuple[int, ...]:
        return tuple(draw_ids(int(message.content), length, self._vocabulary))


class FixedEnv(Env):
    """Answers at once, with another number every time, and pays what luck has it; done after so many turns."""

    def __init__(self, turns: int) -> None:
        self._turns = turns

    async def reset(self, task: Task, luck: int) -> Sequence[Message]:
        self._luck, self._turn = luck, 0
        return (Message(role="user", content=str(derive_seed(task.seed, "prompt"))),)

    async def step(self, message: Message) -> Step:
        self._turn += 1
        if self._turn == self._turns:
            return Step(rewards={"luck": derive_seed(self._luck, "reward") / 2**63}, done=True)
        return Step(messages=(Message(role="tool", content=str(derive_seed(self._luck, "answer", self._turn))),))


async def play(engine: Engine, shape: Shape, vocabulary: int, *, seed: int) -> tuple[list[Group], float]:
    """Plays a shape through the rollout that training uses; the groups, and how many seconds they took."""
    limits = Limits(max_turns=shape.turns, turn_tokens=shape.turn)
    player = Player(engine=engine, render=FixedRender(shape, vocabulary), limits=limits)
    tasks = [Task(id=f"task-{place}", seed=derive_seed(seed, place)) for place in range(shape.groups)]
    began = time.perf_counter()
    groups = await run_groups(player, FixedEnv(shape.turns), tasks, responses=shape.members, seed=seed)
    seconds = time.perf_counter() - began
    shape.check(groups)
    return groups, seconds
