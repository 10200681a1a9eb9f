"""TextWorld in its child process: makes games from seeds, keeps them in a folder, and plays them.

Invariant: a file in the folder is whole, and its name is a digest of all that it was made from. The game's own hash
decides its split, so no game is both trained and tested on.
"""

import argparse
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn, Protocol, TypeAlias, cast

import textworld
import textworld.challenges
import textworld.generator

from turnwise.envs.adapters.worlds.server import WorldServer
from turnwise.envs.games.game import of_same_split
from turnwise.seeds import derive_seed
from turnwise.types import Json

_FORMAT = "1"
_MOST_DRAWS = 20
_SEEDS = 2**31
_WANTED = textworld.EnvInfos(
    admissible_commands=True,
    policy_commands=True,
    won=True,
    lost=True,
    score=True,
    max_score=True,
    facts=True,
    objective=True,
    description=True,
)
_Challenge: TypeAlias = tuple[
    str,
    Callable[[Mapping[str, Json], textworld.GameOptions], textworld.Game],
    Callable[[argparse.ArgumentParser], None],
]
"""As TextWorld registers it: a description, what makes a game, and what adds its flags."""

_STATUS = re.compile(r"\n>[^\n]*\s*\Z")
_END = re.compile(r"\s*\*\*\* .*\Z", re.DOTALL)
_BLANK = re.compile(r"\s*\n\s*")


class State(Protocol):
    """What is used of `textworld.GameState`."""

    feedback: str
    objective: str
    description: str
    admissible_commands: list[str]
    policy_commands: list[str]
    facts: list[object]
    score: int
    max_score: int
    won: bool
    lost: bool


class World(Protocol):
    """What is used of `textworld.Environment`."""

    def reset(self) -> State: ...

    def step(self, command: str) -> tuple[State, float, bool]: ...

    def close(self) -> None: ...


class TextWorldServer(WorldServer[World]):
    """`TextWorldServer(cache="~/.cache/...", challenge=None, options={"nb_rooms": 2}, grammar={})`."""

    def __init__(
        self, cache: str, challenge: str | None, options: Mapping[str, Json], grammar: Mapping[str, Json]
    ) -> None:
        super().__init__()
        self._folder = Path(cache).expanduser()
        self._challenge, self._options, self._grammar = challenge, options, grammar
        self._describe(0)  # refuses wrong options now
        if challenge is not None:
            self._read_flags(challenge)

    def make(self, setup: Mapping[str, Json]) -> World:
        return cast(World, textworld.start(str(self._find(cast(int, setup["seed"]))), _WANTED))

    def start(self, world: World) -> dict[str, Json]:
        state = world.reset()
        return _view(state, state.description, done=False) | {"objective": _clean(state.objective)}

    def play(self, world: World, command: str) -> dict[str, Json]:
        state, _, done = world.step(command)
        return _view(state, state.feedback, done=done)

    def end(self, world: World) -> None:
        world.close()

    def _find(self, seed: int) -> Path:
        """The game of a seed: made now, unless it lies in the folder."""
        made_from = (_FORMAT, textworld.__version__, self._challenge, self._options, self._grammar, seed)
        digest = hashlib.blake2b(json.dumps(made_from, sort_keys=True).encode(), digest_size=16).hexdigest()
        kept = self._folder / f"{digest}.z8"
        if not (kept.exists() and kept.with_suffix(".json").exists()):
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                made = Path(self._compile(seed, Path(scratch) / kept.name))
                # The game itself comes last: whoever sees it finds what belongs to it.
                for file in (made.with_suffix(".json"), made):
                    shutil.move(file, self._folder / file.name)
        return kept

    def _compile(self, seed: int, path: Path) -> str:
        for number in range(_MOST_DRAWS):
            options = self._describe(derive_seed(seed, "textworld", number) % _SEEDS)
            game = self._generate(options)
            facts = sorted(map(str, game.world.facts))
            if of_same_split(seed, "\n".join((game.objective, *facts))):
                break
        options.path = str(path)
        return cast(str, textworld.generator.compile_game(game, options))

    def _generate(self, options: textworld.GameOptions) -> textworld.Game:
        if self._challenge is None:
            return textworld.generator.make_game(options)
        _, make, _ = _find_challenge(self._challenge)
        return make(self._read_flags(self._challenge), options)

    def _describe(self, seed: int) -> textworld.GameOptions:
        options = textworld.GameOptions()
        options.seeds = seed
        own = {} if self._challenge is not None else self._options
        for target, given in ((options, own), (options.grammar, self._grammar)):
            for name, value in given.items():
                if not hasattr(target, name):
                    raise LookupError(f"TextWorld's {type(target).__name__} has no '{name}'")
                setattr(target, name, value)
        return options

    def _read_flags(self, challenge: str) -> dict[str, Json]:
        """The challenge's settings as its own command line reads them, defaults included."""
        parser = _Parser(prog=challenge)
        _, _, add_arguments = _find_challenge(challenge)
        add_arguments(parser)
        flags: list[str] = []
        for name, value in self._options.items():
            flag = f"--{name.replace('_', '-')}"
            flags += ([flag] if value else []) if isinstance(value, bool) else [flag, str(value)]
        return vars(parser.parse_args(flags))


def _find_challenge(name: str) -> _Challenge:
    known = textworld.challenges.CHALLENGES
    if f"tw-{name}" not in known:
        names = sorted(one.removeprefix("tw-") for one in known)
        raise LookupError(f"there is no challenge '{name}'; there are: {', '.join(names)}")
    return cast(_Challenge, known[f"tw-{name}"])


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{self.prog}: {message}")


def _view(state: State, text: str, *, done: bool) -> dict[str, Json]:
    facts = "\n".join((*sorted(map(str, state.facts)), str(state.score)))
    return {
        "text": _clean(text),
        "commands": list(state.admissible_commands or ()),
        "plan": list(state.policy_commands or ()),
        "score": (state.score or 0) / (state.max_score or 1),
        "won": bool(state.won),
        "done": bool(done),
        "key": hashlib.blake2b(facts.encode(), digest_size=16).hexdigest(),
    }


def _clean(text: str) -> str:
    """A game's text without the interpreter's status line, the question at its end and the blank lines."""
    return _BLANK.sub("\n", _END.sub("", _STATUS.sub("", f"\n{text}"))).strip()
