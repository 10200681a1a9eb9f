"""The expert's way to a goal of MiniGrid, on grids drawn by hand: turns, lava, doors and keys."""

import importlib.util
from types import SimpleNamespace

import pytest

from turnwise.envs import EnvSettings, make_env
from turnwise.envs.adapters.minigrid_way import find_way
from turnwise.errors import EnvError

THINGS = {
    "#": {"type": "wall", "color": "grey"},
    "~": {"type": "lava", "color": "red"},
    "G": {"type": "goal", "color": "green"},
    "K": {"type": "key", "color": "red"},
    "k": {"type": "key", "color": "blue"},
    "O": {"type": "ball", "color": "red"},
    "F": {"type": "floor", "color": "red"},
    "D": {"type": "door", "color": "red", "is_open": False, "is_locked": False},
    "L": {"type": "door", "color": "red", "is_open": False, "is_locked": True},
    "P": {"type": "door", "color": "red", "is_open": True, "is_locked": False},
}
FACING = ">v<^"


class Cell(SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__


def draw(*rows, carrying=None):
    """A world inside walls, which are added around the rows."""
    rows = ["#" * (len(rows[0]) + 2), *(f"#{row}#" for row in rows), "#" * (len(rows[0]) + 2)]
    marks = {(x, y): mark for y, row in enumerate(rows) for x, mark in enumerate(row)}
    cells = {place: Cell(**THINGS[mark]) for place, mark in marks.items() if mark in THINGS}
    (agent,) = (place for place, mark in marks.items() if mark in FACING)
    grid = SimpleNamespace(width=len(rows[0]), height=len(rows), get=lambda x, y: cells.get((x, y)))
    held = Cell(**THINGS[carrying]) if carrying else None
    return SimpleNamespace(
        grid=grid, agent_pos=agent, agent_dir=FACING.index(marks[agent]), carrying=held, mission="get to the goal"
    )


def way(*rows, **more):
    letters = {"Left": "l", "Right": "r", "Forward": "f", "Pickup": "p", "Toggle": "t"}
    return "".join(letters[action] for action in find_way(draw(*rows, **more)))


@pytest.mark.parametrize(
    ("rows", "actions"),
    [
        ([">.G"], "ff"),
        (["^", "G"], "llf"),
        (["v.", ".G"], "flf"),
        ([">F.", ".~G"], "ffrf"),
        ([">~G", "..."], "rflfflf"),
        ([">O.", ".#G"], ""),
        ([">..", "..."], ""),
    ],
)
def test_it_turns_walks_and_keeps_out_of_lava(rows, actions):
    assert way(*rows) == actions


@pytest.mark.parametrize(
    ("row", "carrying", "actions"),
    [
        (">DG", None, "tff"),
        (">PG", None, "ff"),
        (">LG", None, ""),
        (">LG", "K", "tff"),
        (">LG", "k", ""),
        (">LG", "O", ""),
        ("K>LG", None, "llplltff"),
        ("k>LG", None, ""),
        ("K>LG", "O", ""),
        (">KLG", None, "pftff"),
    ],
)
def test_doors_are_opened_with_the_key_that_fits(row, carrying, actions):
    assert way(row, carrying=carrying) == actions


def test_of_two_ways_the_one_with_fewer_actions_is_gone():
    assert way(">D.G", "....") == "tfff"
    assert way(">#.G", "..#.", "....") == "rfflffflff"


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "minigrid" else found(name))
    with pytest.raises(EnvError, match=r"^the package minigrid is not installed; pip install 'turnwise\[minigrid\]'$"):
        make_env(EnvSettings(name="minigrid"))
