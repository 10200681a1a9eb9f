"""Engines: token ids in, sampled ids with their logprobs out.

Other rooms use the protocol, its values, the settings and the factory named here. None of them imports torch; the
factory imports the engine it makes.
"""

from turnwise.engines.base import Completion, Engine, EngineStats, Sampling
from turnwise.engines.factory import make_engine, require_engine
from turnwise.engines.scripted import ScriptedEngine
from turnwise.engines.settings import EngineSettings, LocalEngineSettings, OpenAIEngineSettings, VLLMEngineSettings

__all__ = [
    "Completion",
    "Engine",
    "EngineSettings",
    "EngineStats",
    "LocalEngineSettings",
    "OpenAIEngineSettings",
    "Sampling",
    "ScriptedEngine",
    "VLLMEngineSettings",
    "make_engine",
    "require_engine",
]
