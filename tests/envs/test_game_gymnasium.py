"""Gymnasium's own environments as games: seeds, names, endings apart, forks by replay, the best policy as expert."""

import asyncio
import sys

import pytest

from turnwise.envs import EnvSettings, check_env, make_env
from turnwise.envs.adapters.gymnasium import GymnasiumGame, bracket_highlights, describe, solve_table
from turnwise.errors import EnvError
from turnwise.types import Message, Task

gymnasium = pytest.importorskip("gymnasium")

STILL = {"is_slippery": False}


def begin(episode_seed=0, **arguments):
    game = GymnasiumGame(**{"think": False} | arguments).spawn()
    asyncio.run(game.reset(Task(id="one", seed=1), episode_seed))
    return game


def say(game, answer):
    return asyncio.run(game.step(Message(role="assistant", content=f"<answer>{answer}</answer>")))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"options": STILL},
        {"id": "FrozenLake8x8-v1"},
        {"id": "CliffWalking-v1"},
        {"id": "Blackjack-v1"},
        {"id": "CartPole-v1"},
    ],
)
def test_it_keeps_the_contract_of_an_environment(arguments):
    assert asyncio.run(check_env(GymnasiumGame(**arguments), episodes=1)) == []


def test_frozen_lake_by_hand():
    game = begin(options=STILL)
    assert game.actions == ("Left", "Down", "Right", "Up")
    assert game.show() == "[S]FFF\nFHFH\nFFFH\nHFFG"
    step = say(game, "Left || Down || down")
    assert step.messages[0].content == "  (Down)\nSFFF\nFHFH\n[F]FFH\nHFFG"
    assert (step.rewards, step.done) == ({"game": 0.0, "format": 0.0}, False)
    assert step.metrics == {
        "success": 0.0,
        "actions": 3.0,
        "invalid_actions": 0.0,
        "moved": 2 / 3,
        "terminated": 0.0,
        "truncated": 0.0,
    }
    step = say(game, "Right || Down || Right || Right")
    assert (step.rewards["game"], step.done) == (1.0, True)
    assert (step.metrics["success"], step.metrics["terminated"], step.metrics["truncated"]) == (1.0, 1.0, 0.0)
    step = say(begin(options=STILL), "Down || Right")
    assert (step.done, step.metrics["success"], step.metrics["terminated"]) == (True, 0.0, 1.0), "a hole"


def test_the_worlds_time_limit_is_told_apart_from_its_end_and_from_ours():
    limited = begin(options=STILL | {"max_episode_steps": 3})
    step = say(limited, "Left || Left || Left || Left")
    assert (step.done, step.truncated, step.metrics["terminated"], step.metrics["actions"]) == (True, True, 0, 3)
    ours = begin(options=STILL, max_actions=2)
    step = say(ours, "Left || Left || Left")
    assert (step.done, step.truncated, step.metrics["terminated"], step.metrics["actions"]) == (True, False, 0, 2)


def test_the_tasks_seed_makes_the_start_and_luck_the_slips():
    cards = {describe(begin(episode_seed, id="Blackjack-v1")._seen) for episode_seed in range(5)}
    assert len(cards) == 1
    world = gymnasium.make("Blackjack-v1")
    assert cards == {describe(world.reset(seed=1)[0])}, "the task's seed goes to reset as it is"
    env = GymnasiumGame(id="Blackjack-v1")
    dealt = {asyncio.run(env.spawn().reset(task, 0))[1].content for task in env.tasks("train")[:30]}
    assert len(dealt) > 15
    ends = {say(begin(episode_seed), "Right || Right || Down").messages[0].content for episode_seed in range(20)}
    assert len(ends) > 3


def test_a_fork_plays_its_past_again_and_shares_no_world():
    game = begin(episode_seed=5, max_actions=50)
    say(game, "Left || Left")
    twin = game.fork()
    assert twin._world is not game._world
    assert twin.state_key() == game.state_key()
    moves = ["Left || Up || Left", "Up || Left"]
    assert [say(game, move) for move in moves] == [say(twin, move) for move in moves]


def test_worlds_are_played_in_again_but_never_by_two_at_once():
    env = GymnasiumGame()
    first, second = env.spawn(), env.spawn()
    for game in (first, second):
        asyncio.run(game.reset(env.tasks("train")[0], 0))
    mine = first._world
    assert mine is not second._world
    asyncio.run(first.close())
    asyncio.run(first.close())
    third, fourth = env.spawn(), env.spawn()
    for game in (third, fourth):
        asyncio.run(game.reset(env.tasks("train")[1], 0))
    assert third._world is mine
    assert fourth._world not in (mine, second._world)
    asyncio.run(env.spawn().close())


def test_the_expert_plays_the_best_policy_of_a_table():
    game = begin(options=STILL)
    for _ in range(6):
        step = asyncio.run(game.step(game.expert()))
    assert (step.done, step.metrics["success"]) == (True, 1.0), "six steps are the shortest way"
    cliff = begin(id="CliffWalking-v1", success_at=-13)
    steps = [asyncio.run(cliff.step(cliff.expert())) for _ in range(13)]
    assert [step.rewards["game"] for step in steps] == [-1.0] * 13, "along the edge, thirteen steps"
    assert (steps[-1].done, steps[-1].metrics["success"]) == (True, 1.0)
    assert solve_table("Blackjack-v1", "{}") is None


async def succeed(env, act):
    won = 0.0
    for episode_seed in range(150):
        game = env.spawn()
        await game.reset(env.tasks("test")[0], episode_seed)
        while not (step := await game.step(act(game))).done:
            pass
        won += step.metrics["success"]
        await game.close()
    return won / 150


def test_on_slippery_ice_the_expert_is_as_good_as_is_known():
    """The best policy reaches the goal of the 4 × 4 map in 100 steps about 3 times in 4; a random one, 1 in 70."""
    env = GymnasiumGame()
    assert asyncio.run(succeed(env, lambda game: game.expert())) > 0.6
    wandering = GymnasiumGame(expert_noise=1.0)
    assert asyncio.run(succeed(wandering, lambda game: game.expert())) < 0.15


def test_actions_can_be_named_and_a_world_described():
    env = GymnasiumGame(action_names=["W", "S", "E", "N"], description="Cross the ice.", options=STILL)
    system, _ = asyncio.run(env.spawn().reset(Task(id="one"), 0))
    assert system.content.startswith("Cross the ice.\nActions: W, S, E, N\nReply:")
    assert GymnasiumGame(id="Acrobot-v1").actions == ("0", "1", "2")


def test_a_drawing_keeps_its_highlights_and_an_observation_its_numbers():
    assert bracket_highlights("\n\x1b[41mS\x1b[0mF\n\x1b[34;1mB\x1b[0m \n") == "[S]F\n[B] "
    game = begin(id="CartPole-v1")
    assert game.show() == describe(game._seen)
    assert describe({"a": game._seen[:1].astype("float64") * 0 + 1 / 3, "b": (1, True)}) == "a: (0.333), b: (1, True)"
    assert describe(1 / 3, "") == "0.3333333333333333"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"id": "FrozenLak-v1"}, "Gymnasium cannot make 'FrozenLak-v1': .*Did you mean: `FrozenLake`"),
        ({"id": "FrozenLake-v9"}, "Gymnasium cannot make 'FrozenLake-v9': "),
        ({"id": "no_such_module:Thing-v0"}, "Gymnasium cannot make 'no_such_module:Thing-v0': "),
        ({"options": {"map": "4x4"}}, "Gymnasium cannot make 'FrozenLake-v1': .*unexpected keyword argument 'map'"),
        ({"id": "Pendulum-v1"}, "the actions of Pendulum-v1 are Box.*; only a Discrete action space"),
        ({"action_names": ["Left", "Right"]}, r"action_names is \['Left', 'Right'\]; FrozenLake-v1 has 4 actions"),
        ({"action_names": ["a", "b", "c", "A"]}, "action_names is .*: give each its own name"),
    ],
)
def test_worlds_that_cannot_be_played_are_refused_in_one_line(arguments, said):
    with pytest.raises(EnvError, match=f"^{said}[^\n]*$"):
        make_env(EnvSettings(name="gymnasium", args=arguments))


def test_without_gymnasium_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(EnvError, match=r"^Gymnasium is not installed; pip install 'turnwise\[gym\]'$"):
        GymnasiumGame()
