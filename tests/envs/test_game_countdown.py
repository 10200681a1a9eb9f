"""Countdown: what an expression is and comes to, what it is paid, and a solution to every puzzle."""

import asyncio
import random
from fractions import Fraction

import pytest

from turnwise.envs import check_env
from turnwise.envs.games.arithmetic import combine, read_expression
from turnwise.envs.games.countdown import Countdown, Puzzle, make_puzzle, solve
from turnwise.errors import EnvError
from turnwise.types import Message, Task


@pytest.fixture
def by_hand(monkeypatch):
    """An environment whose every puzzle is: 3 5 7 -> 38."""
    puzzle = Puzzle(numbers=(3, 5, 7), target=38)
    monkeypatch.setattr("turnwise.envs.games.countdown.make_puzzle", lambda *arguments: puzzle)

    def begin(**arguments):
        game = Countdown(**{"think": False} | arguments).spawn()
        asyncio.run(game.reset(Task(id="by hand"), 0))
        return game

    return begin


def say(game, answer):
    return asyncio.run(game.step(Message(role="assistant", content=f"<answer>{answer}</answer>")))


@pytest.mark.parametrize("arguments", [{}, {"max_actions": 3}, {"think": False}, {"numbers": [2], "largest": 5}])
def test_it_keeps_the_contract_of_an_environment(arguments):
    assert asyncio.run(check_env(Countdown(**arguments))) == []


@pytest.mark.parametrize(
    ("answer", "paid"),
    [
        ("5 * 7 + 3", 1.0),
        ("(5 * 7) + 3", 1.0),
        ("3+7×5", 1.0),
        ("5 + 7 * 3", 0.1),
        ("3 / (7 - 5)", 0.1),
        ("3 - 5 * 7", 0.1),
        ("5 * 7 + 3 + 0", 0.0),
        ("38", 0.0),
        ("5 * 7", 0.0),
        ("5 * 7 + 3 * 1", 0.0),
        ("3 + 3 + 35 - 3", 0.0),
        ("57 - 3", 0.0),
    ],
)
def test_the_target_pays_one_the_right_numbers_a_tenth_and_all_else_nothing(by_hand, answer, paid):
    game = by_hand()
    assert game.show() == "3 5 7 -> 38"
    step = say(game, answer)
    assert step.rewards == {"game": paid, "format": 0.0}
    assert (step.done, step.metrics["success"]) == (True, float(paid == 1.0))


@pytest.mark.parametrize(
    "answer",
    [
        *("38 = 5 * 7 + 3", "5 * 7 + 3 = 38", "__import__('os')", "5 ** 7", "5 // 7", "-3 + 5", "3 5 7", "(3 + 5"),
        *("3 + 5)", "3 +", "()", "3.0 + 5", "1e3", "٣ + 5", "3 + x", "(" * 60 + "3" + ")" * 60, "1" * 101),
    ],
)
def test_what_is_no_expression_is_told_so(by_hand, answer):
    step = say(by_hand(), answer)
    assert step.messages[0].content.startswith("Unknown expression: ")
    assert (step.rewards, step.done) == ({"game": 0.0, "format": -0.1}, False)


def test_several_attempts_are_told_their_value_and_pay_their_best_together(by_hand):
    game = by_hand(max_actions=4)
    keys = [game.state_key()]
    step = say(game, "3 + 5 * 7 - 3")
    assert (step.messages[0].content, step.rewards["game"]) == ("3 + 5 * 7 - 3 = 35\n3 5 7 -> 38", 0.0)
    assert game.state_key() == keys[0]
    step = say(game, "3 / 5 + 7")
    assert (step.messages[0].content, step.rewards["game"]) == ("3 / 5 + 7 = 38/5\n3 5 7 -> 38", 0.1)
    keys.append(game.state_key())
    twin = game.fork()
    step = say(game, "3 - 5 * 7")
    assert (step.rewards["game"], step.done, step.metrics["moved"]) == (0.0, False, 1 / 3)
    step = say(game, "3 + 5 * 7")
    assert (step.rewards["game"], step.done, step.metrics["success"]) == (0.9, True, 1.0)
    assert keys[0] != keys[1] == twin.state_key()
    assert say(twin, "7 * 5 + 3").rewards["game"] == 0.9


def test_a_division_by_zero_has_no_value(by_hand):
    monkey = by_hand(max_actions=2)
    step = say(monkey, "3 / (5 - 5) + 7")
    assert (step.messages[0].content, step.rewards["game"]) == ("3 / (5 - 5) + 7 = ?\n3 5 7 -> 38", 0.0)
    assert combine("/", (3, 1), (0, 1)) is None


def test_the_experts_thoughts_are_its_sums(by_hand):
    game = by_hand(think=True)
    message = game.expert()
    assert message.thinking == "5 * 7 = 35, 3 + 35 = 38."
    assert message.content == "<answer>3 + (5 * 7)</answer>"


def test_values_agree_with_exact_fractions():
    """Random trees of operations, against Python's own fractions."""
    rng = random.Random(0)
    for _ in range(500):
        text, value, used = grow(rng, depth=3)
        read = read_expression(text)
        assert read is not None, text
        assert read.numbers == tuple(used)
        assert (None if read.value is None else Fraction(*read.value)) == value
        assert read_expression(read.text) == read


def grow(rng, depth):
    """A random expression, its value (None after a division by zero) and the numbers in it, in order."""
    if depth == 0 or rng.random() < 0.2:
        number = rng.randint(0, 9)
        return str(number), Fraction(number), [number]
    (left, a, one), (right, b, two) = grow(rng, depth - 1), grow(rng, depth - 1)
    operator = rng.choice("+-*/")
    undefined = a is None or b is None or (operator == "/" and b == 0)
    value = None if undefined else {"+": a.__add__, "-": a.__sub__, "*": a.__mul__, "/": a.__truediv__}[operator](b)
    space = rng.choice(["", " "])
    return f"({left}){space}{operator}{space}({right})", value, [*one, *two]


@pytest.mark.parametrize(
    ("text", "value"),
    [("2 + 3 * 4", 14), ("(2 + 3) * 4", 20), ("10 - 3 - 2", 5), ("12 / 3 / 2", 2), ("8 / 2 * 4", 16), ("2 * (3)", 6)],
)
def test_operators_bind_and_associate_as_in_school(text, value):
    assert read_expression(text).value == (value, 1)


def test_every_puzzle_has_a_solution_that_the_solver_finds():
    for seed in range(300):
        puzzle = make_puzzle(seed, (2, 3, 4), 99, 99)
        assert 1 <= puzzle.target <= 99
        found = read_expression(solve(puzzle).expression)
        assert sorted(found.numbers) == sorted(puzzle.numbers)
        assert found.value == (puzzle.target, 1)
    assert {len(make_puzzle(seed, (2, 3, 4), 99, 99).numbers) for seed in range(30)} == {2, 3, 4}


def test_the_solver_knows_what_cannot_be_reached():
    assert solve(Puzzle(numbers=(1, 1), target=5)) is None
    assert solve(Puzzle(numbers=(3, 3, 8, 8), target=24)).expression == "8 / (3 - (8 / 3))"


def test_the_expert_always_succeeds_and_a_random_expression_seldom_does():
    env = Countdown()
    for noise, least, most in ((0.0, 1.0, 1.0), (1.0, 0.0, 0.2)):
        env = Countdown(expert_noise=noise)
        won = 0.0
        for place, task in enumerate(env.tasks("test")[:100]):
            game = env.spawn()
            asyncio.run(game.reset(task, place))
            step = asyncio.run(game.step(game.expert()))
            assert step.rewards["game"] in (0.1, 1.0), "a random expression has the right numbers too"
            won += step.metrics["success"]
        assert least <= won / 100 <= most


def test_the_tasks_seed_makes_the_puzzle_and_no_puzzle_is_in_two_splits():
    env = Countdown(numbers=[3], largest=9, largest_target=20, train_tasks=2000)
    game = env.spawn()

    async def puzzles(split, episode_seed):
        seen = []
        for task in env.tasks(split):
            await game.reset(task, episode_seed)
            seen.append((tuple(sorted(game._puzzle.numbers)), game._puzzle.target))
        return seen

    train, test, again = (asyncio.run(puzzles(*which)) for which in (("train", 0), ("test", 0), ("test", 1)))
    assert test == again
    assert len(set(train)) > 300
    assert not set(train) & set(test)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"numbers": []}, r"numbers is \[\]; give at least one whole number, each from 2 to 6"),
        ({"numbers": [3, 7]}, r"numbers is \[3, 7\]"),
        ({"largest": 0}, "largest is 0; give a whole number of at least 1"),
        ({"largest_target": -1}, "largest_target is -1"),
    ],
)
def test_puzzles_that_cannot_be_are_refused_in_one_line(arguments, said):
    with pytest.raises(EnvError, match=f"^{said}[^\n]*$"):
        Countdown(**arguments)
