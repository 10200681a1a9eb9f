"""Compares estimators: bias and variance against the oracle's exact gradient, and learning on FrozenLake."""
