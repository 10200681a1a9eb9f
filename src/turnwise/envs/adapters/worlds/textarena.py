"""TextArena's single-player games in their child process: raw games, so that each observation is new text alone."""

from collections.abc import Mapping
from typing import Protocol, TypeAlias, cast

import textarena

from turnwise.envs.adapters.worlds.server import WorldServer
from turnwise.spelling import suggest
from turnwise.types import Json

Observation: TypeAlias = tuple[int, object, object]
"""Sender, text, kind; some games swap the last two."""

_RAW = "-raw"
_SEEDS = 2**31


class State(Protocol):
    """What is used of `textarena.SinglePlayerState`."""

    rewards: Mapping[int, object] | None
    done: bool


class Game(Protocol):
    """What is used of `textarena.Env`."""

    state: State

    def reset(self, num_players: int, seed: int) -> None: ...

    def get_observation(self) -> tuple[int, list[Observation]]: ...

    def step(self, action: str) -> tuple[bool, object]: ...


class TextArenaServer(WorldServer[Game]):
    """`TextArenaServer(game="GuessTheNumber-v0", options={})`."""

    def __init__(self, game: str, options: Mapping[str, Json]) -> None:
        super().__init__()
        known = textarena.envs.registration.ENV_REGISTRY
        if f"{game}{_RAW}" not in known:
            names = [name.removesuffix(_RAW) for name in known if name.endswith(_RAW)]
            raise LookupError(f"there is no game '{game}'{suggest(game, names)}")
        self._id, self._options = f"{game}{_RAW}", options
        played = self._create()
        played.reset(num_players=1, seed=0)
        if not isinstance(played.state, textarena.SinglePlayerState):
            raise ValueError(f"{game} is for several players; only single-player games are played here")

    def make(self, setup: Mapping[str, Json]) -> Game:
        game = self._create()
        game.reset(num_players=1, seed=cast(int, setup["seed"]) % _SEEDS)
        return game

    def start(self, world: Game) -> dict[str, Json]:
        _, seen = world.get_observation()
        prompts = [_text(one) for one in seen if one[2] == textarena.ObservationType.PROMPT]
        others = [_text(one) for one in seen if one[2] != textarena.ObservationType.PROMPT]
        view = _view(world, "\n".join(others).strip() or "It is your move.")
        return view | {"objective": "\n".join(prompts).strip()}

    def play(self, world: Game, command: str) -> dict[str, Json]:
        # As TextArena's own ActionFormattingWrapper does: games look for an action in brackets.
        world.step(command if "[" in command and "]" in command else f"[{command}]")
        _, seen = world.get_observation()
        news = [_text(one) for one in seen if one[2] != textarena.ObservationType.PLAYER_ACTION]
        return _view(world, "\n".join(news).strip())

    def _create(self) -> Game:
        return cast(Game, textarena.make(self._id, **self._options))


def _view(world: Game, text: str) -> dict[str, Json]:
    reward = (world.state.rewards or {}).get(0, 0.0)
    # Some games give the reason of an invalid move where its reward belongs.
    score = float(reward) if isinstance(reward, int | float) else 0.0
    return {"text": text, "score": score, "won": score >= 1.0, "done": bool(world.state.done)}


def _text(seen: Observation) -> str:
    return next((part for part in seen[1:] if isinstance(part, str)), "")
