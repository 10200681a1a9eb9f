"""An OpenEnv server of the official package that refuses, fails, dies and has room for two. `openenv_odd.py PORT`"""

import os
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Say(Action):
    number: int
    note: str = ""


class Heard(Observation):
    total: int
    note: str


class Odd(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._total = 0
        self._state = State()

    def reset(self, seed=None, episode_id=None, start=0):
        self._total = start + (seed or 0)
        return Heard(total=self._total, note="begin")

    def step(self, action, timeout_s=None):
        if action.note == "fail":
            raise RuntimeError("the odd failure")
        if action.note == "die":
            os._exit(3)
        self._total += action.number
        return Heard(total=self._total, note=action.note, reward=action.number / 10, done=self._total >= 10)

    @property
    def state(self):
        return self._state


if __name__ == "__main__":
    app = create_fastapi_app(Odd, Say, Heard, max_concurrent_envs=2)
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
