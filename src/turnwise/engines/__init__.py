"""Engines: token ids in, sampled ids with their logprobs out."""

from turnwise.engines.base import Completion, Engine, Sampling
from turnwise.engines.local.engine import Counters, EngineSettings, LocalEngine
from turnwise.engines.scripted import ScriptedEngine

__all__ = ["Completion", "Counters", "Engine", "EngineSettings", "LocalEngine", "Sampling", "ScriptedEngine"]
