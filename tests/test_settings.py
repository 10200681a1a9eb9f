"""Recipes to settings: every mistake is one line that names the key, the place and the way out."""

import math
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import Field, model_validator

from turnwise.errors import ConfigError
from turnwise.recipes import read_recipe
from turnwise.settings import Settings, dump_settings, load_yaml, parse_settings


class Kind(StrEnum):
    GRPO = "grpo"
    PPO = "ppo"


class Rollout(Settings):
    tasks: int = Field(default=8, ge=1)
    temperature: float = 1.0
    limit: int | str | None = None
    mode: Literal["off", "auto"] = "off"

    @model_validator(mode="after")
    def _sampling(self) -> "Rollout":
        if self.temperature < 0:
            raise ValueError("temperature is negative: 0 is greedy")
        return self


class EnvSection(Settings):
    name: str
    args: dict[str, object] = Field(default_factory=dict)


class Config(Settings):
    env: EnvSection
    rollout: Rollout = Rollout()
    critic: Rollout | None = None
    kind: Kind = Kind.GRPO
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.95)
    seeds: tuple[int, ...] = ()


DATA = {"env": {"name": "wiki"}}


def parse(*overrides: str, data: dict[str, object] = DATA) -> Config:
    return parse_settings(Config, data, overrides=overrides, source="recipes/x.yaml")


def mistake(*overrides: str, data: dict[str, object] = DATA) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(*overrides, data=data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_override_values_are_yaml():
    config = parse(
        "lr=1e-4", "betas=[.9, 1]", "kind=ppo", "rollout.mode=off", "rollout.limit=null", "seeds=[1, 2]", "critic={}"
    )
    assert config.lr == 0.0001
    assert config.betas == (0.9, 1.0)
    assert config.kind is Kind.PPO
    assert config.rollout.mode == "off"
    assert config.rollout.limit is None
    assert config.seeds == (1, 2)
    assert config.critic == Rollout()


def test_overrides_make_the_sections_they_pass_through_and_later_ones_win():
    config = parse("critic.tasks=3", "critic.temperature=1E-2", "critic.tasks=4")
    assert config.critic == Rollout(tasks=4, temperature=0.01)


def test_override_replaces_a_mapping_whole_and_leaves_the_data_alone():
    data = {"env": {"name": "wiki", "args": {"hops": 2}}}
    assert parse("env.args={size: 1e3}", data=data).env.args == {"size": 1000.0}
    assert parse("env.args.seed=3", data=data).env.args == {"hops": 2, "seed": 3}
    assert data == {"env": {"name": "wiki", "args": {"hops": 2}}}


def test_free_form_sections_take_anything():
    assert parse("env.args.worlds.deep=[{a: true}, off, '7']").env.args == {
        "worlds": {"deep": [{"a": True}, "off", "7"]}
    }


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.taks=3", "rollout.taks: unknown key in override; did you mean 'tasks'?"),
        ("critic.temprature=3", "critic.temprature: unknown key in override; did you mean 'temperature'?"),
        ("temperature=3", "temperature: unknown key in override; did you mean 'rollout.temperature'?"),
        ("env.zzz=3", "env.zzz: unknown key in override; known here: args, name"),
        ("rollout.tasks='8'", 'rollout.tasks: expected an integer, got "8" in override'),
        ("rollout.tasks=8.0", "rollout.tasks: expected an integer, got 8.0 in override"),
        ("rollout.tasks=true", "rollout.tasks: expected an integer, got true in override"),
        ("rollout.tasks=0", "rollout.tasks: expected a value greater than or equal to 1, got 0 in override"),
        ("rollout.limit=[1]", "rollout.limit: expected an integer or text, got [1] in override"),
        ("rollout.mode=of", "rollout.mode: expected 'off' or 'auto', got \"of\" in override"),
        ("rollout=3", "rollout: expected a mapping, got 3 in override"),
        ("rollout.tasks.x=3", 'rollout.tasks: expected an integer, got {"x": 3} in override'),
        ("rollout.temperature=-1", "rollout: temperature is negative: 0 is greedy (override)"),
        ("seeds=1", "seeds: expected a list, got 1 in override"),
        ("seeds=[1, a]", 'seeds.1: expected an integer, got "a" in override'),
        ("betas=[1]", "betas.1: required, but missing in override"),
        ("kind=dpo", "kind: expected 'grpo' or 'ppo', got \"dpo\" in override"),
        ("rollout.tasks", "override 'rollout.tasks': write it as section.key=value, such as rollout.group_size=8"),
        (
            "rollout..tasks=1",
            "override 'rollout..tasks=1': write it as section.key=value, such as rollout.group_size=8",
        ),
    ],
)
def test_a_mistake_is_one_line(override: str, message: str):
    assert mistake(override) == message


def test_a_value_that_is_not_yaml_names_the_override():
    assert mistake("lr=[1").startswith("override 'lr=[1':1:3: not YAML: ")


def test_errors_name_the_data_when_it_is_at_fault():
    assert mistake("lr=2", data={"env": {"name": 3}}) == "env.name: expected text, got 3 in recipes/x.yaml"
    assert mistake(data={"rollout": {"tasks": 2}}) == "env: required, but missing in recipes/x.yaml"


def test_an_unknown_key_comes_before_what_it_leaves_missing():
    message = mistake(data={"env": {"nmae": "wiki"}, "lr": "fast"})
    assert message == "env.nmae: unknown key in recipes/x.yaml; did you mean 'name'? (and 2 more)"


@settings(max_examples=50, deadline=None)
@example(name="a\x85b\u2028", lr=-0.0, args={})
@given(
    name=st.text(max_size=12)
    | st.sampled_from(["1e-4", "off", "null", "0x1f", "010", "2024-01-01", "1:30", "~", ".5"]),
    lr=st.floats(allow_nan=False),
    args=st.dictionaries(
        st.text(max_size=4), st.none() | st.booleans() | st.integers() | st.text(max_size=5), max_size=3
    ),
)
def test_dumped_settings_parse_back_equal(name: str, lr: float, args: dict[str, object]):
    config = Config(env=EnvSection(name=name, args=args), lr=lr, critic=Rollout(mode="auto"))
    data = load_yaml(dump_settings(config), source="dump")
    assert isinstance(data, dict)
    assert parse_settings(Config, data, source="dump") == config


def test_yaml_reads_numbers_and_words_as_people_mean_them():
    data = load_yaml("[1e-4, -2.5E+3, 1., .5, 010, 0x10, 1_000, off, yes, True, ~, .inf, 1:30, 2024-01-01]", source="y")
    assert data == [1e-4, -2500.0, 1.0, 0.5, 10, 16, 1000, "off", "yes", True, None, math.inf, "1:30", "2024-01-01"]


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_a_recipe_extends_another_relative_to_itself(tmp_path: Path):
    write(tmp_path, "base.yaml", "env: {name: wiki, args: {hops: 2, size: 9}}\nrollout: {tasks: 4}\nseeds: [1, 2]\n")
    write(tmp_path, "mid.yaml", "extends: base.yaml\nrollout: {temperature: 1e-1}\nseeds: [3]\n")
    top = write(tmp_path, "more/top.yaml", "extends: ../mid.yaml\nenv: {args: {hops: 3}}\n")
    assert read_recipe(top) == {
        "env": {"name": "wiki", "args": {"hops": 3, "size": 9}},
        "rollout": {"tasks": 4, "temperature": 0.1},
        "seeds": [3],
    }
    cleared = write(tmp_path, "cleared.yaml", "extends: base.yaml\nenv: {args: {}}\n")
    assert read_recipe(cleared)["env"] == {"name": "wiki", "args": {}}


def test_a_recipe_extends_several_the_later_over_the_earlier(tmp_path: Path):
    write(tmp_path, "root.yaml", "env: {name: wiki}\nsteps: 9\n")
    write(tmp_path, "task.yaml", "extends: root.yaml\nmodel: {name: s, lora: {rank: 4}}\nrollout: {tasks: 4}\n")
    write(tmp_path, "size.yaml", "model: {name: l}\nrollout: {temperature: 1.0}\nsteps: 7\n")
    top = write(tmp_path, "top.yaml", "extends: [task.yaml, size.yaml]\nrollout: {tasks: 2}\n")
    assert read_recipe(top) == {
        "env": {"name": "wiki"},
        "model": {"name": "l", "lora": {"rank": 4}},
        "rollout": {"tasks": 2, "temperature": 1.0},
        "steps": 7,
    }
    write(tmp_path, "other.yaml", "extends: root.yaml\nrollout: {tasks: 3}\n")
    write(tmp_path, "shorter.yaml", "extends: root.yaml\nsteps: 2\n")
    both = write(tmp_path, "both.yaml", "extends: [shorter.yaml, other.yaml]\n")
    assert read_recipe(both)["steps"] == 2, "what both extend lies beneath both"
    wrong = write(tmp_path, "wrong.yaml", "extends: [task.yaml, 3]\n")
    with pytest.raises(ConfigError, match=r"^extends: expected the file name .*, got 3 in .*wrong\.yaml$"):
        read_recipe(wrong)


def test_an_error_names_the_file_that_holds_it_even_through_extends(tmp_path: Path):
    base = write(tmp_path, "base.yaml", "env: {name: wiki}\nrollout: {taks: 4, tasks: 5}\n")
    top = write(tmp_path, "top.yaml", "extends: base.yaml\nrollout: {tasks: 0}\n")
    with pytest.raises(ConfigError) as caught:
        parse_settings(Config, read_recipe(top), source=str(top))
    assert str(caught.value) == f"rollout.taks: unknown key in {base}; did you mean 'tasks'? (and 1 more)"
    base.write_text("env: {name: wiki}\nrollout: {tasks: 5}\n")
    with pytest.raises(ConfigError, match=r"^rollout\.tasks: .* got 0 in .*top\.yaml$"):
        parse_settings(Config, read_recipe(top), source=str(top))
    with pytest.raises(ConfigError, match=r"^rollout\.tasks: .* got -1 in override$"):
        parse_settings(Config, read_recipe(top), overrides=["rollout.tasks=-1"], source=str(top))


def test_recipes_that_extend_each_other_are_an_error(tmp_path: Path):
    write(tmp_path, "a.yaml", "extends: b.yaml\n")
    write(tmp_path, "b.yaml", "extends: a.yaml\n")
    with pytest.raises(ConfigError, match=r"in a circle \(a\.yaml -> b\.yaml -> a\.yaml\)"):
        read_recipe(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [2\n", r"bad\.yaml:\d+:\d+: not YAML: "),
        ("a: 1\na: 2\n", r"bad\.yaml:2:1: not YAML: key 'a' is given twice$"),
        ("- a\n- b\n", r'bad\.yaml: a recipe is a mapping of sections, not \["a", "b"\]$'),
        ("a: !!python/name:os.system\n", r"bad\.yaml:1:4: not YAML: "),
        ("a: &x [*x]\n", r"bad\.yaml: holds a value that is not plain data"),
        (
            "extends: {a: b}\n",
            r"^extends: expected the file name of another recipe, or a list of such, got \{\"a\": \"b\"\} in",
        ),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path: Path, text: str, message: str):
    path = write(tmp_path, "bad.yaml", text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_recipe(path)
    assert "\n" not in str(caught.value)


def test_a_missing_recipe_names_the_ones_near_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "recipes/demo.yaml", "")
    write(tmp_path, "recipes/sokoban.yaml", "")
    with pytest.raises(ConfigError, match=r"^dmeo\.yaml: no such recipe; did you mean recipes/demo\.yaml\?$"):
        read_recipe("dmeo.yaml")
    with pytest.raises(ConfigError, match=r"nearby: recipes/demo\.yaml, recipes/sokoban\.yaml;"):
        read_recipe("recipes/zzzz.yaml")
    with pytest.raises(ConfigError, match=r"^recipes: no such recipe; nearby: "):
        read_recipe("recipes")
    with pytest.raises(ConfigError, match=r"nowhere/a\.yaml: no such recipe; "):
        read_recipe("nowhere/a.yaml")
    assert read_recipe("recipes/demo.yaml") == {}


LAUGHS = "\n".join(["a0: &a0 [lol, lol]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: !!int abc", r"^y:1:4: not YAML: 'abc' cannot be read as int$"),
        ("a: !!int ''", r"cannot be read as int$"),
        ("a: !!float x", r"cannot be read as float$"),
        ("a: !!bool maybe", r"cannot be read as bool$"),
        ("a: !!timestamp 2024-13-45", r"^y:1:4: not YAML: "),
        ("a: 2_", r"cannot be read as int$"),
        (f"a: {'9' * 5000}", r"cannot be read as int$"),
        (LAUGHS, r"^y: not YAML: its aliases stand for more than 100,000 values: write fewer$"),
        ("[" * 5000, r"^y:1:\d+: not YAML: nested more than 100 deep$"),
        ("? [a, b]\n: c", r"^y:1:3: not YAML: "),
        ("a: \x00", r"^y: not YAML: "),
        ('a: "\\U00110000"', r"^y: not YAML: chr\(\) arg not in range\(0x110000\)$"),
        (f"a: 0x{'f' * 9000}", r"cannot be read as int$"),
    ],
    ids=lambda text: text[:24],
)
def test_odd_scalars_and_bombs_are_one_line(text: str, message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        load_yaml(text, source="y")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200
    with pytest.raises(ConfigError):
        parse(f"lr={text}")


def test_aliases_that_stay_small_are_welcome():
    assert load_yaml("a: &a {b: 1}\nc: [*a, *a]\n", source="y") == {"a": {"b": 1}, "c": [{"b": 1}, {"b": 1}]}


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="ab01_.-+:!&*[]{}?~\"'|>% \n#xoeinf", max_size=24))
def test_any_text_is_yaml_or_a_mistake_of_the_users(text: str):
    with suppress(ConfigError):
        load_yaml(text, source="y")


def test_a_key_that_would_break_the_line_is_escaped():
    with pytest.raises(ConfigError, match=r"^steps\\n: unknown key in y; [^\n]*$"):
        parse_settings(Config, {"steps\n": 3}, source="y")
