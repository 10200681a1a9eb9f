"""The ALFWorld engine on generated rooms: every kind of goal is open, can be reached, and is reached by the planner."""

import asyncio
import json

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


def test_an_unknown_goal_is_one_line():
    with pytest.raises(EnvError, match="there is no goal 'fry'; there are: put, clean, heat, cool, two, light"):
        AlfWorld(goals=["fry"])
