"""Any Gymnasium environment with discrete actions, as a game in text.

Invariant: Gymnasium is asked for when a game is made and never before. The task's seed goes to `reset`; after it, the
world's noise is drawn from the episode's seed, so a group's members begin alike and then differ. An episode that ran
out of time is never counted as one that ended.
"""

import hashlib
import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Protocol, Self, Unpack, cast

import numpy as np

from turnwise.envs.games.game import GameOptions, Move, TextGame
from turnwise.errors import EnvError
from turnwise.seeds import derive_seed
from turnwise.sources import require_trusted
from turnwise.types import Json, Task

KNOWN_NAMES: Final = {
    "FrozenLake": ("Left", "Down", "Right", "Up"),
    "FrozenLake8x8": ("Left", "Down", "Right", "Up"),
    "CliffWalking": ("Up", "Right", "Down", "Left"),
    "CliffWalkingSlippery": ("Up", "Right", "Down", "Left"),
    "Taxi": ("South", "North", "East", "West", "Pickup", "Dropoff"),
    "Blackjack": ("Stick", "Hit"),
    "CartPole": ("Left", "Right"),
    "MountainCar": ("Left", "Wait", "Right"),
}
"""What the actions of well-known environments do, in the order of their numbers."""

_DISCOUNT: Final = 0.999
_SETTLED: Final = 1e-9
_MOST_SWEEPS: Final = 10_000
_MOST_KEY_CHARS: Final = 200
_HIGHLIGHT: Final = re.compile(r"\x1b\[[0-9;]*m")
_RESET_CODES: Final = ("\x1b[0m", "\x1b[m")

Table = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]
"""By state and action: (chance, next state, reward, whether it ends there)."""


class World(Protocol):
    """What is used of `gymnasium.Env`."""

    np_random: np.random.Generator

    @property
    def unwrapped(self) -> "World": ...

    def reset(self, *, seed: int | None = None) -> tuple[object, object]: ...

    def step(self, action: int) -> tuple[object, float, bool, bool, object]: ...

    def render(self) -> object: ...

    def close(self) -> None: ...


class GymnasiumGame(TextGame):
    """`GymnasiumGame(id="FrozenLake-v1", options={"is_slippery": False})`, played by the names of its actions.

    It shows what the world draws in its `ansi` mode, highlighted parts in brackets, or else the observation; a subclass
    with better words overrides `show`. Where a world has a table of transitions, as the toy-text ones do, the expert
    plays the best policy of it; elsewhere it plays at random and shows no more than how to answer.
    """

    def __init__(
        self,
        *,
        id: str = "FrozenLake-v1",
        options: Mapping[str, Json] | None = None,
        action_names: Sequence[str] | None = None,
        description: str = "",
        success_at: float | None = None,
        **shared: Unpack[GameOptions],
    ) -> None:
        """Makes the world once, to see that it can be made.

        Args:
            id: The name under which Gymnasium knows it.
            options: The arguments of `gymnasium.make`.
            action_names: One name per action, in order; by default those of a well-known world, else the numbers.
            description: How the system message describes the game.
            success_at: The sum of rewards that is a success; by default the world's own threshold, else any above 0.
            shared: What all games share; `max_actions` is 100 unless given.
        """
        shared.setdefault("max_actions", 100)
        super().__init__(**shared)
        given = dict(options or {})
        if ":" in id:  # Gymnasium imports the module before the colon
            require_trusted("env.args.id", id)
        world = make_world(id, json.dumps(given))
        spec, space = getattr(world, "spec", None), getattr(world, "action_space", None)
        if "ansi" in getattr(world, "metadata", {}).get("render_modes", ()):
            given.setdefault("render_mode", "ansi")
        world.close()
        self._id, self._options = id, json.dumps(given)
        count, first = getattr(space, "n", None), getattr(space, "start", None)
        if count is None or first is None:
            raise EnvError(f"the actions of {id} are {space}; only a Discrete action space can be named in text")
        numbers = range(int(first), int(first) + int(count))
        names = action_names or self.name_actions(getattr(spec, "name", ""), numbers)
        if len({name.casefold() for name in names}) != len(numbers) or len(names) != len(numbers):
            raise EnvError(f"action_names is {list(names)}; {id} has {len(numbers)} actions: give each its own name")
        self.actions = tuple(names)
        self._numbers = dict(zip(self.actions, numbers, strict=True))
        self._description = description or id
        self._threshold = success_at if success_at is not None else getattr(spec, "reward_threshold", None)
        self._seen: object = None
        self._world: World | None = None
        # Worlds between episodes, which all spawned copies share: making one takes longer than playing in it.
        self._idle: deque[World] = deque()

    def name_actions(self, name: str, numbers: Sequence[int]) -> Sequence[str]:
        """What the actions of the world of this name are called, unless the caller names them."""
        return KNOWN_NAMES.get(name, tuple(map(str, numbers)))

    def begin(self, task: Task, episode_seed: int) -> None:
        self._start = (task.seed, episode_seed)
        self._past: tuple[int, ...] = ()
        self._sum = 0.0
        self._terminated = self._truncated = False
        self._enter()

    def rules(self) -> str:
        return f"{self._description}\nActions: {', '.join(self.actions)}"

    def show(self) -> str:
        drawn = self._inhabited().render() if self._draws else None
        return bracket_highlights(drawn) if isinstance(drawn, str) else describe(self._seen)

    def play(self, action: str) -> Move:
        number, before = self._numbers[action], self.state_key()
        self._past += (number,)
        self._seen, reward, self._terminated, self._truncated, _ = self._inhabited().step(number)
        self._sum += float(reward)
        done = self._terminated or self._truncated
        won = done and (self._sum > 0 if self._threshold is None else self._sum >= self._threshold)
        moved = self.state_key() != before
        cut_off = self._truncated and not self._terminated
        return Move(reward=float(reward), done=done, success=won, moved=moved, truncated=cut_off)

    def plan(self) -> list[str]:
        policy = solve_table(self._id, self._options)
        if policy is None or not isinstance(self._seen, int | np.integer):
            return []
        return [self.actions[policy[int(self._seen)]]]

    def explain(self) -> str:
        return f"The state is {describe(self._seen)}."

    def state_key(self) -> str:
        """Names what is observed: all there is of the state, unless the world hides some."""
        key = describe(self._seen, "")
        if len(key) <= _MOST_KEY_CHARS:
            return key
        return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()

    def metrics(self) -> dict[str, float]:
        """Who ended it: the world itself, or its time limit; where our `max_actions` did, neither."""
        return {"terminated": float(self._terminated), "truncated": float(self._truncated)}

    def spawn(self) -> Self:
        twin = super().spawn()
        twin._world = None
        return twin

    def fork(self) -> Self:
        """Plays the same past in a world of its own: not every world can be copied."""
        twin = super().fork()
        twin._world = None
        twin._enter()
        for number in self._past:
            twin._seen = twin._inhabited().step(number)[0]
        return twin

    async def close(self) -> None:
        if self._world is not None:
            self._idle.append(self._world)
            self._world = None

    def _enter(self) -> None:
        """Takes a world for itself, where it has none, and begins it."""
        if self._world is None:
            self._world = self._idle.pop() if self._idle else make_world(self._id, self._options)
        seed, episode_seed = self._start
        self._draws = getattr(self._world, "render_mode", None) == "ansi"
        self._seen = self.draw_level(self._world, seed)
        # From here on the world's own generator, which `reset` seeded, would give all of a group the same noise.
        self._world.unwrapped.np_random = np.random.default_rng(derive_seed(episode_seed, "gymnasium"))

    def draw_level(self, world: World, seed: int) -> object:
        """Begins the level of a task's seed, and returns what is seen of it."""
        return world.reset(seed=seed)[0]

    def _inhabited(self) -> World:
        assert self._world is not None, "reset takes a world, and only close gives it back"
        return self._world


def make_world(id: str, options: str) -> World:
    """The world that Gymnasium knows by this name; `options`, as JSON, are arguments of `gymnasium.make`."""
    try:
        import gymnasium
    except ImportError:
        raise EnvError("Gymnasium is not installed; pip install 'turnwise[gym]'") from None
    try:
        return cast(World, gymnasium.make(id, disable_env_checker=True, **json.loads(options)))
    except (gymnasium.error.Error, ImportError, LookupError, TypeError, ValueError) as error:
        raise EnvError(f"Gymnasium cannot make '{id}': {' '.join(str(error).split())}") from None


@lru_cache(maxsize=32)
def solve_table(id: str, options: str) -> tuple[int, ...] | None:
    """The best action in each state, by value iteration over the world's own table; None where it has none."""
    world = make_world(id, options)
    table: Table | None = getattr(world.unwrapped, "P", None)
    world.close()
    if table is None:
        return None
    value = [0.0] * len(table)
    for _ in range(_MOST_SWEEPS):
        before = value
        value = [max(_worth(outcomes, before) for outcomes in table[state].values()) for state in range(len(table))]
        if max(abs(new - old) for new, old in zip(value, before, strict=True)) < _SETTLED:
            break
    return tuple(
        max(range(len(table[state])), key=lambda place: _worth(list(table[state].values())[place], value))
        for state in range(len(table))
    )


def _worth(outcomes: Sequence[tuple[float, int, float, bool]], value: Sequence[float]) -> float:
    return sum(
        chance * (reward + (0.0 if ends else _DISCOUNT * value[following]))
        for chance, following, reward, ends in outcomes
    )


def bracket_highlights(drawn: str) -> str:
    """A terminal drawing without its colours: a coloured part stands in brackets, for it is often the player."""
    return _HIGHLIGHT.sub(lambda code: "]" if code.group() in _RESET_CODES else "[", drawn).strip("\n")


def describe(seen: object, digits: str = ".3g") -> str:
    """An observation in short: `(0.014, -0.0229)`; with `digits=""`, to the last one."""
    match seen:
        case np.ndarray() | np.generic():
            return describe(seen.tolist(), digits)
        case float():
            return format(seen, digits)
        case list() | tuple():
            return f"({', '.join(describe(part, digits) for part in seen)})"
        case dict():
            return ", ".join(f"{name}: {describe(part, digits)}" for name, part in seen.items())
        case _:
            return str(seen)
