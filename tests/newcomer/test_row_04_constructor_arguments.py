"""A newcomer trains on `Support(fail=.2)`; the run knows how it was made, and an evaluation plays the same one."""

from dataclasses import dataclass

import pytest

import turnwise
from tiny_runs import Signals, Silent, tiny_data
from turnwise.config import load_config, load_run_config
from turnwise.envs.qa.baselines import NaiveRag
from turnwise.envs.registry import EnvSettings, describe_env, make_env
from turnwise.errors import ConfigError, RunError
from turnwise.plugins import name_object
from turnwise.types import Task

TINY = {key: value for key, value in tiny_data().items() if key not in ("env", "steps")}


class Support(Signals):
    """Answers, and now and then fails; the desk is anything, the rest is plain data."""

    def __init__(self, fail: float = 0.0, *words: str, floors: tuple[int, ...] = (), desk: object = None, **more: int):
        self.settings = (fail, words, floors, desk, more)


class Nightly(Support):
    """A subclass that says nothing of arguments, and one more level of `__init__` beneath."""

    def __init__(self, *, fail: float) -> None:
        super().__init__(fail, "night")


def trained(folder, env, **further):
    return turnwise.train(env=env, steps=1, run=folder, display=Silent(), **{**TINY, **further})


def test_arguments_are_recorded_and_made_again(tmp_path):
    run = trained(tmp_path / "run", Support(0.2, floors=(1, 2), speed=3))
    config = load_config(run.config)
    assert config.env.args == {"fail": 0.2, "floors": [1, 2], "speed": 3}
    assert config.env.unrecorded == {}
    again = make_env(load_run_config(run.path).env)
    assert isinstance(again, Support)
    assert again.settings == (0.2, (), (1, 2), None, {"speed": 3})
    assert turnwise.evaluate(run=run.path, display=Silent()).metrics()["evaluate/episodes"] == 4


def test_only_the_outermost_constructor_counts():
    assert describe_env(Nightly(fail=0.5)).args == {"fail": 0.5}
    assert describe_env(Nightly(fail=0.5).spawn()).args == {"fail": 0.5}, "an episode's copy is made like its original"


@dataclass(frozen=True)
class Shop(Signals):
    """Its constructor is written by the decorator."""

    shelves: int = 3


def test_a_dataclass_and_a_class_without_a_constructor():
    assert describe_env(Shop(shelves=5)).args == {"shelves": 5}
    assert describe_env(Signals()).args == {}


def test_wrong_arguments_are_refused_as_ever():
    """Recording them must not make a constructor take anything."""
    with pytest.raises(TypeError):
        Signals(wrong=1)
    with pytest.raises(TypeError):
        Nightly(fall=0.5)
    with pytest.raises(ConfigError, match=r"has no argument 'fall' \(did you mean 'fail'\?\)"):
        make_env(EnvSettings(name=name_object(Nightly), args={"fall": 0.5}))


def test_a_run_is_not_resumed_on_another_environment(tmp_path):
    trained(tmp_path / "run", Support(0.2))
    with pytest.raises(RunError, match=r"cannot resume with another config: env\.args\.fail is 0\.3 now and was 0\.2"):
        turnwise.train(env=Support(0.3), steps=2, run=tmp_path / "run", resume=True, display=Silent(), **TINY)


def test_what_cannot_be_recorded_is_said_and_refused(tmp_path):
    run = trained(tmp_path / "run", Support(0.2, desk=object()))
    config = load_config(run.config)
    assert config.env.args == {"fail": 0.2}
    assert config.env.unrecorded.keys() == {"desk"}
    expected = (
        r"^env: Support was made in Python with an argument that a config cannot hold \(desk=<object object at .*\): "
        r"pass it again: turnwise\.evaluate\(run=\.\.\., env=Support\(\.\.\.\)\)$"
    )
    with pytest.raises(ConfigError, match=expected):
        turnwise.evaluate(run=run.path, display=Silent())
    assert turnwise.evaluate(run=run.path, env=Support(desk=object()), display=Silent())


def test_positional_rest_cannot_be_written_in_a_recipe():
    assert describe_env(Support(0.2, "a", "b")).unrecorded == {"words": "('a', 'b')"}


def test_a_wrapped_environment_is_not_taken_for_its_inner_one():
    """Naive RAG is made of another environment: its run must not say that it was trained on that one."""
    inner = make_env(load_config("encyclopedia-grpo", ["env.args={people: 6, passages: 1}"]).env)
    described = describe_env(NaiveRag(inner))
    assert described.name.endswith(":NaiveRag")
    assert len(described.unrecorded) == 1


def test_tasks_that_were_given_are_not_the_environments(tmp_path):
    run = trained(tmp_path / "run", Signals(), tasks=[Task(id="mine")])
    assert load_config(run.config).env.args == {}
