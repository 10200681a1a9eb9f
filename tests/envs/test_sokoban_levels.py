"""Levels: the reader of Boxoban's format and its errors, and the generator against the solver."""

import time
from functools import cache
from pathlib import Path

import pytest

from turnwise.envs.games.sokoban.generator import LevelRecipe, generate_level
from turnwise.envs.games.sokoban.levels import Level, cells_of, parse_level, read_levels
from turnwise.envs.games.sokoban.solver import Verdict, solve
from turnwise.errors import EnvError

SMALL = LevelRecipe(size=6, boxes=1, min_moves=2, max_moves=10)
LARGE = LevelRecipe(size=8, boxes=2, min_moves=4, max_moves=20)

FILE = """\
; 0
#####
#@$.#
#####

; 1
######
#+ $ #
#*   #
######
"""


@cache
def thousand(recipe: LevelRecipe) -> list[Level]:
    return [generate_level(recipe, seed) for seed in range(1000)]


def write(folder: Path, text: str, name: str = "levels.txt") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_level_is_read_cell_by_cell(tmp_path):
    first, second = read_levels(write(tmp_path, FILE))
    assert first == Level(width=5, height=3, floor=0b111 << 6, targets=1 << 8, boxes=1 << 7, player=6)
    assert list(cells_of(second.targets)) == [7, 13]
    assert list(cells_of(second.boxes)) == [9, 13]
    assert second.player == 7


def test_a_level_is_written_as_it_was_read(tmp_path):
    assert [level.text for level in read_levels(write(tmp_path, FILE))] == [
        "#####\n#@$.#\n#####",
        "######\n#+ $ #\n#*   #\n######",
    ]


def test_line_ends_of_other_systems_and_no_headers_are_read_too(tmp_path):
    text = "#####\r\n#@$.#\r\n#####\r\n\r\n#####\r\n#.$@#\r\n#####"
    assert [level.player for level in read_levels(write(tmp_path, text))] == [6, 8]


def test_the_files_of_a_folder_are_read_by_name(tmp_path):
    write(tmp_path, "; 0\n#####\n#.$@#\n#####\n", "001.txt")
    write(tmp_path, "; 0\n#####\n#@$.#\n#####\n", "000.txt")
    write(tmp_path, "not a level", "README.md")
    assert [level.player for level in read_levels(tmp_path)] == [6, 8]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("; 0\n#####\n#@$x#\n#####\n", 3, "'x' in column 4"),
        ("; 0\n#####\n#@$.#\n####\n", 4, "4 cells, the level's first has 5"),
        ("; 0\n#####\n#@$.#\n#####\n\n; 1\n#####\n#@$. \n#####\n", 8, "4 cells"),
        ("; 0\n#####\n#@$.\n #####\n", 4, "a row starts with '#'"),
        ("; 0\n####\n#@$.\n####\n", 2, "open at its edge"),
        ("; 0\n#####\n# $.#\n#####\n", 2, "0 players"),
        ("; 0\n######\n#@$.+#\n######\n", 2, "2 players"),
        ("; 0\n######\n#@$$.#\n######\n", 2, "2 boxes and 1 targets"),
        ("; 0\n#####\n#@* #\n#####\n", 2, "nothing to solve"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_by_file_and_line(tmp_path, text, line, says):
    path = write(tmp_path, text)
    with pytest.raises(EnvError) as error:
        read_levels(path)
    assert str(error.value).startswith(f"{path}, line {line}: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_path_without_levels_is_named(tmp_path):
    with pytest.raises(EnvError, match=r"cannot read .*nowhere\.txt.*No such file"):
        read_levels(tmp_path / "nowhere.txt")
    with pytest.raises(EnvError, match="there is no level in"):
        read_levels(tmp_path)
    with pytest.raises(EnvError, match="there is no level in"):
        read_levels(write(tmp_path, "; 0\n\n"))


@pytest.mark.parametrize("recipe", [SMALL, LARGE], ids=["6x6", "8x8"])
def test_a_thousand_levels_are_solvable_in_the_moves_asked_for(recipe):
    """Backward play fixes a level's length and the forward solver measures it: two algorithms that must agree."""
    lengths = []
    for level in thousand(recipe):
        search = solve(level)
        assert search.verdict is Verdict.SOLVED
        lengths.append(len(search.moves))
        assert level.boxes.bit_count() == level.targets.bit_count() == recipe.boxes
        assert not level.boxes & level.targets
    allowed = range(recipe.min_moves, recipe.max_moves + 1)
    assert set(lengths) == set(allowed)
    share = 1000 / len(allowed)
    assert all(0.5 * share < lengths.count(length) < 1.5 * share for length in allowed)


@pytest.mark.parametrize("recipe", [SMALL, LARGE], ids=["6x6", "8x8"])
def test_levels_differ(recipe):
    levels = thousand(recipe)
    assert len(set(levels)) >= 980
    assert len({level.floor for level in levels}) >= 500
    assert len({level.player for level in levels}) == (recipe.size - 2) ** 2
    areas = [level.floor.bit_count() for level in levels]
    assert max(areas) >= 2 * min(areas)


def test_a_level_is_its_seed():
    assert generate_level(SMALL, 7) == generate_level(SMALL, 7)
    assert generate_level(SMALL, 7) != generate_level(SMALL, 8)
    # Written down, so that a change of the generator that changes everyone's levels is seen.
    assert generate_level(SMALL, 7).text == "######\n# # ##\n#   ##\n# #@ #\n# $ .#\n######"


def test_a_recipe_that_no_level_can_meet_says_so():
    with pytest.raises(EnvError, match=r"no 5x5 level with 1 boxes was found .* 90 to 95 moves; widen"):
        generate_level(LevelRecipe(size=5, boxes=1, min_moves=90, max_moves=95), 0)


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"size": 4}, "size is 4"), ({"boxes": 5}, "boxes is 5"), ({"min_moves": 11}, "min_moves is 11")],
)
def test_a_recipe_out_of_range_is_refused(changed, says):
    with pytest.raises(EnvError, match=says):
        LevelRecipe(**{"size": 6, "boxes": 1, "min_moves": 2, "max_moves": 10} | changed)


@pytest.mark.parametrize("recipe", [SMALL, LARGE], ids=["6x6", "8x8"])
def test_levels_come_fast(recipe):
    start = time.process_time()
    for seed in range(200):
        generate_level(recipe, seed)
    assert 200 / (time.process_time() - start) > 200


def test_parse_level_names_its_text_in_errors():
    with pytest.raises(EnvError, match="task 'train-3', line 2: '!' in column 2"):
        parse_level("####\n#!.#\n####", "task 'train-3'")
