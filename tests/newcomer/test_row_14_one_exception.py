"""A newcomer's mistake in Python is one exception with a few lines above it, and their own code is among them."""

import traceback

import pytest

import turnwise
from tiny_runs import Signals, Silent
from turnwise import Env
from turnwise.errors import ConfigError, EnvError, TurnwiseError


class Mine(Env):
    def tasks(self, split):
        raise EnvError("my own words")

    async def reset(self, task, episode_seed): ...

    async def step(self, message): ...


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": 1e-5},
        {"rollout": {"group_size": "8"}},
        {"algorithm": "gpro"},
        {"env": "no.such.module:Env"},
        {"env": "encyclopaedia"},
        {"env": "bandit", "model": {"small": {"width": 7}}},
        {"credit": {"lam": 0.9}},
        {"tasks": []},
    ],
)
def test_a_mistake_is_one_exception_of_few_lines(wrong, tmp_path):
    with pytest.raises(TurnwiseError) as raised:
        turnwise.train(**{"env": Signals(), "model": "small", "run": tmp_path / "run", "display": Silent(), **wrong})
    text = "".join(traceback.format_exception(raised.value))
    assert "During handling" not in text
    assert "direct cause" not in text
    assert "pydantic" not in text
    assert len(text.splitlines()) <= 9, text


def test_so_is_one_in_evaluate(tmp_path):
    with pytest.raises(TurnwiseError) as raised:
        turnwise.evaluate(run=tmp_path)
    assert len("".join(traceback.format_exception(raised.value)).splitlines()) <= 9


def test_the_users_own_frames_stay(tmp_path):
    with pytest.raises(EnvError, match="my own words") as raised:
        turnwise.train(env=Mine(), model="small", run=tmp_path / "run", display=Silent())
    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert frames[-1] == "tasks"
    assert len(frames) == 3, "this test, train, and the user's own code"


@pytest.mark.parametrize("place", ["absolute", "relative"])
def test_a_file_that_fails_as_it_runs_names_its_line(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text("import math\n\nx = math.sqrt(-1)\n")
    named = file if place == "absolute" else file.name
    with pytest.raises(ConfigError, match=r"env\.name: running .*mine\.py:3 failed: ValueError: "):
        turnwise.train(env=f"{named}:Mine", model="small", run=tmp_path / "run")
