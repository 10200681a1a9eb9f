"""turnwise: train LLM agents with end-to-end reinforcement learning over many turns."""

__version__ = "0.1.0"
