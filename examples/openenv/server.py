"""An OpenEnv server as its documentation would write one: it knows nothing of turnwise. `pip install openenv`.

python examples/openenv/server.py 8004
"""

import random
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

COLOURS = ["red", "green", "blue", "white", "black", "brown", "pink", "grey"]


class Move(Action):
    """`look`, or the colour of the key that is tried."""

    move: str


class Seen(Observation):
    """What is seen."""

    text: str


class Door(Environment):
    """A door whose colour only a look tells, and one try to open it with a key of that colour."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._colour = ""

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Seen:
        self._colour = random.Random(seed).choice(COLOURS)
        self._state = State(episode_id=episode_id)
        return Seen(text="It is dark. Which key opens the door?")

    def step(self, action: Move, timeout_s: float | None = None) -> Seen:
        self._state.step_count += 1
        if action.move == "look":
            return Seen(text=f"The door is {self._colour}.", reward=0.0)
        opens = action.move == self._colour
        return Seen(text="It opens." if opens else "It stays shut.", reward=float(opens), done=True)

    @property
    def state(self) -> State:
        return self._state


if __name__ == "__main__":
    app = create_fastapi_app(Door, Move, Seen, max_concurrent_envs=128)
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
