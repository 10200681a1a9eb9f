"""The solver against levels solved by hand and against plain breadth-first search."""

from collections import deque
from dataclasses import replace

import pytest

from turnwise.envs.games.sokoban.generator import LevelRecipe, generate_level
from turnwise.envs.games.sokoban.levels import DOWN, LEFT, RIGHT, UP, Level, offsets, parse_level
from turnwise.envs.games.sokoban.solver import Verdict, solve


def step(level: Level, boxes: int, player: int, direction: int) -> tuple[int, int]:
    """One move by the rules, written for reading: a blocked one leaves everything where it is."""
    ahead = player + offsets(level.width)[direction]
    beyond = ahead + offsets(level.width)[direction]
    if not level.floor >> ahead & 1:
        return boxes, player
    if not boxes >> ahead & 1:
        return boxes, ahead
    if not level.floor >> beyond & 1 or boxes >> beyond & 1:
        return boxes, player
    return boxes & ~(1 << ahead) | 1 << beyond, ahead


def breadth_first(level: Level) -> int | None:
    """The length of a shortest solution, by looking at every position."""
    start = (level.boxes, level.player)
    distances = {start: 0}
    queue = deque([start])
    while queue:
        position = queue.popleft()
        if position[0] == level.targets:
            return distances[position]
        for direction in range(4):
            after = step(level, *position, direction)
            if after not in distances:
                distances[after] = distances[position] + 1
                queue.append(after)
    return None


def ends_solved(level: Level, moves: tuple[int, ...]) -> bool:
    boxes, player = level.boxes, level.player
    for direction in moves:
        after = step(level, boxes, player, direction)
        assert after != (boxes, player), "a shortest plan wastes no move"
        boxes, player = after
    return boxes == level.targets


def test_one_push():
    search = solve(parse_level("#####\n#@$.#\n#####"))
    assert (search.verdict, search.moves) == (Verdict.SOLVED, (RIGHT,))


def test_the_way_around_the_box():
    level = parse_level("#######\n#     #\n#  $@.#\n#######")
    assert solve(level).moves == (UP, LEFT, LEFT, DOWN, RIGHT, RIGHT)


def test_pushes_in_two_directions():
    """Up into the target's row first: the other way around, the player would have two steps more to walk."""
    level = parse_level("#######\n#     #\n#    .#\n#  $  #\n#  @  #\n#######")
    assert solve(level).moves == (UP, LEFT, UP, RIGHT, RIGHT)


def test_two_boxes_in_a_corridor_block_each_other():
    """Each alone is a push away from a target, so only a search can tell."""
    search = solve(parse_level("########\n#@$.$. #\n########"))
    assert (search.verdict, search.moves) == (Verdict.UNSOLVABLE, ())
    assert search.nodes > 0


def test_a_box_in_a_corner_is_proved_hopeless_without_a_search():
    search = solve(parse_level("######\n#$   #\n# @ .#\n######"))
    assert (search.verdict, search.moves, search.nodes) == (Verdict.UNSOLVABLE, (), 0)


def test_two_boxes_that_share_the_only_target_they_reach_are_hopeless():
    """Along the top wall both boxes can only ever come to the one target there."""
    level = parse_level("########\n# $. $ #\n#   @  #\n#   .  #\n########")
    assert breadth_first(level) is None
    assert solve(level).verdict is Verdict.UNSOLVABLE


def test_a_player_shut_in_is_proved_hopeless():
    level = parse_level("#######\n#@# $.#\n###   #\n#######")
    assert solve(level).verdict is Verdict.UNSOLVABLE


def test_the_limit_of_nodes_is_not_a_verdict_on_the_level():
    level = generate_level(LevelRecipe(size=8, boxes=2, min_moves=20, max_moves=20), 0)
    search = solve(level, limit=3)
    assert (search.verdict, search.moves, search.nodes) == (Verdict.GAVE_UP, (), 3)


@pytest.mark.parametrize(
    ("recipe", "seeds"),
    [
        (LevelRecipe(size=6, boxes=1, min_moves=1, max_moves=20), 60),
        (LevelRecipe(size=6, boxes=2, min_moves=2, max_moves=16), 30),
        (LevelRecipe(size=7, boxes=3, min_moves=4, max_moves=16), 6),
    ],
    ids=["one box", "two boxes", "three boxes"],
)
def test_as_short_as_breadth_first_search(recipe, seeds):
    """From starts of all kinds, the hopeless ones that random play leads to included."""
    hopeless = 0
    for seed in range(seeds):
        level = wander(generate_level(recipe, seed), seed)
        expected, search = breadth_first(level), solve(level)
        hopeless += expected is None
        if expected is None:
            assert search.verdict is Verdict.UNSOLVABLE
        else:
            assert len(search.moves) == expected
            assert ends_solved(level, search.moves)
    assert 0 < hopeless < seeds


def wander(level: Level, seed: int) -> Level:
    """The level after up to 15 moves that look random; odd seeds stay where they are."""
    boxes, player = level.boxes, level.player
    for turn in range(0 if seed % 2 else 15):
        boxes, player = step(level, boxes, player, (seed * 7 + turn * turn * 5 + turn) % 4)
    return replace(level, boxes=boxes, player=player)


def test_ten_by_ten_with_four_boxes():
    level = parse_level("""
##########
#   ######
# $ # .###
#   #   ##
## ##  ###
#  .  $ ##
# $     ##
#  ##$..##
#   #  @##
##########""")
    search = solve(level)
    assert ends_solved(level, search.moves)
    assert len(search.moves) == 48  # what breadth_first finds too, in a minute
