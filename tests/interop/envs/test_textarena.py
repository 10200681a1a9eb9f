"""TextArena's single-player games: all that need no download begin, are paid at their end and repeat by their seed."""

import asyncio

import pytest

from turnwise.envs import EnvSettings, check_env, make_env
from turnwise.envs.adapters.textarena import TextArena
from turnwise.errors import EnvError

pytest.importorskip("textarena")

from turnwise.envs.adapters.worlds.textarena import TextArenaServer

GAMES = [
    "2048-v0",
    "Bandit-v0",
    "Blackjack-v0",
    "Countdown-v0",
    "Crosswords-v0",
    "Cryptarithm-v0",
    "FifteenPuzzle-v0",
    "FrozenLake-v0",
    "GuessTheNumber-v0",
    "LightsOut-v0",
    "LogicPuzzle-v0",
    "Mastermind-v0",
    "Minesweeper-v0",
    "PegJump-v0",
    "RushHour-v0",
    "Secretary-v0",
    "Set-v0",
    "Slitherlink-v0",
    "Sokoban-v0",
    "Sudoku-v0",
    "ThreeCardMonte-v0",
    "TowerOfHanoi-v0",
]
"""The others need word lists or a judge from the network, or are for several players."""


@pytest.mark.parametrize("game", GAMES)
def test_every_game_begins_answers_and_repeats(game):
    served = TextArenaServer(game=game, options={})
    played = []
    for name in ("one", "two"):
        views = [served.open(name, {"seed": 7}, 3)]
        views += [served.act(name, command) for command in ("1", "up") if not views[-1]["done"]]
        served.close(name)
        played.append(views)
    assert played[0] == played[1]
    assert played[0][0]["objective"]
    assert played[0][1]["text"]


@pytest.mark.parametrize(
    "args",
    [{"game": "GuessTheNumber-v0"}, {"game": "2048-v0", "actions": ["up", "down", "left"]}, {"game": "Mastermind-v0"}],
)
def test_it_keeps_the_contract_of_an_environment(args):
    env = make_env(EnvSettings(name="textarena", args={"max_actions": 20} | args))
    assert asyncio.run(check_env(env, episodes=1)) == []
    assert env.has_expert == ("actions" in args)


def test_a_game_that_is_won_pays_one(play):
    env = TextArena(game="TowerOfHanoi-v0", options={"num_disks": 2, "max_turns": 10}, think=False)
    _, steps = play(env, env.tasks("train")[0], ["A B", "[A C]", "[B C]"])
    assert [step.rewards["game"] for step in steps] == [0.0, 0.0, 1.0]
    assert (steps[-1].done, steps[-1].metrics["success"]) == (True, 1.0)


def test_an_invalid_move_is_judged_by_the_game(play):
    env = TextArena(game="TowerOfHanoi-v0", options={"num_disks": 2, "max_turns": 10}, think=False)
    _, steps = play(env, env.tasks("train")[0], ["[Z Z]", "[Z Z]"])
    assert "invalid" in steps[0].messages[0].content.casefold()
    assert steps[1].done
    assert steps[1].metrics["success"] == 0.0


@pytest.mark.parametrize(
    ("game", "message"),
    [("ConnectFour-v0", "player"), ("Chess-v0", "cannot be played so"), ("Mastermin-v0", "'Mastermind-v0'")],
)
def test_a_game_that_cannot_be_played_is_one_line(game, message):
    with pytest.raises(EnvError, match=message):
        TextArena(game=game)
