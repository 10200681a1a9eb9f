"""Stability on games: the Echo Trap, StarPO-S, and rollout shaping."""
