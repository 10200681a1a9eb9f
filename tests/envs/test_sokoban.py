"""Sokoban as a game: episodes played by hand with rewards computed by hand, the expert, and level files as tasks."""

import asyncio
import random
import re
import time
from functools import partial

import pytest

from turnwise.envs import EnvSettings, check_env, make_env
from turnwise.envs.games.sokoban import env as sokoban
from turnwise.envs.games.sokoban.env import Sokoban
from turnwise.errors import EnvError
from turnwise.types import Message, Step, Task

TWO_BOXES = "#######\n#@$.  #\n#  $. #\n#     #\n#######"
ROOM = "######\n#    #\n# $. #\n# @  #\n######"


def begin(text: str, **arguments) -> Sokoban:
    env = Sokoban(**arguments).spawn()
    asyncio.run(env.reset(Task(id="drawn", data={"level": text}), 0))
    return env


def say(env: Sokoban, *actions: str) -> Step:
    message = Message(role="assistant", content=f"<answer>{' || '.join(actions)}</answer>", thinking="So.")
    return asyncio.run(env.step(message))


def test_the_last_box_in_place_pays_and_ends_it():
    step = say(begin("#####\n#@$.#\n#####"), "Right")
    assert step.rewards["game"] == pytest.approx(-0.1 + 1 + 10)
    assert step.done
    assert step.metrics["success"] == 1.0
    assert step.messages[0].content == "# # # # #\n# _ P √ #\n# # # # #"


def test_an_episode_by_hand():
    env = begin(TWO_BOXES)
    assert env.show() == "# # # # # # #\n# P X O _ _ #\n# _ _ X O _ #\n# _ _ _ _ _ #\n# # # # # # #"
    onto = say(env, "Right")
    assert onto.rewards["game"] == pytest.approx(-0.1 + 1)
    assert onto.messages[0].content == "# # # # # # #\n# _ P √ _ _ #\n# _ _ X O _ #\n# _ _ _ _ _ #\n# # # # # # #"
    off = say(env, "Right")
    assert off.rewards["game"] == pytest.approx(-0.1 - 1)
    assert off.messages[0].content == "# # # # # # #\n# _ _ S X _ #\n# _ _ X O _ #\n# _ _ _ _ _ #\n# # # # # # #"
    assert not off.done


def test_several_actions_in_one_turn_add_up():
    step = say(begin(TWO_BOXES), "Right", "Down", "Right")
    assert step.rewards["game"] == pytest.approx(0.9 - 0.1 + 10.9)
    assert step.done
    assert step.metrics["actions"] == 3


def test_a_wall_and_a_blocked_box_cost_a_step_and_move_nothing():
    env = begin("#######\n#@$$..#\n#     #\n#######")
    before = env.show()
    step = say(env, "Left", "Up", "Right")
    assert step.rewards["game"] == pytest.approx(-0.3)
    assert step.metrics["moved"] == 0.0
    assert env.show() == before


def test_from_one_target_straight_onto_the_next_pays_nothing():
    assert say(begin("#######\n#@*.$ #\n#     #\n#######"), "Right").rewards["game"] == pytest.approx(-0.1)


def test_the_alternative_vocabulary_draws_and_names_the_same_game():
    env = begin(TWO_BOXES, vocabulary="alternative")
    assert env.show() == "W W W W W W W\nW A B G . . W\nW . . B G . W\nW . . . . . W\nW W W W W W W"
    step = say(env, "East", "east", "Right")
    assert step.rewards["game"] == pytest.approx(0.9 - 1.1)
    assert step.messages[0].content == (
        "Unknown action: Right\nW W W W W W W\nW . . @ B . W\nW . . B G . W\nW . . . . . W\nW W W W W W W"
    )
    assert "C: box on target" in env.rules()
    assert "North, South, West, East" in env.rules()


def test_a_stuck_box_does_not_end_the_episode_and_the_expert_says_so():
    env = begin(ROOM)
    assert env.explain() == "The player is at (3, 2). The box is at (2, 2). The target is at (2, 3)."
    step = say(env, "Up")
    assert (step.done, step.rewards["game"]) == (False, pytest.approx(-0.1))
    assert env.explain().endswith("The box is at (1, 2). The target is at (2, 3). It cannot be solved from here.")
    assert env.plan() == ["Down"]
    assert say(env, *env.plan()).metrics["moved"] == 1.0


def test_an_expert_that_gives_reasons_says_how_the_box_and_then_the_player_goes():
    env = begin(ROOM, expert_reasons=True)
    assert env.explain() == (
        "The player is at (3, 2). The box is at (2, 2). The target is at (2, 3). "
        "Pushes from (2, 2): Right (2, 3). Moves from (3, 2): Left (3, 1), Up (2, 1), Right (2, 2)."
    )
    two = begin(TWO_BOXES, expert_reasons=True)
    assert two.explain().endswith(
        "Pushes from (1, 2): Right (1, 3). Pushes from (2, 3): Right (2, 4). "
        "Moves from (1, 1): Right (1, 2), Down (2, 2), Right (2, 3)."
    )
    say(env, "Up")
    assert env.explain().endswith("It cannot be solved from here."), "no way, no reasons"


def test_the_moves_of_the_reasons_are_the_plan_and_end_behind_the_last_push():
    env = Sokoban(expert_reasons=True)
    for task in env.tasks("train")[:40]:
        game = env.spawn()
        asyncio.run(game.reset(task, 0))
        pushes, moves = re.findall(r" from \(\d, \d\): ([^.]*)", game.explain())
        assert [move.split()[0] for move in moves.split("), ")] == game.plan()
        assert pushes.endswith(str(game.facts()["target"]))


def test_reasons_are_not_given_by_an_expert_that_leaves_its_plan():
    with pytest.raises(EnvError, match="expert_reasons explain a plan that a noisy expert leaves"):
        Sokoban(expert_reasons=True, expert_noise=0.5)


def test_a_plan_that_cannot_move_is_still_an_action_of_the_game():
    env = begin("#######\n#@## .#\n##  $ #\n#######")
    assert env.plan() == ["Up"]
    assert "cannot be solved" in env.explain()


def test_a_search_that_gave_up_is_not_called_hopeless(monkeypatch):
    monkeypatch.setattr(sokoban, "solve", partial(sokoban.solve, limit=1))
    env = begin(TWO_BOXES)
    assert env.explain().endswith("Target 2 is at (2, 4). No solution was found.")
    assert env.plan() == ["Down"]


def test_the_plan_is_found_once_and_again_only_when_it_is_left(monkeypatch):
    searches = []
    solve = sokoban.solve
    monkeypatch.setattr(sokoban, "solve", lambda level: searches.append(level) or solve(level))
    env = begin(ROOM)
    assert env.plan() == ["Left", "Up", "Right"]
    say(env, "Left")
    assert env.plan() == ["Up", "Right"]
    assert env.fork().plan() == ["Up", "Right"]
    assert len(searches) == 1
    say(env, "Right", "Right")
    assert env.plan() == ["Left", "Left", "Up", "Right"]
    assert len(searches) == 2


def test_facts_are_what_the_picture_shows_and_what_is_explained():
    env = begin(TWO_BOXES)
    say(env, "Right", "Right", "Down")
    symbols = {"player": "PS", "box": "X√", "target": "O√S"}
    facts = env.facts()
    assert list(facts) == ["player", "box 1", "box 2", "target 1", "target 2"]
    picture = [row.split(" ") for row in env.show().split("\n")]
    for name, (row, column) in facts.items():
        assert picture[row][column] in symbols[name.split()[0]]
        assert f"{name} is at ({row}, {column})." in env.explain().lower()


def test_states_are_equal_when_their_pictures_are():
    env = begin(TWO_BOXES)
    start = env.state_key()
    say(env, "Down")
    assert env.state_key() != start
    say(env, "Up")
    assert env.state_key() == start
    assert begin(TWO_BOXES.replace("#     #", "#    ##")).state_key() != start


def test_a_fork_goes_its_own_way():
    env = begin(TWO_BOXES)
    twin = env.fork()
    say(twin, "Right")
    assert twin.show() != env.show()
    assert say(env, "Right").rewards == say(begin(TWO_BOXES), "Right").rewards


@pytest.mark.parametrize(
    ("boxes", "arguments"), [(1, {}), (2, {"size": 8, "boxes": 2, "max_actions": 25, "min_moves": 5})]
)
def test_the_expert_solves_every_level_by_the_shortest_way(boxes, arguments):
    env = Sokoban(**arguments)
    for task in [*env.tasks("train")[:40], *env.tasks("test")[:10]]:
        shortest, steps = asyncio.run(play_expert(env, task))
        assert steps[-1].metrics["success"] == 1.0
        assert steps[-1].metrics["actions"] == shortest
        # Whatever is pushed off a target on the way is pushed onto one again.
        assert sum(step.rewards["game"] for step in steps) == pytest.approx(10 + boxes - 0.1 * shortest)


async def play_expert(env: Sokoban, task: Task) -> tuple[int, list[Step]]:
    player = env.spawn()
    await player.reset(task, 0)
    shortest = len(player.plan())
    steps = [await player.step(player.expert())]
    while not steps[-1].done:
        steps.append(await player.step(player.expert()))
    return shortest, steps


@pytest.mark.parametrize(
    "arguments",
    [{}, {"size": 8, "boxes": 2}, {"vocabulary": "alternative", "think": False}, {"expert_noise": 0.5}],
)
def test_the_contract_is_kept(arguments):
    assert asyncio.run(check_env(Sokoban(**arguments))) == []


def test_levels_of_a_file_are_tasks(tmp_path):
    rows = ["#@$.   #", "#@ $.  #", "#@  $. #", "#@   $.#", "#  .$@ #", "# .$ @ #"]
    path = tmp_path / "levels.txt"
    path.write_text("".join(f"; {i}\n########\n{row}\n########\n\n" for i, row in enumerate(rows)), encoding="utf-8")
    env = make_env(EnvSettings(name="sokoban", args={"levels": str(path)}))
    drawn = {split: [task.data["level"].split("\n")[1] for task in env.tasks(split)] for split in ("train", "test")}
    assert drawn == {"train": [*rows[:4], rows[5]], "test": [rows[4]]}
    assert asyncio.run(check_env(env)) == []
    apart = Sokoban(levels=str(path), test_levels=str(path), train_tasks=3)
    assert [len(apart.tasks(split)) for split in ("train", "test")] == [3, 6]
    assert asyncio.run(play_expert(env, env.tasks("train")[3]))[0] == 4


def test_a_file_of_one_level_leaves_none_to_test_on(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("#####\n#@$.#\n#####", encoding="utf-8")
    with pytest.raises(EnvError, match=r"one\.txt' has one level and test_levels is not given"):
        Sokoban(levels=str(path))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"vocabulary": "emoji"}, "vocabulary is 'emoji'; the vocabularies are: standard, alternative"),
        ({"size": 8, "levels": "levels.txt"}, "size is for generated levels, but levels come from 'levels.txt'"),
        ({"test_levels": "levels.txt"}, "test_levels is given without levels"),
        ({"min_moves": 11, "max_moves": 20}, "min_moves is 11, so no level can be solved in max_actions, 10"),
        ({"min_moves": 11}, "min_moves is 11; give a number from 1 to max_moves, 10"),
        ({"size": 6.0}, "size is 6.0; give a whole number"),
        ({"levels": "nowhere.txt"}, "cannot read 'nowhere.txt': No such file or directory"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(arguments, says):
    with pytest.raises(EnvError, match=re.escape(says)):
        Sokoban(**arguments)


def test_luck_changes_nothing_and_a_seed_everything():
    openings = [
        asyncio.run(env.spawn().reset(env.tasks("train")[0], episode_seed)) for env, episode_seed in seeds_and_lucks()
    ]
    assert openings[0] == openings[1]
    assert openings[0] != openings[2]


def seeds_and_lucks() -> list[tuple[Sokoban, int]]:
    return [(Sokoban(), 0), (Sokoban(), 1), (Sokoban(seed=1), 0)]


@pytest.mark.parametrize("arguments", [{}, {"size": 8, "boxes": 2}])
def test_steps_are_fast(arguments):
    env = Sokoban(max_actions=10_000, max_moves=10, **arguments)
    replies = [Message(role="assistant", content=f"<answer>{name}</answer>", thinking="So.") for name in env.actions]
    script = random.Random(0).choices(replies, k=4000)
    assert asyncio.run(steps_per_second(env, script)) > 20_000


async def steps_per_second(env: Sokoban, script: list[Message]) -> float:
    task = env.tasks("train")[0]
    await env.reset(task, 0)
    start = time.process_time()
    for message in script:
        if (await env.step(message)).done:
            await env.reset(task, 0)
    return len(script) / (time.process_time() - start)
