"""From settings to an environment in its workers, here and in processes that have nothing but the settings.

Invariant: an environment that another process makes from `describe_elsewhere` is the one of this process: its class,
with its arguments.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from turnwise.envs.base import Env
from turnwise.envs.chaos import with_chaos
from turnwise.envs.mixture import Mixture
from turnwise.envs.registry import EnvSettings, MixtureSettings, describe_env, make_env
from turnwise.envs.workers.env import importable_name, in_workers
from turnwise.envs.workers.nursery import LocalNursery
from turnwise.envs.workers.protocol import Birth, Nursery
from turnwise.envs.workers.settings import RayWorkers
from turnwise.errors import ConfigError

OpenNursery: TypeAlias = Callable[[Birth, EnvSettings], Nursery]
"""Starts the workers of an environment on other nodes, as its settings say (`env.workers_on`)."""


def place_env(
    settings: EnvSettings | MixtureSettings,
    env: Env | None = None,
    *,
    open_nursery: OpenNursery | None = None,
    workers_elsewhere: int | None = None,
) -> Env:
    """The environment at hand, or else the one that the settings name, in as many workers as the settings say.

    Without `open_nursery`, this process is connected to no cluster: all workers are beside it. On other nodes are at
    most `workers_elsewhere` of them, where that is given.
    """
    chosen, given = make_env(settings) if env is None else env, env is not None

    def place(env: Env, settings: EnvSettings) -> Env:
        if workers_elsewhere is not None and isinstance(settings.workers_on, RayWorkers):
            settings = settings.model_copy(update={"workers": min(settings.workers, workers_elsewhere)})
        return _in_workers(env, settings, open_nursery, given=given)

    if isinstance(settings, EnvSettings):
        return place(chosen, settings)
    assert isinstance(chosen, Mixture), "what the settings describe"
    placed = {
        name: entry.model_copy(update={"env": place(entry.env, settings.mixture[name])})
        for name, entry in chosen.entries.items()
    }
    return Mixture(placed, sampling=chosen.sampling)


def describe_elsewhere(
    env: Env, settings: EnvSettings | MixtureSettings, *, where: str, root: Path | None = None
) -> EnvSettings | MixtureSettings:
    """The settings from which another process makes this environment; `where` is the setting that asks for it.

    A file of the user's is named by its whole path, or from `root` where that folder is copied there. Tasks stay here:
    jobs bring their own.
    """
    if isinstance(settings, EnvSettings):
        return settings.model_copy(update=_elsewhere(env, settings, where, root))
    assert isinstance(env, Mixture), "what the settings describe"
    entries = {
        name: entry.model_copy(update=_elsewhere(env.entries[name].env, entry, where, root))
        for name, entry in settings.mixture.items()
    }
    return settings.model_copy(update={"mixture": entries})


def _elsewhere(env: Env, settings: EnvSettings, where: str, root: Path | None) -> dict[str, object]:
    cls = type(env.prototype)
    name = importable_name(cls)
    if settings.unrecorded or name is None:
        lost = ", ".join(f"{key}={value}" for key, value in settings.unrecorded.items())
        reason = f"it was made with {lost}" if lost else "it is defined inside a function or an interactive session"
        raise ConfigError(
            f"{where}: {cls.__name__} cannot be made in another process ({reason}): define it in a file of its own, "
            "and make it from plain arguments"
        )
    return {"name": name_from(root, name), "tasks": None}


def name_from(root: Path | None, name: str) -> str:
    """The name of a class as it is found from a folder that is copied elsewhere: `envs/mine.py:Mine`."""
    file, _, own = name.rpartition(":")
    if root is None or not Path(file).is_relative_to(root):
        return name
    return f"{Path(file).relative_to(root)}:{own}"


def _in_workers(env: Env, settings: EnvSettings, open_nursery: OpenNursery | None, *, given: bool) -> Env:
    """The environment in the workers that its settings ask for; `given` in Python, it has no faults of theirs yet."""
    chosen = with_chaos(env, settings.chaos) if given else env
    if not settings.workers or chosen.host.workers:
        return chosen
    own = settings
    if given:
        described = describe_env(env)
        assert isinstance(described, EnvSettings), "a mixture is placed one by one"
        own = described.model_copy(update={"chaos": settings.chaos})

    def open_for(birth: Birth) -> Nursery:
        if open_nursery is not None and isinstance(settings.workers_on, RayWorkers):
            return open_nursery(birth, settings)
        return LocalNursery(birth)

    return in_workers(chosen, settings.workers, settings=own, max_deaths=settings.max_deaths, open_nursery=open_for)
