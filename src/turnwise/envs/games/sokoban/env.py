"""Sokoban in text: push every box onto a target; by RAGEN's rules, rewards and symbols.

Invariant: a push that can never be undone (a box stuck in a corner) does not end the episode; the agent finds out, and
the expert says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Unpack

from turnwise.envs.games.game import SPLITS, GameOptions, Move, TextGame, check_count, of_same_split
from turnwise.envs.games.sokoban.generator import LevelRecipe, generate_level
from turnwise.envs.games.sokoban.levels import Level, cells_of, offsets, parse_level, read_levels
from turnwise.envs.games.sokoban.solver import Verdict, solve
from turnwise.errors import EnvError
from turnwise.seeds import derive_seed
from turnwise.types import Task

STEP, BOX, SOLVED = -0.1, 1.0, 10.0
"""What a move, a box pushed onto a target (off it: the same, taken back) and the last box in place pay."""
_BUMP = Move(reward=STEP, moved=False)
_WALK = Move(reward=STEP)
_TEST_EVERY = 5
"""One level in so many of a file is for testing."""
_MOST_REDRAWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """How a board is drawn and a move is named."""

    wall: str
    floor: str
    target: str
    box_on_target: str
    box: str
    player: str
    player_on_target: str
    actions: tuple[str, str, str, str]
    """Up, down, left, right."""


VOCABULARIES = {
    "standard": Vocabulary(
        wall="#",
        floor="_",
        target="O",
        box_on_target="√",
        box="X",
        player="P",
        player_on_target="S",
        actions=("Up", "Down", "Left", "Right"),
    ),
    "alternative": Vocabulary(
        wall="W",
        floor=".",
        target="G",
        box_on_target="C",
        box="B",
        player="A",
        player_on_target="@",
        actions=("North", "South", "West", "East"),
    ),
}


class Sokoban(TextGame):
    """`Sokoban(size=8, boxes=2)`: its expert's plan is the shortest there is."""

    _level: Level
    _canvas: tuple[str, ...]
    _boxes: int
    _player: int
    _steps: dict[str, int]
    _routes: dict[tuple[int, int], tuple[Verdict, int]]
    """What is known of a position (boxes, player): whether it can be solved, and the direction to go in."""

    def __init__(
        self,
        *,
        size: int | None = None,
        boxes: int | None = None,
        min_moves: int | None = None,
        max_moves: int | None = None,
        levels: str | None = None,
        test_levels: str | None = None,
        vocabulary: str = "standard",
        expert_reasons: bool = False,
        **shared: Unpack[GameOptions],
    ) -> None:
        """Reads the level files, if any; levels from seeds are made when an episode begins.

        Args:
            size: Cells along an edge of a generated board, its walls included; 6 by default.
            boxes: How many boxes a generated level has; 1 by default.
            min_moves: The fewest moves in which a generated level can be solved; 2 by default.
            max_moves: The most moves its shortest solution may take; `max_actions` by default.
            levels: A file in Boxoban's format, or a folder of them, to play in place of generated levels; the first
                `train_tasks` and `test_tasks` of them.
            test_levels: Another one for the split `test`; without it every fifth level of `levels` is kept for that.
            vocabulary: How boards are drawn and moves are named: `standard` (RAGEN's), or `alternative`.
            expert_reasons: The expert's thoughts say what its moves follow from, too: the way of each box, then the
                player's, cell by cell. Not with `expert_noise`, since a random move does not follow from them.
            shared: What all games share.
        """
        super().__init__(**shared)
        if vocabulary not in VOCABULARIES:
            raise EnvError(f"vocabulary is '{vocabulary}'; the vocabularies are: {', '.join(VOCABULARIES)}")
        if expert_reasons and self._expert_noise:
            raise EnvError("expert_reasons explain a plan that a noisy expert leaves; set expert_noise to 0")
        self._expert_reasons = expert_reasons
        self._vocabulary = VOCABULARIES[vocabulary]
        self.actions = self._vocabulary.actions
        generated = {"size": size, "boxes": boxes, "min_moves": min_moves, "max_moves": max_moves}
        for name in [name for name, value in generated.items() if value is not None]:
            check_count(name, generated[name])
            if levels is not None:
                raise EnvError(f"{name} is for generated levels, but levels come from '{levels}'; remove one of them")
        if levels is None and test_levels is not None:
            raise EnvError("test_levels is given without levels; give both, or levels alone")
        most = self._max_actions if max_moves is None else max_moves
        self._recipe = LevelRecipe(
            size=size or 6, boxes=boxes or 1, min_moves=min_moves or min(2, most), max_moves=most
        )
        if self._recipe.min_moves > self._max_actions:
            raise EnvError(f"min_moves is {min_moves}, so no level can be solved in max_actions, {self._max_actions}")
        self._levels = None if levels is None else _split_levels(levels, test_levels)

    def tasks(self, split: str) -> Sequence[Task]:
        tasks = super().tasks(split)
        if self._levels is None:
            return tasks
        levels = self._levels[split][: len(tasks)]
        return [replace(task, data={"level": level.text}) for task, level in zip(tasks, levels, strict=False)]

    def begin(self, task: Task, episode_seed: int) -> None:
        drawn = task.data.get("level")
        level = _make_level(self._recipe, task.seed) if drawn is None else _draw_level(str(drawn), task.id)
        self._level = level
        self._canvas = _draw_board(level, self._vocabulary)
        self._boxes, self._player = level.boxes, level.player
        self._steps = dict(zip(self.actions, offsets(level.width), strict=True))
        self._routes = {}

    def rules(self) -> str:
        words = self._vocabulary
        places = " Places are (row, column) from (0, 0)." if self._think else ""
        return (
            f"Push every box onto a target. {words.player}: you. {words.box}: box. {words.target}: target. "
            f"{words.box_on_target}: box on target. {words.player_on_target}: you on target. "
            f"{words.wall}: wall. {words.floor}: floor.{places}\n"
            f"An action pays {STEP:g}, a box onto a target {BOX:g} and off it {-BOX:g}, the solution {SOLVED:g}.\n"
            f"Actions: {', '.join(self.actions)}"
        )

    def show(self) -> str:
        words, targets, player = self._vocabulary, self._level.targets, self._player
        canvas = list(self._canvas)
        for box in cells_of(self._boxes):
            canvas[2 * box] = words.box_on_target if targets >> box & 1 else words.box
        canvas[2 * player] = words.player_on_target if targets >> player & 1 else words.player
        return "".join(canvas)

    def play(self, action: str) -> Move:
        level, boxes, step = self._level, self._boxes, self._steps[action]
        ahead = self._player + step
        if not level.floor >> ahead & 1:
            return _BUMP
        if not boxes >> ahead & 1:
            self._player = ahead
            return _WALK
        beyond = ahead + step
        if not (level.floor & ~boxes) >> beyond & 1:
            return _BUMP
        self._player = ahead
        self._boxes = boxes ^ (1 << ahead | 1 << beyond)
        solved = self._boxes == level.targets
        # Onto a target, off one, or neither; from one straight onto the next pays nothing either.
        reward = STEP + BOX * ((level.targets >> beyond & 1) - (level.targets >> ahead & 1))
        return Move(reward=reward + SOLVED if solved else reward, done=solved, success=solved)

    def plan(self) -> list[str]:
        """The shortest way to solve it from here; where there is none, one move that does no more harm."""
        self._find_route()
        boxes, player, steps = self._boxes, self._player, offsets(self._level.width)
        actions: list[str] = []
        while boxes != self._level.targets:
            verdict, direction = self._routes[boxes, player]
            actions.append(self.actions[direction])
            if verdict is not Verdict.SOLVED:
                break
            boxes, player = _moved(boxes, player, steps[direction])
        return actions

    def explain(self) -> str:
        sentences = [_sentence(name, place) for name, place in self.facts().items()]
        verdict = self._find_route()
        if verdict is Verdict.UNSOLVABLE:
            sentences.append("It cannot be solved from here.")
        elif verdict is Verdict.GAVE_UP:
            sentences.append("No solution was found.")
        elif self._expert_reasons:
            sentences += self._give_reasons()
        return " ".join(sentences)

    def _give_reasons(self) -> list[str]:
        """`["Pushes from (2, 1): Right (2, 2).", "Moves from (3, 1): Left (3, 0), Up (2, 0), Right (2, 1)."]`

        Behind a push stands where it brings the box, and behind a move where it brings the player.
        """
        boxes, player, width = self._boxes, self._player, self._level.width
        starts = {box: box for box in cells_of(boxes)}
        pushes: dict[int, list[str]] = {}
        moves: list[str] = []
        for action in self.plan():
            before, (boxes, player) = boxes, _moved(boxes, player, self._steps[action])
            moves.append(f"{action} {divmod(player, width)}")
            if before != boxes:
                beyond = player + self._steps[action]
                starts[beyond] = start = starts.pop(player)
                pushes.setdefault(start, []).append(f"{action} {divmod(beyond, width)}")
        ways = [f"Pushes from {divmod(start, width)}: {', '.join(way)}." for start, way in pushes.items()]
        return [*ways, f"Moves from {divmod(self._player, width)}: {', '.join(moves)}."]

    def facts(self) -> dict[str, tuple[int, int]]:
        """`{"player": (3, 1), "box": (2, 1), "target": (1, 4)}`; of several, `"box 1"` comes first in reading order."""
        kinds = {"player": 1 << self._player, "box": self._boxes, "target": self._level.targets}
        return {
            f"{kind} {number}" if mask.bit_count() > 1 else kind: divmod(cell, self._level.width)
            for kind, mask in kinds.items()
            for number, cell in enumerate(cells_of(mask), 1)
        }

    def state_key(self) -> str:
        return self.show()

    def _find_route(self) -> Verdict:
        """Makes sure that the way from here is known: a position on a way found before costs no new search."""
        boxes, player = self._boxes, self._player
        if boxes == self._level.targets:
            return Verdict.SOLVED
        if (boxes, player) not in self._routes:
            search = solve(replace(self._level, boxes=boxes, player=player))
            if search.verdict is not Verdict.SOLVED:
                self._routes[boxes, player] = (search.verdict, self._harmless_direction())
            for direction in search.moves:
                self._routes[boxes, player] = (Verdict.SOLVED, direction)
                boxes, player = _moved(boxes, player, offsets(self._level.width)[direction])
        return self._routes[self._boxes, self._player][0]

    def _harmless_direction(self) -> int:
        """A direction in which the player walks and pushes nothing, if there is one."""
        free = self._level.floor & ~self._boxes
        steps = offsets(self._level.width)
        return next((direction for direction, step in enumerate(steps) if free >> self._player + step & 1), 0)


def _sentence(name: str, place: tuple[int, int]) -> str:
    return f"{f'The {name}' if name.isalpha() else name.capitalize()} is at {place}."


def _moved(boxes: int, player: int, step: int) -> tuple[int, int]:
    """The position after a step of a plan, which is known to be possible."""
    ahead = player + step
    return (boxes ^ (1 << ahead | 1 << ahead + step) if boxes >> ahead & 1 else boxes), ahead


def _draw_board(level: Level, words: Vocabulary) -> tuple[str, ...]:
    """The board without its pieces: cell c at place 2c, and what parts it from the next at 2c + 1.

    Cells stand apart, so that a tokenizer makes each of them one token and no two of them a word.
    """
    canvas: list[str] = []
    for cell in range(level.width * level.height):
        symbol = words.wall
        if level.floor >> cell & 1:
            symbol = words.target if level.targets >> cell & 1 else words.floor
        canvas += (symbol, " " if (cell + 1) % level.width else "\n")
    return tuple(canvas[:-1])


def _split_levels(levels: str, test_levels: str | None) -> dict[str, Sequence[Level]]:
    read = read_levels(levels)
    if test_levels is not None:
        return dict(zip(SPLITS, (read, read_levels(test_levels)), strict=True))
    test = read[_TEST_EVERY - 1 :: _TEST_EVERY] or read[1:][-1:]
    if not test:
        raise EnvError(f"levels: '{levels}' has one level and test_levels is not given, so there is none to test on")
    kept = set(test)
    return dict(zip(SPLITS, ([level for level in read if level not in kept], test), strict=True))


@lru_cache(maxsize=4096)
def _make_level(recipe: LevelRecipe, seed: int) -> Level:
    """The level of a task's seed, drawn again until it belongs to the task's split.

    No level is both trained and tested on, unless the recipe allows so few that one split would have none. Kept,
    because the members of a group begin at the same level.
    """
    level = generate_level(recipe, seed)
    for redraw in range(1, _MOST_REDRAWS):
        if of_same_split(seed, level.text):
            break
        level = generate_level(recipe, derive_seed(seed, "redraw", redraw))
    return level


@lru_cache(maxsize=4096)
def _draw_level(text: str, task: str) -> Level:
    return parse_level(text, f"task '{task}'")
