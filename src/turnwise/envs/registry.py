"""The environments that come with the package, and those that a recipe names as `module:Class` or `file.py:Class`."""

from turnwise.envs.base import Env
from turnwise.plugins import PluginKind, PluginSettings, make_plugin

BUILT_IN = {
    "encyclopedia": "turnwise.envs.encyclopedia.env:Encyclopedia",
    "search_qa": "turnwise.envs.qa.env:SearchQA",
    "bandit": "turnwise.envs.games.bandit:Bandit",
    "frozen_lake": "turnwise.envs.games.frozen_lake:FrozenLake",
    "sokoban": "turnwise.envs.games.sokoban.env:Sokoban",
    "countdown": "turnwise.envs.games.countdown:Countdown",
    "gymnasium": "turnwise.envs.adapters.gymnasium:GymnasiumGame",
}


ENV = PluginKind(
    key="env.name",
    noun="environment",
    group="turnwise.envs",
    args="env.args",
    contract="derive it from turnwise.Env",
)


class EnvSettings(PluginSettings):
    """Which environment, and the arguments of its constructor."""


def make_env(settings: EnvSettings) -> Env:
    """The environment that the settings name, ready to spawn episodes."""
    return make_plugin(ENV, settings, BUILT_IN, Env)  # type: ignore[type-abstract]  # a base, not to be made
