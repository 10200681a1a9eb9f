"""A recipe names an environment; every wrong name is one line with the nearest right one."""

import textwrap

import pytest

from turnwise.envs import EnvSettings, ToolEnv, make_env
from turnwise.envs.adapters.mcp import MCPEnv
from turnwise.envs.qa.env import SearchQA
from turnwise.envs.registry import ENV
from turnwise.errors import ConfigError, RewardError
from turnwise.gateway.program import AgentProgram
from turnwise.plugins import check_arguments

SOURCE = textwrap.dedent("""
    from dataclasses import dataclass
    from turnwise.envs import ToolEnv
    from turnwise.rewards import exact_match_reward

    @dataclass
    class Level:
        size: int

    class Maze(ToolEnv):
        def __init__(self, size: int, seed: int = 0) -> None:
            super().__init__(tasks=[{"question": "Out?"}], rewards=[exact_match_reward])
            self.level = Level(size)
            if size < 0:
                raise ValueError("size is negative")

    class Tower(ToolEnv):
        pass

    number = 3
""")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "maze.py"
    path.write_text(SOURCE)
    (tmp_path / "broken.py").write_text("import no_such_package_at_all")
    return path


def make(name, **args):
    return make_env(EnvSettings(name=name, args=args))


def test_an_environment_comes_from_a_file_or_a_module(file, monkeypatch):
    env = make(f"{file}:Maze", size=4)
    assert isinstance(env, ToolEnv)
    assert env.level.size == 4
    assert type(make(f"{file}:Maze", size=5)) is type(env)
    monkeypatch.syspath_prepend(str(file.parent))
    assert make("maze:Maze", size=6).level.size == 6


def test_two_files_of_one_name_are_two_environments(file):
    other = file.parent / "other"
    other.mkdir()
    (other / "maze.py").write_text(SOURCE.replace("Level(size)", "Level(size * 10)"))
    assert make(f"{file}:Maze", size=4).level.size == 4
    assert make(f"{other / 'maze.py'}:Maze", size=4).level.size == 40


def test_constructor_errors_of_ours_come_through(file):
    with pytest.raises(RewardError, match="pays nothing"):
        make(f"{file}:Tower")


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("encyclopaedia", {}, "'encyclopaedia' is not an environment (did you mean 'encyclopedia'?); the built-in"),
        ("nothing_like_it", {}, "'nothing_like_it' is not an environment; the built-in ones are: encyclopedia"),
        (":Maze", {}, "':Maze' is not an environment"),
        ("no_such_module:Maze", {}, "there is no module 'no_such_module'; is it installed?"),
        ("turnwise.envs.no_such:Maze", {}, "there is no module 'turnwise.envs.no_such'"),
        ("DIR/mase.py:Maze", {}, "there is no file 'DIR/mase.py' (did you mean 'DIR/maze.py'?)"),
        ("DIR/maze.py:Mase", {}, "DIR/maze.py has no 'Mase' (did you mean 'Maze'?); its environments are: Maze"),
        ("DIR/maze.py:number", {}, "'number' of DIR/maze.py is not an environment"),
        ("DIR/broken.py:Maze", {}, "running DIR/broken.py:1 failed: ModuleNotFoundError: No module named"),
        (
            "DIR/maze.py:Maze",
            {"sise": 3},
            "has no argument 'sise' (did you mean 'size'?); its arguments are: size, seed",
        ),
        ("DIR/maze.py:Maze", {}, "missing a required argument: 'size'; add it to env.args"),
        ("DIR/maze.py:Maze", {"size": -1}, "cannot be made: size is negative"),
        ("turnwise.envs:Env", {}, "cannot be made: Can't instantiate abstract class Env"),
    ],
)
def test_every_wrong_name_is_one_line(file, name, args, words):
    folder = str(file.parent)
    with pytest.raises(ConfigError) as error:
        make(name.replace("DIR", folder), **args)
    assert words in str(error.value).replace(folder, "DIR")
    assert "\n" not in str(error.value)


def test_a_module_lying_beside_the_recipe_is_offered_as_a_file(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    (file.parent / "beside_me.py").write_text(SOURCE)
    with pytest.raises(ConfigError, match=r"there is no module 'beside_me'; did you mean 'beside_me\.py:Maze'\?"):
        make("beside_me:Maze", size=1)


@pytest.mark.parametrize(
    ("made", "others"), [(SearchQA, {"questions": "questions.jsonl"}), (MCPEnv, {"servers": []}), (AgentProgram, {})]
)
def test_every_environment_that_takes_rewards_takes_them_with_arguments(made, others):
    args = {"rewards": ["exact_match", {"name": "judge", "weight": 0.2, "args": {"rubric": "Polite."}}], **others}
    assert check_arguments(ENV, made.__name__, made, args) == args
