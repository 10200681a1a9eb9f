"""FrozenLake: maps that can be crossed, steps by hand, slips as Gymnasium has them, and experts that are the best."""

import asyncio
import itertools
import random
import re
from collections import Counter

import pytest

from turnwise.envs import check_env
from turnwise.envs.games.frozen_lake import ACTIONS, FrozenLake, Lake, best_steps, make_lake
from turnwise.errors import EnvError
from turnwise.rollout.play import play
from turnwise.types import Message, Task

# The lake of this drawing, its cells numbered from 0 to 15.
#   _ P _ O
#   _ O _ _
#   _ _ O _
#   O G _ _
HOLES = frozenset({3, 5, 10, 12})
FAR = 10**6
LAKE = Lake(
    size=4,
    holes=HOLES,
    start=1,
    goal=13,
    distances=(4, 5, 6, FAR, 3, FAR, 5, 4, 2, 1, FAR, 3, FAR, 0, 1, 2),
)
TASK = Task(id="by hand")


@pytest.fixture
def by_hand(monkeypatch):
    """An environment whose every level is the lake above."""
    monkeypatch.setattr("turnwise.envs.games.frozen_lake.make_lake", lambda *arguments: LAKE)
    return lambda **arguments: FrozenLake(**{"think": False, "slippery": False} | arguments)


def begin(env, episode_seed=0, task=TASK):
    game = env.spawn()
    asyncio.run(game.reset(task, episode_seed))
    return game


def say(game, answer):
    return asyncio.run(game.step(Message(role="assistant", content=f"<answer>{answer}</answer>")))


async def succeed(env, tasks, choose=lambda game: game.expert()):
    """The share of episodes won."""
    won = 0.0
    for episode_seed, task in enumerate(tasks):
        game = env.spawn()
        await game.reset(task, episode_seed)
        while not (step := await game.step(choose(game))).done:
            pass
        won += step.metrics["success"]
    return won / len(tasks)


async def draw(env, split):
    game = env.spawn()
    return {(await game.reset(task, 0))[1].content for task in env.tasks(split)}


@pytest.mark.parametrize("arguments", [{}, {"slippery": False}, {"size": 8, "max_actions": 30}, {"think": False}])
def test_it_keeps_the_contract_of_an_environment(arguments):
    assert asyncio.run(check_env(FrozenLake(**arguments))) == []


def test_a_way_across_by_hand(by_hand):
    game = begin(by_hand())
    assert game.show() == "_ P _ O\n_ O _ _\n_ _ O _\nO G _ _"
    assert game.explain() == "The player is at (0, 1). The goal is at (3, 1)."
    assert game.facts() == {
        "player": (0, 1),
        "goal": (3, 1),
        "hole 1": (0, 3),
        "hole 2": (1, 1),
        "hole 3": (2, 2),
        "hole 4": (3, 0),
    }
    step = say(game, "Up")
    assert (step.rewards["game"], step.metrics["moved"], game.facts()["player"]) == (0.0, 0.0, (0, 1))
    step = say(game, "Left || Down || Down")
    assert (step.messages[0].content, step.done) == ("_ _ _ O\n_ O _ _\nP _ O _\nO G _ _", False)
    step = say(game, "Right || Down || Up")
    assert (step.messages[0].content, step.done) == ("_ _ _ O\n_ O _ _\n_ _ O _\nO √ _ _", True)
    assert step.rewards == {"game": 1.0, "format": 0.0}
    assert step.metrics == {"success": 1.0, "actions": 6.0, "invalid_actions": 0.0, "moved": 5 / 6}


def test_an_expert_that_gives_reasons_says_what_its_step_follows_from(by_hand):
    """From (0, 1): Down is a hole, and a step Left or Right can slip into it; a step Up cannot."""
    game = begin(by_hand(think=True, slippery=True, expert_reasons=True))
    assert game.explain() == (
        "The player is at (0, 1). The goal is at (3, 1). Up is the edge, 5 to go. Right is ice, 6 to go. "
        "Down is a hole. Left is ice, 4 to go. Holes in reach: Up 0, Right 1, Down 1, Left 1."
    )
    game._cell = 14
    assert game.explain().endswith(
        "Up is a hole. Right is ice, 2 to go. Down is the edge, 1 to go. Left is the goal. "
        "Holes in reach: Up 1, Right 1, Down 0, Left 1."
    )
    still = begin(by_hand(think=True, expert_reasons=True))
    assert still.explain().endswith("Right is ice, 6 to go. Down is a hole. Left is ice, 4 to go."), "nothing slips"


def test_reasons_name_a_cell_from_which_no_way_leads_on(by_hand, monkeypatch):
    walled = Lake(size=2, holes=frozenset({1}), start=0, goal=2, distances=(1, FAR, 0, FAR))
    monkeypatch.setattr("turnwise.envs.games.frozen_lake.make_lake", lambda *arguments: walled)
    game = begin(FrozenLake(size=2, expert_reasons=True))
    game._cell = 3
    assert "Down is the edge, no way on. Left is the goal." in game.explain()


def test_the_reasons_determine_nearly_all_of_what_the_solver_wins():
    """A rule that reads the reasons alone: the step whose three ends are nearest to the goal; holes count nothing."""
    env = FrozenLake(expert_reasons=True)
    cell = re.compile(r"(Up|Right|Down|Left) is (a hole|the goal|[a-z ]+, (?:(\d+) to go|no way on))")

    def read(game):
        words = cell.findall(game.explain())
        value = {way: 1.0 if what == "the goal" else 0.7 ** int(far) if far else 0.0 for way, what, far in words}
        ends = {way: sum(value[ACTIONS[(turn + slip) % 4]] for slip in (-1, 0, 1)) for turn, way in enumerate(ACTIONS)}
        best = max(ACTIONS, key=lambda way: (round(ends[way], 9), value[way]))
        return Message(role="assistant", content=f"<answer>{best}</answer>", thinking="?")

    tasks = env.tasks("test")
    by_rule, solver = asyncio.run(succeed(env, tasks, read)), asyncio.run(succeed(env, tasks))
    assert by_rule > 0.9 * solver


def test_a_person_who_plays_it_sees_the_map_before_and_after_each_move(by_hand):
    shown = []
    lines = iter(["<answer>Left</answer>", "<answer>Down || Down || Right || Down</answer>"])
    reward = asyncio.run(play(by_hand(), TASK, 0, lambda: next(lines), lambda what: shown.append(str(what))))
    maps = [
        "_ P _ O\n_ O _ _\n_ _ O _\nO G _ _",
        "P _ _ O\n_ O _ _\n_ _ O _\nO G _ _",
        "_ _ _ O\n_ O _ _\n_ _ O _\nO √ _ _",
    ]
    assert [text for text in shown if text.startswith("user\n")] == [f"user\n{drawn}" for drawn in maps]
    assert reward == 1.0


def test_a_hole_ends_it_without_reward(by_hand):
    game = begin(by_hand())
    step = say(game, "Down || Up || Up")
    assert (step.messages[0].content, step.done) == ("_ _ _ O\n_ X _ _\n_ _ O _\nO G _ _", True)
    assert (step.rewards["game"], step.metrics["success"], step.metrics["actions"]) == (0.0, 0.0, 1.0)


def test_walls_stop_a_step_in_all_four_directions(by_hand):
    for way, answer, corner in (("Left", "Up || Left", (0, 0)), ("Right || Down || Right || Down || Down", "", (3, 3))):
        game = begin(by_hand(max_actions=20))
        say(game, way)
        if answer:
            assert say(game, answer).metrics["moved"] == 1 / 3
        else:
            say(game, "Right || Down")
            assert say(game, "Right").metrics["moved"] == 5 / 8
        assert game.facts()["player"] == corner


def test_the_expert_takes_the_shortest_way_around_the_holes(by_hand):
    game = begin(by_hand())
    assert game.plan() == ["Left", "Down", "Down", "Right", "Down"]
    say(game, "Right")
    assert len(game.plan()) == 6
    assert say(game, " || ".join(game.plan()[:5])).done is False
    assert say(game, game.plan()[0]).metrics["success"] == 1.0


def test_without_slips_the_expert_always_succeeds():
    for arguments in ({"size": 4}, {"size": 2}, {"size": 3, "frozen": 0.3}, {"size": 8, "max_actions": 16}):
        env = FrozenLake(slippery=False, **arguments)
        assert asyncio.run(succeed(env, env.tasks("train")[:100])) == 1.0


def test_a_lake_can_be_crossed_in_the_actions_allowed_and_has_the_holes_it_should():
    ice = 0
    for seed in range(1000):
        lake = make_lake(seed, 4, 0.8, 5)
        assert lake.start != lake.goal
        assert not {lake.start, lake.goal} & lake.holes
        assert lake.distances[lake.start] <= 5
        assert lake.distances == tuple(walk(lake, cell) for cell in range(16))
        ice += 14 - len(lake.holes)
    assert {make_lake(seed, 4, 0.8, 5).start for seed in range(300)} == set(range(16))
    # .8 of the 14 cells that may be holes; those with more ice are accepted more often.
    assert 0.8 < ice / 14_000 < 0.86


def walk(lake, start):
    """The distance by growing the set of cells reached, the other way round than the lake measures it."""
    reached, steps = {start}, 0
    while lake.goal not in reached:
        grown = {
            (row + down) * lake.size + column + right
            for row, column in map(lake.place, reached)
            for down, right in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
            if 0 <= row + down < lake.size and 0 <= column + right < lake.size
        } - (lake.holes - {start})
        if grown == reached:
            return FAR
        reached, steps = grown, steps + 1
    return FAR if start in lake.holes else steps


def test_the_tasks_seed_makes_the_lake_and_luck_the_slips():
    env = FrozenLake()
    tasks = env.tasks("train")
    shown = [[begin(env, episode_seed, tasks[place]).show() for episode_seed in range(4)] for place in range(60)]
    assert all(len(set(same)) == 1 for same in shown), "episode seed does not change the level"
    assert len({same[0] for same in shown}) > 55, "the task's seed does"
    wide = FrozenLake(size=8, frozen=1.0, think=False, max_actions=20)
    ends = Counter()
    for episode_seed in range(60):
        game = begin(wide, episode_seed, wide.tasks("train")[0])
        for _ in range(6):
            if say(game, "Right").done:
                break
        ends[game.show()] += 1
    assert len(ends) > 10, "members of a group slip each in their own way"


def test_no_lake_is_both_trained_and_tested_on():
    env = FrozenLake(size=3, train_tasks=3000)
    train, test = (asyncio.run(draw(env, split)) for split in ("train", "test"))
    assert not train & test
    assert len(train) > 500


def test_states_have_equal_names_exactly_when_the_player_is_on_the_same_cell_of_the_same_lake(by_hand):
    game = begin(by_hand(max_actions=50))
    here = game.state_key()
    say(game, "Left")
    left = game.state_key()
    say(game, "Right")
    assert game.state_key() == here != left
    say(game, "Up")
    assert game.state_key() == here


def test_a_fork_slips_as_the_original_will():
    env = FrozenLake(size=8, frozen=1.0, think=False, max_actions=40)
    game = begin(env, 3, env.tasks("train")[1])
    say(game, "Up || Down")
    twin = game.fork()
    moves = ["Left || Right || Up", "Down || Down || Left", "Right"]
    assert [say(game, move) for move in moves] == [say(twin, move) for move in moves]


def test_slips_are_those_of_gymnasiums_own_frozen_lake():
    toy_text = pytest.importorskip("gymnasium.envs.toy_text")
    letters = ["S" if cell == 1 else "G" if cell == 13 else "H" if cell in HOLES else "F" for cell in range(16)]
    drawing = ["".join(letters[row : row + 4]) for row in range(0, 16, 4)]
    table = toy_text.FrozenLakeEnv(desc=drawing, is_slippery=True).P
    numbers = {"Left": 0, "Down": 1, "Right": 2, "Up": 3}
    env = FrozenLake(max_actions=100_000)
    game = env.spawn()
    asyncio.run(game.reset(env.tasks("train")[0], 0))
    for cell, action in itertools.product((1, 4, 15), ACTIONS):
        expected = Counter()
        for chance, following, reward, ends in table[cell][numbers[action]]:
            expected[int(following), float(reward), bool(ends)] += chance
        seen = Counter()
        for _ in range(1200):
            game._lake, game._cell = LAKE, cell
            move = game.play(action)
            seen[game._cell, move.reward, move.done] += 1 / 1200
        assert set(seen) == set(expected)
        # The largest standard deviation of a share of 1,200 is √(.25 / 1200) = .0144.
        assert all(abs(seen[one] - expected[one]) < 4 * 0.0144 for one in seen)


def test_on_slippery_ice_the_expert_plays_what_value_iteration_says_and_nothing_does_better():
    """With one action left beside the goal, by hand; then against trying everything."""
    last = best_steps(LAKE, 1)[0]
    # From cell 14, right of the goal: Left goes there with 1/3, Up slips Left with 1/3, Down slips Left too: equal
    # chances, and of these Left leads nearest.
    assert ACTIONS[last[14]] == "Left"
    assert ACTIONS[last[9]] == "Down"
    for horizon in (1, 2, 3, 4):
        policy = best_steps(LAKE, horizon)
        for cell in range(16):
            chosen = chance(cell, horizon, lambda left, here, policy=policy: (policy[left - 1][here],))
            assert chosen == pytest.approx(chance(cell, horizon, lambda left, here: range(4)))


def chance(cell, left, choices):
    """The chance to reach the goal, by trying everything; the best of the choices at every cell."""
    if cell in HOLES or cell == LAKE.goal or left == 0:
        return float(cell == LAKE.goal)
    return max(
        sum(chance(step(cell, (choice + slip) % 4), left - 1, choices) for slip in (-1, 0, 1)) / 3
        for choice in choices(left, cell)
    )


def step(cell, direction):
    row, column = divmod(cell, 4)
    down, right = ((-1, 0), (0, 1), (1, 0), (0, -1))[direction]
    row, column = min(3, max(0, row + down)), min(3, max(0, column + right))
    return 4 * row + column


def test_on_slippery_ice_the_expert_succeeds_far_more_often_than_chance():
    env = FrozenLake()
    rng = random.Random(0)

    def wander(game):
        return Message(role="assistant", content=f"<answer>{game.wander(rng)}</answer>", thinking="?")

    tasks = env.tasks("test")
    assert asyncio.run(succeed(env, tasks)) > asyncio.run(succeed(env, tasks, wander)) + 0.2


def test_a_map_costs_the_built_in_tokenizer_one_token_per_cell_and_line_end():
    from turnwise.models.small import SmallSettings, train_tokenizer

    shown = asyncio.run(draw(FrozenLake(train_tasks=200), "train"))
    tokenizer = train_tokenizer(shown, SmallSettings())
    assert {len(tokenizer.encode(text, add_special_tokens=False)) for text in shown} == {16 + 3}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"size": 1}, "size is 1; give a whole number of at least 2"),
        ({"size": 17}, "size is 17; the largest lake is 16 × 16"),
        ({"frozen": 0}, "frozen is 0; it is a chance, above 0 and up to 1"),
        ({"frozen": 1.1}, "frozen is 1.1"),
    ],
)
def test_lakes_that_cannot_be_are_refused_in_one_line(arguments, said):
    with pytest.raises(EnvError, match=f"^{said}[^\n]*$"):
        FrozenLake(**arguments)


def test_a_lake_too_small_for_two_splits_is_still_made():
    """A pond of 2 × 2 all of ice has 12 levels: whatever the hashes say, every seed gets one."""
    assert {make_lake(seed, 2, 1.0, 1).distances[make_lake(seed, 2, 1.0, 1).start] for seed in range(20)} == {1}


def test_the_lake_in_words_is_seen_from_where_the_player_is(by_hand):
    game = begin(by_hand(view="words", max_actions_per_turn=1))
    assert game.show() == "Holes: Down. Goal: Down 3."
    assert say(game, "Right").messages[0].content == "Holes: Right. Goal: Down 3, Left 1."
    assert say(game, "Down").messages[0].content == "Holes: Down, Left. Goal: Down 2, Left 1."
    assert say(game, "Left").messages[0].content == "You fell into a hole."
    assert say(begin_at(by_hand(view="words"), 9), "Down").messages[0].content == "You are at the goal."


def begin_at(env, cell):
    game = begin(env)
    game._cell = cell
    return game


def test_the_view_changes_nothing_but_what_is_read(by_hand):
    drawn, told = begin(by_hand()), begin(by_hand(view="words"))
    assert drawn.state_key() == told.state_key() == drawn.show()
    assert drawn.expert() == told.expert()
    assert begin(by_hand(view="words", think=True)).expert().thinking == "The goal is Down 3."
    assert asyncio.run(check_env(FrozenLake(view="words", slippery=False), episodes=2)) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"view": "sound"}, "it is one of: map, words"), ({"view": "words", "reasoning": {"truth": 0.1}}, "'truth'")],
    ids=["unknown", "truth"],
)
def test_a_view_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(EnvError, match=message):
        FrozenLake(**arguments)
