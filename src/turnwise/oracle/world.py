"""Worlds so small that every episode in them can be written down, chance and limits included.

Invariant: a world is a pure function from a state and a move to what may happen, with probabilities that sum to one;
every episode it yields is a real `Trajectory`, laid out by the same rules as one that was played.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

from turnwise.types import Finish, StopReason, Task, Trajectory, Turn

VOCABULARY = 3
"""Worlds and agents speak with the same tokens, 0, 1 and 2: nothing but the mask tells who said what."""
END = 0
"""The token that ends a turn."""

Move: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One thing that may happen after a move: `Answer(probability=.7, reward=.1, says=(2, 1), state="found")`."""

    probability: float = 1.0
    reward: float = 0.0
    says: tuple[int, ...] = ()
    """What the agent reads next; also known when a limit of ours stops it from acting on it."""
    state: str | None = None
    """Where it leads; None ends the episode. Its name up to a colon is the `Turn.state_key`: `:note` has none."""
    rewrites: bool = False
    """`says` is the whole conversation from now on, so that the next turn opens a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One episode of a world, and how likely chance lets it happen when the agent moves as it does there."""

    trajectory: Trajectory
    """Its logprobs are zero: whoever plays fills them in."""
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A multi-turn decision process in tokens."""

    name: str
    story: str
    """What is special about it, in one line."""
    prompt: tuple[int, ...]
    start: str
    answer: Callable[[str, Move], tuple[Answer, ...]]
    turn_tokens: int
    """A turn ends with `END` or when it is this long."""
    max_turns: int | None = None
    """A limit of ours that the world knows nothing of: it would have gone on."""

    def branches(self, *, limited: bool = True) -> tuple[Branch, ...]:
        """Every episode there is; with `limited` off, as if `max_turns` were not."""
        limit = self.max_turns if limited else None
        return tuple(self._play((), self.start, self.prompt, opens_row=True, chance=1.0, limit=limit))

    def moves(self) -> Iterator[Move]:
        """All that an agent can say in a turn: `(0,), (1, 0), (1, 1), ...`."""
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
            for answer in self.answer(state, move):
                so_far = (*turns, self._turn(state, context, move, answer, opens_row))
                reached = chance * answer.probability
                if answer.state is None:
                    yield self._branch(so_far, StopReason.DONE, (), reached)
                elif len(so_far) == limit:
                    yield self._branch(so_far, StopReason.MAX_TURNS, () if answer.rewrites else answer.says, reached)
                else:
                    yield from self._play(
                        so_far, answer.state, answer.says, opens_row=answer.rewrites, chance=reached, limit=limit
                    )

    def _turn(self, state: str, context: tuple[int, ...], move: Move, answer: Answer, opens_row: bool) -> Turn:
        channel = "outcome" if answer.state is None else "process"
        return Turn(
            context_ids=context,
            action_ids=move,
            logprobs=(0.0,) * len(move),
            rewards={channel: answer.reward} if answer.reward else {},
            opens_row=opens_row,
            finish=Finish.STOP if move[-1] == END else Finish.LENGTH,
            state_key=state.partition(":")[0] or None,
        )

    def _branch(self, turns: tuple[Turn, ...], stop: StopReason, tail: tuple[int, ...], chance: float) -> Branch:
        trajectory = Trajectory(task=Task(id=self.name), turns=turns, stop=stop, tail_ids=tail)
        return Branch(trajectory=trajectory, chance=chance)
