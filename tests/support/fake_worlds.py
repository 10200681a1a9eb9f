"""Tiny stand-ins for a foreign package, served by a child process: they hang, crash, print and draw at random."""

import os
import random
import re
import sys
import time

from turnwise.envs.adapters.worlds.server import WorldServer


class Calls:
    """`Calls(refuse="")`: what a package may do to the process that calls it."""

    def __init__(self, refuse=""):
        if refuse:
            raise LookupError(refuse)
        self.held = []

    def ready(self):
        print("noise on standard output")  # noqa: T201 - as packages do

    def echo(self, value):
        self.held.append(value)
        return self.held

    def pid(self):
        return os.getpid()

    def sleep(self, seconds):
        time.sleep(seconds)

    def hold_the_lock(self):
        """Native code that never gives way to another thread."""
        return bool(re.match(r"(a+)+$", "a" * 60 + "b"))

    def die(self):
        os._exit(7)

    def leave(self):
        sys.exit("no such world")

    def raise_it(self):
        raise KeyError("kitchen")


class Corridor(WorldServer):
    """Rooms in a row; `east` until the last one wins; `stumble` moves at random; `hang` and `die` do."""

    def __init__(self, rooms):
        super().__init__()
        self._rooms = rooms

    def make(self, setup):
        return {"at": 0, "to": self._rooms + setup["seed"] % 2}

    def start(self, world):
        return self._view(world) | {"objective": f"Walk to room {world['to']}."}

    def play(self, world, command):
        if command == "hang":
            time.sleep(1000)
        if command == "die":
            os._exit(1)
        if command == "east":
            world["at"] += 1
        if command == "stumble":
            world["at"] = max(0, world["at"] + random.choice((-1, 0, 1)))
        return self._view(world)

    @staticmethod
    def _view(world):
        left = world["to"] - world["at"]
        return {
            "text": f"Room {world['at']}.",
            "commands": ["east", "stumble"],
            "plan": ["east"] * left,
            "score": world["at"] / world["to"],
            "won": left <= 0,
            "done": left <= 0,
            "key": f"{world['at']} of {world['to']}",
        }


class SlowCorridor(Corridor):
    """Takes half a second to make a world."""

    def make(self, setup):
        time.sleep(0.5)
        return super().make(setup)
