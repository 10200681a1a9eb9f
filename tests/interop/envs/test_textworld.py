"""TextWorld's own games: made from a seed, kept, played, won by the expert; none is in both splits."""

import asyncio
from pathlib import Path

import pytest

from turnwise.envs import EnvSettings, check_env, make_env
from turnwise.envs.adapters.textworld import TextWorld
from turnwise.errors import EnvError

pytest.importorskip("textworld")

SMALL = {
    "options": {"nb_rooms": 2, "nb_objects": 3, "quest_length": 2},
    "grammar": {"theme": "basic", "only_last_action": True},
    "think": False,
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("games"))


@pytest.mark.parametrize(
    "args",
    [
        SMALL,
        {"challenge": "coin_collector", "options": {"level": 1}},
        {"challenge": "cooking", "options": {"recipe": 1, "take": 1, "split": "train"}, "listed_only": False},
    ],
)
def test_it_keeps_the_contract_of_an_environment(args, cache):
    env = make_env(EnvSettings(name="textworld", args=args | {"cache": cache}))
    assert asyncio.run(check_env(env, episodes=1)) == []


def test_the_expert_wins_every_game(cache, play):
    env = TextWorld(**SMALL, cache=cache)
    for place in range(5):
        _, steps = play(env, env.tasks("train")[place])
        assert steps[-1].done
        assert steps[-1].metrics["success"] == steps[-1].metrics["score"] == 1.0
        assert sum(step.rewards["game"] for step in steps) == pytest.approx(1.0)


def test_a_game_is_fixed_by_its_seed_and_kept(cache, tmp_path, play):
    here, there = (TextWorld(**SMALL, cache=folder) for folder in (cache, str(tmp_path)))
    task = here.tasks("train")[0]
    openings = [play(env, task, ["look"]) for env in (here, there)]
    assert openings[0] == openings[1]
    files = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert {Path(name).suffix for name in files} == {".json", ".z8"}
    play(there, task, ["look"])
    assert {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == files, "it is not made again"


def test_splits_have_games_of_their_own(cache, play):
    env = TextWorld(**SMALL, cache=cache)
    seen = {split: {str(play(env, env.tasks(split)[i], [])[0]) for i in range(4)} for split in ("train", "test")}
    assert seen["train"] & seen["test"] == set()


def test_the_text_is_clean_and_a_command_that_is_not_listed_is_refused(cache, play):
    env = TextWorld(**SMALL, cache=cache)
    (rules, room), steps = play(env, env.tasks("train")[0], ["dance", "inventory"])
    assert rules.content.startswith("The objective is to ")
    assert room.content.startswith("-= Room")
    assert "\nCommands: " in room.content
    assert steps[0].messages[0].content.startswith("Unknown command: dance\n")
    assert steps[0].rewards == {"game": 0.0, "format": -0.1}
    shown = steps[1].messages[0].content
    assert "carrying" in shown
    assert ">" not in shown


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"options": {"nb_roms": 2}}, "GameOptions has no 'nb_roms'"),
        ({"challenge": "chess"}, "there are: .*coin_collector"),
        ({"challenge": "coin_collector"}, "--level"),
    ],
)
def test_a_wrong_setting_is_one_line(args, message, cache):
    with pytest.raises(EnvError, match=message):
        TextWorld(**args, cache=cache)
