"""MiniGrid's levels: drawn by hand, apart by split, solved by the expert, and paid by MiniGrid itself."""

import asyncio
import re
from itertools import product

import pytest

from turnwise.envs import EnvSettings, check_env, make_env
from turnwise.envs.adapters.minigrid import MiniGridGame
from turnwise.errors import EnvError
from turnwise.types import Message, Task

things = pytest.importorskip("minigrid.core.world_object")

EMPTY = "MiniGrid-Empty-Random-6x6-v0"


def begin(**arguments):
    game = MiniGridGame(**{"think": False} | arguments).spawn()
    opening = asyncio.run(game.reset(Task(id="one", seed=1), 0))
    return game, opening


def say(game, answer):
    return asyncio.run(game.step(Message(role="assistant", content=f"<answer>{answer}</answer>")))


def furnish(game, cells, agent, facing):
    """Puts things into an empty room and the agent where it is wanted."""
    world = game._world.unwrapped
    for x, y in product(range(1, 5), repeat=2):
        world.grid.set(x, y, None)
    for (x, y), thing in cells.items():
        world.put_obj(thing, x, y)
    world.agent_pos, world.agent_dir = agent, facing
    return world


@pytest.mark.parametrize(
    "id",
    [
        EMPTY,
        "MiniGrid-Empty-5x5-v0",
        "MiniGrid-DoorKey-5x5-v0",
        "MiniGrid-Fetch-5x5-N2-v0",
        "MiniGrid-GoToDoor-5x5-v0",
        "MiniGrid-Dynamic-Obstacles-5x5-v0",
    ],
)
def test_it_keeps_the_contract_of_an_environment(id):
    env = make_env(EnvSettings(name="minigrid", args={"id": id, "max_actions": 20}))
    assert asyncio.run(check_env(env, episodes=1)) == []


def test_the_system_message_has_the_mission_and_what_occurs():
    _, (system, _) = begin(max_actions=9)
    assert system.content.startswith(
        "Mission: get to the green goal square.\n"
        "> v < ^: you, facing that way. .: free. #: wall. G: goal. Around it is wall.\n"
        "Actions: Left, Right, Forward, Pickup, Drop, Toggle\nReply: <answer>"
    )
    _, (system, _) = begin(id="MiniGrid-LavaGapS5-v0", description="Beware.")
    assert system.content.startswith("Beware.\nMission: avoid the lava and get to the green goal square.\n")
    assert "~: lava, ends it." in system.content


def test_a_level_by_hand():
    game, _ = begin(options={"max_steps": 100})
    cells = {(2, 1): things.Key("yellow"), (3, 1): things.Door("yellow", is_locked=True), (1, 3): things.Key("red")}
    furnish(game, cells | {(3, 2): things.Lava(), (4, 1): things.Goal(), (2, 4): things.Wall()}, (1, 1), 0)
    legend = "K: yellow key, L: locked yellow door, a: red key"
    assert game.show() == f"> K L G\n. . ~ .\na . . .\n. # . .\n{legend}"
    assert game.plan() == ["Pickup", "Forward", "Toggle", "Forward", "Forward"]
    assert game.explain() == "The player is at (0, 0), facing right. The goal is at (0, 3)."
    step = say(game, "Forward || Pickup || Right")
    legend = "L: locked yellow door, a: red key"
    assert step.messages[0].content == f"v . L G\n. . ~ .\na . . .\n. # . .\n{legend}\nYou carry: yellow key"
    assert step.metrics["moved"] == 2 / 3, "a key is no floor"
    step = say(game, "Left || Forward || Toggle")
    legend = "P: open yellow door, a: red key"
    assert step.messages[0].content == f". > P G\n. . ~ .\na . . .\n. # . .\n{legend}\nYou carry: yellow key"
    step = say(game, "Forward || Forward")
    assert (step.done, step.metrics["success"]) == (True, 1.0)
    assert step.rewards["game"] == pytest.approx(1 - 0.9 * 8 / 100), "MiniGrid's own, eight steps of a hundred"


def test_a_level_in_words():
    game, (system, _) = begin(view="words", max_actions=9)
    assert "facing that way" not in system.content, "there are no symbols to explain"
    cells = {(3, 2): things.Door("yellow", is_locked=True), (1, 3): things.Key("yellow"), (4, 4): things.Goal()}
    furnish(game, cells | {(2, 1): things.Lava()}, (2, 2), 0)
    others = "Locked yellow door: ahead 1. Yellow key: behind 1, right 1. Goal: ahead 2, right 2."
    assert game.show() == f"Ahead: locked yellow door. Left: lava. Right: free. {others}"
    assert game.explain() == "The goal is ahead 2, right 2."
    step = say(game, "Right || Forward || Right || Pickup")
    others = "Locked yellow door: behind 1, right 1. Goal: behind 2, left 1."
    assert step.messages[0].content == f"Ahead: free. Left: free. Right: free. {others}\nYou carry: yellow key"


def test_lava_ends_a_level_unpaid():
    game, _ = begin()
    furnish(game, {(2, 1): things.Lava()}, (1, 1), 0)
    step = say(game, "Forward")
    assert (step.done, step.rewards["game"], step.metrics["success"], step.metrics["terminated"]) == (True, 0, 0, 1)


def test_done_is_an_action_only_where_it_does_something():
    assert begin(id="MiniGrid-GoToDoor-5x5-v0")[0].actions[-1] == "Done"
    assert begin(id="MiniGrid-DoorKey-5x5-v0")[0].actions[-1] == "Toggle"
    assert begin(id="MiniGrid-Dynamic-Obstacles-5x5-v0")[0].actions == ("Left", "Right", "Forward")


def test_actions_can_be_named_otherwise():
    game, _ = begin(action_names=["turn left", "turn right", "go", "take", "put", "use", "end"])
    furnish(game, {(2, 1): things.Goal()}, (1, 1), 3)
    assert game.actions[-1] == "use"
    assert game.plan() == ["turn right", "go"]


def test_a_wall_that_has_doors_is_drawn():
    _, (system, seen) = begin(id="MiniGrid-GoToDoor-5x5-v0")
    assert "Around it" not in system.content
    *rows, legend = seen.content.splitlines()
    assert (len(rows), len(rows[0])) == (5, 9)
    assert len(re.findall(r"\w: closed \w+ door", legend)) == 4


def test_no_level_is_both_trained_and_tested_on():
    env = MiniGridGame(id=EMPTY)

    async def levels(split):
        found = set()
        for task in env.tasks(split)[:200]:
            game = env.spawn()
            await game.reset(task, 0)
            found.add(game.state_key())
            await game.close()
        return found

    train, test = asyncio.run(levels("train")), asyncio.run(levels("test"))
    assert len(train | test) > 50, "of 60: fifteen places, four directions"
    assert not train & test


def test_a_state_has_a_key_though_the_agent_of_minigrid_would_see_no_change():
    game, _ = begin(id="MiniGrid-Empty-16x16-v0")
    world = game._world.unwrapped
    keys = set()
    for x in range(5, 8):
        world.agent_pos, world.agent_dir = (x, 12), 3
        keys.add(game.state_key())
    assert len(keys) == 3


@pytest.mark.parametrize(
    "id",
    [
        EMPTY,
        "MiniGrid-FourRooms-v0",
        "MiniGrid-SimpleCrossingS9N2-v0",
        "MiniGrid-LavaCrossingS9N2-v0",
        "MiniGrid-DoorKey-8x8-v0",
        "MiniGrid-MultiRoom-N4-S5-v0",
        "MiniGrid-LockedRoom-v0",
    ],
)
def test_the_expert_reaches_every_goal(play, id):
    env = MiniGridGame(id=id, think=False)
    for task in env.tasks("test")[:3]:
        _, steps = play(env, task)
        assert (steps[-1].done, steps[-1].metrics["success"]) == (True, 1.0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"id": "FrozenLake-v1"}, "FrozenLake is no level of MiniGrid"),
        ({"id": "MiniGrid-Emty-v0"}, "Gymnasium cannot make 'MiniGrid-Emty-v0'"),
        ({"view": "image"}, "view is 'image'; it is one of: grid, words"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(arguments, said):
    with pytest.raises(EnvError, match=f"^{said}[^\n]*$"):
        MiniGridGame(**arguments)
