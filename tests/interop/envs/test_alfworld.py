"""The ALFWorld engine on generated rooms: every kind of goal is open, can be reached, and is reached by the planner."""

import asyncio
import json
import random
import subprocess
import sys

import pytest

from turnwise.envs import EnvSettings, check_env, make_env
from turnwise.envs.adapters.alfworld import AlfWorld
from turnwise.errors import EnvError

pytest.importorskip("alfworld")

from turnwise.envs.adapters.worlds.alfworld import AlfWorldServer
from turnwise.envs.adapters.worlds.alfworld_rooms import GOALS, draw_room, write_problem

VERBS = {"clean": "clean ", "heat": "heat ", "cool": "cool ", "light": "use desklamp"}


def test_it_keeps_the_contract_of_an_environment():
    env = make_env(EnvSettings(name="alfworld", args={"receptacles": 4, "objects": 3, "max_actions": 12}))
    assert asyncio.run(check_env(env, episodes=1)) == []


@pytest.mark.parametrize("goal", GOALS)
def test_the_planner_reaches_every_kind_of_goal(goal, play):
    env = AlfWorld(goals=[goal], receptacles=4, objects=3, think=False)
    for place in range(4):
        opening, steps = play(env, env.tasks("train")[place])
        assert opening[0].content.startswith("Your task is to: ")
        assert opening[1].content.startswith("You are in the middle of a room.")
        paid = [step.rewards["game"] for step in steps]
        assert paid == [0.0] * (len(steps) - 1) + [1.0], "the goal was open until its last command"
        assert steps[-1].metrics["success"] == 1.0


@pytest.mark.parametrize("goal", GOALS)
def test_a_room_is_made_from_its_seed_and_has_what_its_goal_needs(goal):
    for seed in range(30):
        room = draw_room(seed, [goal], 5, 4)
        assert room == draw_room(seed, [goal], 5, 4)
        assert (len(room.receptacles), len(room.objects)) >= (5, 4)
        kinds = [kind for kind, _ in room.receptacles]
        assert {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}.get(goal, kinds[0]) in kinds
        assert len(set(room.receptacles)) == len(room.receptacles)
    assert len({write_problem(draw_room(seed, [goal], 5, 4)) for seed in range(30)}) == 30


def test_splits_have_rooms_of_their_own():
    env = AlfWorld()
    served = AlfWorldServer(goals=list(GOALS), receptacles=6, objects=5)
    rooms = {
        split: {write_problem(served.draw(env.tasks(split)[place].seed)) for place in range(60)}
        for split in ("train", "test")
    }
    assert len(rooms["train"]) == len(rooms["test"]) == 60
    assert rooms["train"] & rooms["test"] == set()


def test_a_room_is_a_game_file_of_alfworld():
    """As ALFWorld's own loader reads it, with its own wrapper for names."""
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld import EnvInfos
    from textworld.envs.pddl import PddlEnv

    served = AlfWorldServer(goals=["heat"], receptacles=4, objects=3)
    game = json.loads(served.game_file(5))
    assert set(game) == {"pddl_domain", "grammar", "pddl_problem", "solvable", "walkthrough"}
    env = AlfredDemangler(PddlEnv(EnvInfos(admissible_commands=True, won=True)))
    env.load(game)
    assert served.draw(5).task in env.reset().feedback
    for command in game["walkthrough"]:
        state, _, done = env.step(command)
    assert (done, state["won"]) == (True, True)


ENGINE = """
import json, sys
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld import EnvInfos
from textworld.envs.pddl import PddlEnv

game, commands = json.load(sys.stdin)
env = AlfredDemangler(PddlEnv(EnvInfos(admissible_commands=True, policy_commands=True, won=True)))
env.load(game)
states = [env.reset(), *(env.step(command)[0] for command in commands)]
print(json.dumps([[state.feedback, state.admissible_commands, state.policy_commands] for state in states]))
"""


def test_the_engine_says_the_same_where_our_copy_of_it_keeps_what_it_parsed():
    """The engine as it was installed, in a process that imports nothing of ours, plays the same commands."""
    served, rng = AlfWorldServer(goals=["cool"], receptacles=5, objects=5), random.Random(3)
    game = json.loads(served.game_file(4))
    kitchen = served.make({"seed": 4})
    views, played = [served.start(kitchen)], []
    for _ in range(16):
        played.append(rng.choice(views[-1]["plan"][:1] * 4 + views[-1]["commands"]))
        views.append(served.play(kitchen, played[-1]))
        if views[-1]["done"]:
            break
    assert len({command.split()[0] for command in played}) >= 3, "various rules of its grammar were used"
    given = json.dumps([game, played])
    told = subprocess.run([sys.executable, "-c", ENGINE], input=given, capture_output=True, text=True, check=True)
    first, *others = json.loads(told.stdout)
    assert views[0]["text"] in first[0]
    assert [one["text"] for one in views[1:]] == [text.strip() for text, _, _ in others]
    for view, (_, commands, plan) in zip(views, [first, *others], strict=True):
        assert view["commands"] == [one for one in commands if one != "help"]
        assert view["plan"] == (plan or [])


def test_an_unknown_goal_is_one_line():
    with pytest.raises(EnvError, match="there is no goal 'fry'; there are: put, clean, heat, cool, two, light"):
        AlfWorld(goals=["fry"])
