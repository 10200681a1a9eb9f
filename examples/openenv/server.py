"""An OpenEnv server as its documentation would write one: it knows nothing of turnwise. `pip install openenv`.

python examples/openenv/server.py 8004
"""

import random
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

COLOURS = ["red", "green", "blue", "white", "black", "brown", "pink", "grey"]


class Key(Action):
    """The key that is tried."""

    colour: str


class Door(Observation):
    """What is seen of the door."""

    text: str


class Doors(Environment):
    """A key opens the door of its colour; there are two tries."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._colour = ""

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Door:
        self._colour = random.Random(seed).choice(COLOURS)
        self._state = State(episode_id=episode_id)
        return Door(text=f"You see the {self._colour} door. Which key do you try?")

    def step(self, action: Key, timeout_s: float | None = None) -> Door:
        self._state.step_count += 1
        opens = action.colour == self._colour
        text = "It opens." if opens else "It stays shut."
        return Door(text=text, reward=float(opens), done=opens or self._state.step_count == 2)

    @property
    def state(self) -> State:
        return self._state


if __name__ == "__main__":
    app = create_fastapi_app(Doors, Key, Door, max_concurrent_envs=128)
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
