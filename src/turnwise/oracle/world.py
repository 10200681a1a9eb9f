"""Worlds so small that every episode in them can be enumerated, chance and limits included.

Invariant: a world is a pure function from a state and a move to transitions, with probabilities that sum to one;
every episode it yields is a real `Trajectory`, laid out by the same rules as one that was played.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

from turnwise.types import Finish, StopReason, Task, Trajectory, Turn

VOCABULARY = 3
"""Worlds and agents use the same tokens, 0, 1 and 2: only the mask tells context from action."""
END = 0
"""The token that ends a turn."""

Move: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One possible result of a move: `Transition(probability=.7, reward=.1, observation=(2, 1), state="found")`."""

    probability: float = 1.0
    reward: float = 0.0
    observation: tuple[int, ...] = ()
    """The context of the next turn; also known when a limit of ours keeps the agent from acting on it."""
    state: str | None = None
    """The next state; None ends the episode. Its name up to a colon is the `Turn.state_key`: `:note` has none."""
    rewrites: bool = False
    """`observation` is the whole conversation from now on, so that the next turn opens a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One episode of a world, and the probability of its transitions given its moves."""

    trajectory: Trajectory
    """Its logprobs are zero, until a policy fills them in."""
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A multi-turn decision process in tokens."""

    name: str
    story: str
    """What it tests, in one line."""
    prompt: tuple[int, ...]
    start: str
    transition: Callable[[str, Move], tuple[Transition, ...]]
    turn_tokens: int
    """A turn ends with `END` or when it is this long."""
    max_turns: int | None = None
    """A limit of the rollout, not of the world: the episode would have gone on."""

    def branches(self, *, limited: bool = True) -> tuple[Branch, ...]:
        """Every episode; with `limited` off, without `max_turns`."""
        limit = self.max_turns if limited else None
        return tuple(self._play((), self.start, self.prompt, opens_row=True, chance=1.0, limit=limit))

    def moves(self) -> Iterator[Move]:
        """Every possible turn of an agent: `(0,), (1, 0), (1, 1), ...`."""
        for length in range(1, self.turn_tokens + 1):
            for move in product(range(VOCABULARY), repeat=length):
                if END not in move[:-1] and (move[-1] == END or length == self.turn_tokens):
                    yield move

    def _play(
        self,
        turns: tuple[Turn, ...],
        state: str,
        context: tuple[int, ...],
        *,
        opens_row: bool,
        chance: float,
        limit: int | None,
    ) -> Iterator[Branch]:
        for move in self.moves():
            for outcome in self.transition(state, move):
                so_far = (*turns, self._turn(state, context, move, outcome, opens_row))
                reached = chance * outcome.probability
                if outcome.state is None:
                    yield self._branch(so_far, StopReason.DONE, (), reached)
                elif len(so_far) == limit:
                    yield self._branch(
                        so_far, StopReason.MAX_TURNS, () if outcome.rewrites else outcome.observation, reached
                    )
                else:
                    yield from self._play(
                        so_far,
                        outcome.state,
                        outcome.observation,
                        opens_row=outcome.rewrites,
                        chance=reached,
                        limit=limit,
                    )

    def _turn(self, state: str, context: tuple[int, ...], move: Move, outcome: Transition, opens_row: bool) -> Turn:
        channel = "outcome" if outcome.state is None else "process"
        return Turn(
            context_ids=context,
            action_ids=move,
            logprobs=(0.0,) * len(move),
            rewards={channel: outcome.reward} if outcome.reward else {},
            opens_row=opens_row,
            finish=Finish.STOP if move[-1] == END else Finish.LENGTH,
            state_key=state.partition(":")[0] or None,
        )

    def _branch(self, turns: tuple[Turn, ...], stop: StopReason, tail: tuple[int, ...], chance: float) -> Branch:
        trajectory = Trajectory(task=Task(id=self.name), turns=turns, stop=stop, tail_ids=tail)
        return Branch(trajectory=trajectory, chance=chance)
