"""The changed games that a trained agent is asked to play: RAGEN's test of generalisation.

Invariant: a changed game has the tasks of the game as trained and differs from it by the arguments named here alone.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from turnwise.envs.registry import EnvSettings
from turnwise.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One changed game: `Change(key="8x8", label="8 × 8", args={"size": 8})`."""

    key: str
    """In the names of results and files."""
    label: str
    args: Mapping[str, Json]
    """What replaces arguments of the game as trained."""


def change_env(env: EnvSettings, args: Mapping[str, Json]) -> EnvSettings:
    """The game as trained, but for these arguments."""
    return env.model_copy(update={"args": {**env.args, **args}})


def changed_games(env: EnvSettings) -> tuple[Change, ...]:
    """Those of a game that is among `GAMES`, without any that the recipe trains on itself."""
    return tuple(_CHANGES[env.name](env.args))


def _change_sokoban(args: Mapping[str, object]) -> Iterator[Change]:
    words = "standard" if args.get("vocabulary") == "alternative" else "alternative"
    yield Change(key="other-words", label="other words", args={"vocabulary": words})
    if args.get("levels") is not None:
        return  # their size and boxes are the file's
    if _number(args, "size", 6) < 8:
        yield Change(key="8x8", label="8 × 8", args={"size": 8})
    if _number(args, "boxes", 1) == 1:
        yield Change(key="two-boxes", label="two boxes", args={"boxes": 2})


def _change_frozen_lake(args: Mapping[str, object]) -> Iterator[Change]:
    if _number(args, "size", 4) < 6:
        yield Change(key="6x6", label="6 × 6", args={"size": 6})
    if args.get("slippery", True):
        yield Change(key="not-slippery", label="not slippery", args={"slippery": False})
    else:
        yield Change(key="slippery", label="slippery", args={"slippery": True})


def _change_bandit(args: Mapping[str, object]) -> Iterator[Change]:
    # Whichever of RAGEN's pairs the recipe does not train on: nothing but the names tells which arm is which.
    low, high = ("Teacher", "Engineer") if args.get("low", "Phoenix") != "Teacher" else ("Phoenix", "Dragon")
    yield Change(key="other-names", label="other names", args={"low": low, "high": high})
    yield Change(key="names-swapped", label="names swapped", args={"reverse": not args.get("reverse", False)})


def _number(args: Mapping[str, object], name: str, default: int) -> int:
    value = args.get(name)
    return value if isinstance(value, int) else default


_CHANGES: Mapping[str, Callable[[Mapping[str, object]], Iterator[Change]]] = {
    "sokoban": _change_sokoban,
    "frozen_lake": _change_frozen_lake,
    "bandit": _change_bandit,
}
GAMES = tuple(_CHANGES)
"""The environments, by the names that recipes have for them, that there are changed games of."""
