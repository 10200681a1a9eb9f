"""A Sokoban level as bitmasks, and the reader of level files in Boxoban's text format.

Invariant: a level is enclosed by wall and has one player and a target for every box, so no move needs a check of
bounds; whatever a file gets wrong is one line that names file and line.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnwise.errors import EnvError

UP, DOWN, LEFT, RIGHT = DIRECTIONS = range(4)
_PLAYER, _BOX, _TARGET = "@+", "$*", ".+*"
_SYMBOLS = "# $.@*+"
"""Boxoban's: wall, floor, box, target, player, box on target, player on target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A board and where everything starts; cell `row * width + column` is bit `1 << cell` of a mask."""

    width: int
    height: int
    floor: int
    """Mask of the cells that are not wall."""
    targets: int
    boxes: int
    player: int
    """The player's cell."""

    def __post_init__(self) -> None:
        assert not self.floor & _border(self.width, self.height), "wall all around"
        assert not (self.targets | self.boxes | 1 << self.player) & ~self.floor, "nothing stands in a wall"
        assert not self.boxes >> self.player & 1, "the player does not stand in a box"
        assert self.boxes.bit_count() == self.targets.bit_count() > 0, "a target for every box"

    @property
    def text(self) -> str:
        """The level in Boxoban's symbols, which `parse_level` reads."""
        return "\n".join(
            "".join(self._symbol(row * self.width + column) for column in range(self.width))
            for row in range(self.height)
        )

    def _symbol(self, cell: int) -> str:
        if not self.floor >> cell & 1:
            return "#"
        on_target = self.targets >> cell & 1
        if cell == self.player:
            return "@+"[on_target]
        return "$*"[on_target] if self.boxes >> cell & 1 else " ."[on_target]


def cells_of(mask: int) -> Iterator[int]:
    """The cells of a mask, lowest first: `list(cells_of(0b1010)) == [1, 3]`."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def offsets(width: int) -> tuple[int, int, int, int]:
    """What a step adds to a cell's number, in the order of `DIRECTIONS`."""
    return (-width, width, -1, 1)


def read_levels(path: str | Path) -> tuple[Level, ...]:
    """The levels of a file in Boxoban's format, or of every `.txt` file of a folder, by name."""
    path = Path(path)
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    levels = tuple(level for file in files for level in _read_file(file))
    if not levels:
        raise EnvError(f"levels: there is no level in '{path}'; a level is a line '; 0', then its rows")
    return levels


def parse_level(text: str, where: str = "level") -> Level:
    """The level that `text` draws in Boxoban's symbols; `where` names the text in an error."""
    return _parse(text.strip("\n").split("\n"), where, 1)


def _read_file(file: Path) -> Iterator[Level]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise EnvError(f"levels: cannot read '{file}': {reason}; give a file in Boxoban's format") from error
    rows: list[str] = []
    for number, line in enumerate(map(str.rstrip, [*lines, ""]), 1):
        if line.startswith("#"):
            rows.append(line)
        elif line and not line.startswith(";"):
            raise EnvError(f"{file}, line {number}: a row starts with '#' and a header with ';', not '{line[0]}'")
        elif rows:
            yield _parse(rows, str(file), number - len(rows))
            rows = []


def _parse(rows: Sequence[str], where: str, first: int) -> Level:
    """`first` is the number of the first row's line in the file."""
    width, height = len(rows[0]), len(rows)
    masks = dict.fromkeys(_SYMBOLS, 0)
    for row, line in enumerate(rows):
        place = f"{where}, line {first + row}"
        if len(line) != width:
            raise EnvError(f"{place}: the row has {len(line)} cells, the level's first has {width}; make them equal")
        for column, symbol in enumerate(line):
            if symbol not in masks:
                raise EnvError(f"{place}: '{symbol}' in column {column + 1} is none of '{_SYMBOLS}'")
            masks[symbol] |= 1 << row * width + column
    return _level_of(masks, width, height, f"{where}, line {first}")


def _level_of(masks: dict[str, int], width: int, height: int, place: str) -> Level:
    players, boxes, targets = (sum(masks[symbol] for symbol in kind) for kind in (_PLAYER, _BOX, _TARGET))
    if _border(width, height) & ~masks["#"]:
        raise EnvError(f"{place}: the level is open at its edge; draw wall ('#') all around it")
    if players.bit_count() != 1:
        raise EnvError(f"{place}: the level has {players.bit_count()} players; draw one '@' (or '+' on a target)")
    if boxes.bit_count() != targets.bit_count():
        count = f"{boxes.bit_count()} boxes and {targets.bit_count()} targets"
        raise EnvError(f"{place}: the level has {count}; draw as many of one as of the other")
    if boxes == targets:
        raise EnvError(f"{place}: no box is off its target, so there is nothing to solve; draw a '$' and a '.'")
    return Level(
        width=width,
        height=height,
        floor=(1 << width * height) - 1 & ~masks["#"],
        targets=targets,
        boxes=boxes,
        player=players.bit_length() - 1,
    )


def _border(width: int, height: int) -> int:
    top = (1 << width) - 1
    sides = sum((1 | 1 << width - 1) << row * width for row in range(height))
    return top | top << width * (height - 1) | sides
