"""Who acts in an episode: the policy, a model behind an API, a person, the environment's expert, a script."""

from typing import TYPE_CHECKING

from turnwise.lazy import lazy_names

if TYPE_CHECKING:
    from turnwise.agents.api import ApiAgent
    from turnwise.agents.base import Agent, AgentStopped, EpisodeFailure, Move, Session, TurnTokens
    from turnwise.agents.decoding import Decoding
    from turnwise.agents.endpoint import Endpoint, EndpointSettings
    from turnwise.agents.expert import DemonstratingExpert, ExpertAgent
    from turnwise.agents.person import PersonAgent
    from turnwise.agents.policy import PolicyAgent
    from turnwise.agents.scripted import ScriptedAgent

__all__ = [
    "Agent",
    "AgentStopped",
    "ApiAgent",
    "Decoding",
    "DemonstratingExpert",
    "Endpoint",
    "EndpointSettings",
    "EpisodeFailure",
    "ExpertAgent",
    "Move",
    "PersonAgent",
    "PolicyAgent",
    "ScriptedAgent",
    "Session",
    "TurnTokens",
]
__getattr__ = lazy_names(
    __name__,
    {
        "api": ["ApiAgent"],
        "base": ["Agent", "AgentStopped", "EpisodeFailure", "Move", "Session", "TurnTokens"],
        "decoding": ["Decoding"],
        "endpoint": ["Endpoint", "EndpointSettings"],
        "expert": ["DemonstratingExpert", "ExpertAgent"],
        "person": ["PersonAgent"],
        "policy": ["PolicyAgent"],
        "scripted": ["ScriptedAgent"],
    },
)
