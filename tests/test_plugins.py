"""Plug-ins: a name becomes the user's own object, and whatever is written wrongly is one line with the way out."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import pytest

from turnwise.errors import ConfigError, RewardError
from turnwise.plugins import (
    PluginKind,
    PluginSettings,
    check_arguments,
    find_function,
    find_plugin,
    make_plugin,
    name_object,
    require_name,
)
from turnwise.rewards import Episode, Reward, choose_rewards, reward
from turnwise.types import Task

KIND = PluginKind(key="shop.item", noun="item", group="turnwise.test_items", args="shop.args", contract="write an Item")
KNOWN = {"path": "pathlib:Path"}


class Item:
    def __init__(self, *, price: int = 1) -> None:
        self.price = price


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module on the path, and a package whose entry points name what is in it."""
    (tmp_path / "my_items.py").write_text(
        textwrap.dedent("""
        from test_plugins import Item

        class Cheap(Item):
            pass

        def function(x):
            return x
        """)
    )
    info = tmp_path / "my_items-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-items\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[turnwise.test_items]\ncheap = my_items:Cheap\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_name_is_built_in_an_entry_point_a_module_or_a_file(module):
    assert find_plugin(KIND, "path", KNOWN) is Path
    cheap = find_plugin(KIND, "my_items:Cheap", KNOWN)
    assert find_plugin(KIND, "cheap", KNOWN) is cheap
    of_file = find_plugin(KIND, f"{module / 'my_items.py'}:Cheap", KNOWN)
    assert isinstance(of_file, type)
    assert issubclass(of_file, Item)
    made = make_plugin(KIND, PluginSettings(name="cheap", args={"price": 3}), KNOWN, Item)
    assert (type(made), made.price) == (cheap, 3)


def test_an_object_given_in_python_is_found_by_the_name_that_is_written_down():
    def local(x: int) -> int:
        return x

    name = name_object(local)
    assert name.endswith("test_an_object_given_in_python_is_found_by_the_name_that_is_written_down.<locals>.local")
    assert find_function(KIND, name, KNOWN) is local
    with pytest.raises(ConfigError, match=r"shop.item: 'Item' of test_plugins is not an item; write an Item"):
        find_function(KIND, name_object(Item), KNOWN)


def test_an_unknown_name_lists_what_there_is(module):
    for check in (lambda: find_plugin(KIND, "cheep", KNOWN), lambda: require_name(KIND, "cheep", KNOWN)):
        with pytest.raises(ValueError, match=r"'cheep' is not an item \(did you mean 'cheap'\?\)") as error:
            check()
        assert "the built-in ones are: path, cheap; your own is named module:name" in str(error.value)
    assert require_name(KIND, "nowhere:thing", KNOWN) == "nowhere:thing", "a module is looked at when it is used"
    with pytest.raises(ConfigError, match=r"my_items has no 'Cheep' \(did you mean 'Cheap'\?\); its items are: "):
        find_plugin(KIND, "my_items:Cheep", KNOWN)
    with pytest.raises(ConfigError, match="'function' of my_items is not an item; write an Item"):
        make_plugin(KIND, PluginSettings(name="my_items:function"), KNOWN, Item)


class Further(TypedDict, total=False):
    depth: int


def maker(
    first: object, *, size: int, names: Sequence[str] = (), share: float = 0.5, gamma: float, **rest: Unpack[Further]
) -> None:
    """Takes what the checks below give it."""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"size": 3, "shar": 0.1}, "has no argument 'shar' (did you mean 'share'?); its arguments are: size, names,"),
        ({"size": 3, "gamma": 0.1}, "has no argument 'gamma'"),
        ({"size": 3, "first": 1}, "has no argument 'first'"),
        ({}, "missing a required argument: 'size'; add it to shop.args"),
        ({"size": "3"}, 'shop.args.size: expected an integer, got "3"'),
        ({"size": 3, "names": "abc"}, "shop.args.names: expected"),
        ({"size": 3, "names": ["a", 2]}, "shop.args.names: expected text, got 2"),
        ({"size": 3, "depth": "deep"}, 'shop.args.depth: expected an integer, got "deep"'),
        ({"size": 3, "dept": 1}, "has no argument 'dept' (did you mean 'depth'?)"),
    ],
)
def test_arguments_are_as_strict_as_settings(args, words):
    with pytest.raises(ConfigError) as error:
        check_arguments(KIND, "maker", maker, args, supplied=1, but=("gamma",))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_what_fits_the_signature_passes():
    args = {"size": 3, "names": ["a"], "share": 1, "depth": 2}
    assert check_arguments(KIND, "maker", maker, args, supplied=1, but=("gamma",)) == args


def test_an_annotation_that_is_not_there_at_run_time_is_no_reason_to_refuse():
    def odd(*, thing: "NoSuchType" = None) -> None:  # noqa: F821
        """Annotated for a type checker alone."""

    assert check_arguments(KIND, "odd", odd, {"thing": 3}) == {"thing": 3}


@reward
def brief(episode: Episode) -> float:
    return 1.0


def worth(*, score: float) -> Reward:
    return Reward(name="worth", function=lambda episode: score)


def test_rewards_are_plug_ins_with_weights_and_arguments():
    episode = Episode(task=Task(id="a"), messages=())
    weighted = choose_rewards({"test_plugins:brief": 0.5, "f1": 0.1})
    assert [(one.name, one.weight) for one in weighted] == [("brief", 0.5), ("f1", 0.1)]
    listed: Sequence[str | Mapping[str, object]] = [
        "test_plugins:brief",
        {"name": "test_plugins:worth", "weight": 2.0, "args": {"score": 0.25}},
    ]
    assert [(one.weight, one.score(episode)) for one in choose_rewards(listed)] == [(1.0, 1.0), (2.0, 0.25)]


@pytest.mark.parametrize(
    ("rewards", "error", "words"),
    [
        ({"f2": 1.0}, RewardError, "there is no reward 'f2' .did you mean 'f1'"),
        (["test_plugins:breif"], ConfigError, "test_plugins has no 'breif' .did you mean 'brief'"),
        ([{"name": "test_plugins:brief", "args": {"most": 1}}], ConfigError, "test_plugins:brief takes no args"),
        ([{"name": "test_plugins:worth"}], ConfigError, "missing a required argument: 'score'"),
        ([{"name": "test_plugins:worth", "args": {"score": "high"}}], ConfigError, "score: expected a number"),
        ([{"name": "test_plugins:worth", "wait": 1.0}], ConfigError, "wait: unknown key .* did you mean 'weight'"),
        (["builtins:list"], ConfigError, "'builtins:list' made list, not a reward; decorate a function"),
    ],
)
def test_a_reward_that_is_none_is_one_line(rewards, error, words):
    with pytest.raises(error, match=words) as raised:
        choose_rewards(rewards)
    assert "\n" not in str(raised.value)
