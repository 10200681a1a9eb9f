"""The sandboxes that an environment's tools run code in, found by looking at what the environment holds."""

import functools
from collections.abc import Iterator, Mapping

from turnwise.envs.base import Env
from turnwise.envs.mixture import Mixture
from turnwise.tools.sandbox import Sandbox
from turnwise.tools.tool import Tool

_DEPTH = 5


def find_sandboxes(env: Env) -> list[Sandbox]:
    """Each once: those of its tools, and those that it keeps itself."""
    members = [entry.env for entry in env.entries.values()] if isinstance(env, Mixture) else [env]
    found: dict[int, Sandbox] = {}
    for one in members:
        for sandbox in _search(vars(one.prototype), _DEPTH):
            found[id(sandbox)] = sandbox
    return list(found.values())


def _search(value: object, depth: int) -> Iterator[Sandbox]:
    if isinstance(value, Sandbox):
        yield value
    elif depth == 0:
        return
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _search(one, depth - 1)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _search(one, depth - 1)
    elif isinstance(value, Tool):
        yield from _search(value.function, depth - 1)
    elif isinstance(value, functools.partial):
        yield from _search(value.args, depth - 1)
    elif isinstance(own := getattr(value, "sandbox", None), Sandbox):
        yield own
    elif (bound := getattr(value, "__self__", None)) is not None:
        yield from _search(bound, depth - 1)
