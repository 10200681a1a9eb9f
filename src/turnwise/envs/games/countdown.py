"""Countdown: reach a target with the given numbers, each used once, by + − × ÷.

Invariant: every task has a solution. An episode pays its best score: 1 for the target, .1 for an expression of exactly
the given numbers, whatever its value; a later attempt earns only what it adds.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Unpack

from turnwise.envs.games.arithmetic import Value, combine, read_expression
from turnwise.envs.games.game import GameOptions, Move, TextGame, check_count, of_same_split
from turnwise.errors import EnvError
from turnwise.seeds import derive_seed
from turnwise.types import Task

RIGHT, RIGHT_NUMBERS = 1.0, 0.1
MOST_NUMBERS = 6
MOST_REDRAWS = 1000
OPERATORS = "+-*/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """`Puzzle(numbers=(3, 5, 7), target=38)`."""

    numbers: tuple[int, ...]
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """`Solution(expression="(5 * 7) + 3", steps=("5 * 7 = 35", "35 + 3 = 38"))`."""

    expression: str
    steps: tuple[str, ...]


class Countdown(TextGame):
    """`Countdown(numbers=[3, 4])`: 3 or 4 numbers, one attempt; `max_actions=5` gives five and tells their values."""

    noun = "expression"

    def __init__(
        self,
        *,
        numbers: Sequence[int] = (3, 4),
        largest: int = 99,
        largest_target: int = 99,
        **shared: Unpack[GameOptions],
    ) -> None:
        """Chooses how hard the puzzles are.

        Args:
            numbers: How many numbers there are; one of these, drawn anew for each task.
            largest: The largest number that may be given.
            largest_target: The largest target.
            shared: What all games share.
        """
        shared.setdefault("max_actions", 1)
        shared.setdefault("max_actions_per_turn", 1)
        super().__init__(**shared)
        if not numbers or not all(isinstance(count, int) and 2 <= count <= MOST_NUMBERS for count in numbers):
            raise EnvError(f"numbers is {list(numbers)}; give at least one whole number, each from 2 to {MOST_NUMBERS}")
        check_count("largest", largest)
        check_count("largest_target", largest_target)
        self._numbers, self._largest, self._largest_target = tuple(numbers), largest, largest_target

    def begin(self, task: Task, episode_seed: int) -> None:
        self._puzzle = make_puzzle(task.seed, self._numbers, self._largest, self._largest_target)
        self._wanted = sorted(self._puzzle.numbers)
        self._best = 0.0
        self._last = ""

    def rules(self) -> str:
        return "Reach the target. Use each number once, with + - * / and ( ). The target pays 1, the right numbers .1."

    def show(self) -> str:
        return f"{self._last}{' '.join(map(str, self._puzzle.numbers))} -> {self._puzzle.target}"

    def legal(self, text: str) -> str | None:
        read = read_expression(text)
        return None if read is None else read.text

    def play(self, action: str) -> Move:
        read = read_expression(action)
        assert read is not None, "a legal action is an expression"
        score = 0.0
        if sorted(read.numbers) == self._wanted:
            score = RIGHT if read.value == (self._puzzle.target, 1) else RIGHT_NUMBERS
        gain = max(0.0, score - self._best)
        self._best += gain
        self._last = f"{action} = {_write(read.value)}\n"
        return Move(reward=gain, done=score == RIGHT, success=score == RIGHT, moved=gain > 0)

    def plan(self) -> list[str]:
        return [self._solution().expression]

    def explain(self) -> str:
        return f"{', '.join(self._solution().steps)}."

    def wander(self, rng: random.Random) -> str:
        """All the numbers in a random order, with random operators between them."""
        numbers = rng.sample(self._puzzle.numbers, len(self._puzzle.numbers))
        return " ".join([str(numbers[0]), *(f"{rng.choice(OPERATORS)} {number}" for number in numbers[1:])])

    def state_key(self) -> str:
        return f"{self._puzzle.numbers} {self._puzzle.target} {self._best}"

    def _solution(self) -> Solution:
        found = solve(self._puzzle)
        assert found is not None, "a puzzle is made from its solution"
        return found


@lru_cache(maxsize=4096)
def make_puzzle(seed: int, counts: tuple[int, ...], largest: int, largest_target: int) -> Puzzle:
    """The puzzle of a seed: numbers are joined two by two at random, until this ends in a target in range.

    No puzzle is both trained and tested on, in whatever order its numbers come, unless there are next to none.
    """
    rng = random.Random(derive_seed(seed, "countdown"))
    for attempt in itertools.count():
        numbers = tuple(rng.randint(1, largest) for _ in range(rng.choice(counts)))
        reached = _join_all(rng, numbers)
        if reached is None or reached[1] != 1 or not 1 <= reached[0] <= largest_target:
            continue
        if attempt >= MOST_REDRAWS or of_same_split(seed, f"{sorted(numbers)} {reached[0]}"):
            return Puzzle(numbers=numbers, target=reached[0])
    raise AssertionError("a number divided by its equal is always in range")


def _join_all(rng: random.Random, numbers: Sequence[int]) -> Value | None:
    """The value of all the numbers joined two by two at random; None after a division by zero."""
    values: list[Value] = [(number, 1) for number in numbers]
    while len(values) > 1:
        left, right = (values.pop(rng.randrange(len(values))) for _ in range(2))
        joined = combine(rng.choice(OPERATORS), left, right)
        if joined is None:
            return None
        values.append(joined)
    return values[0]


@lru_cache(maxsize=4096)
def solve(puzzle: Puzzle) -> Solution | None:
    """A solution that uses every number, by trying all ways to join two of them and go on with what is left."""
    terms = [((number, 1), str(number)) for number in puzzle.numbers]
    return _search(terms, (puzzle.target, 1), ())


def _search(terms: Sequence[tuple[Value, str]], target: Value, steps: tuple[str, ...]) -> Solution | None:
    if len(terms) == 1:
        value, text = terms[0]
        bare = text[1:-1] if text.startswith("(") else text
        return Solution(expression=bare, steps=steps) if value == target else None
    tried: set[tuple[str, Value, Value]] = set()
    for i, (left, left_text) in enumerate(terms):
        for j, (right, right_text) in enumerate(terms):
            for operator in OPERATORS:
                # Sums and products are the same both ways round.
                if i == j or (operator in "+*" and i > j) or (operator, left, right) in tried:
                    continue
                tried.add((operator, left, right))
                joined = combine(operator, left, right)
                if joined is None:
                    continue
                rest = [term for k, term in enumerate(terms) if k not in (i, j)]
                text = f"({left_text} {operator} {right_text})"
                step = f"{_write(left)} {operator} {_write(right)} = {_write(joined)}"
                found = _search([*rest, (joined, text)], target, (*steps, step))
                if found is not None:
                    return found
    return None


def _write(value: Value | None) -> str:
    """`35`, or `7/2`; nothing has the value of a division by zero."""
    if value is None:
        return "?"
    return str(value[0]) if value[1] == 1 else f"{value[0]}/{value[1]}"
