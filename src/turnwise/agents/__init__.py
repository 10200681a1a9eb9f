"""Agents that are not ours to train: models behind an API play any environment through messages alone."""

from turnwise.agents.endpoint import Endpoint, EndpointSettings
from turnwise.agents.episode import ApiPlayer, play_episode, play_tasks
from turnwise.agents.response import Response, TaskResult, read_group

__all__ = [
    "ApiPlayer",
    "Endpoint",
    "EndpointSettings",
    "Response",
    "TaskResult",
    "play_episode",
    "play_tasks",
    "read_group",
]
