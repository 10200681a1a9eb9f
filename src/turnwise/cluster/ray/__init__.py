"""Rollout workers and learners as Ray actors. The package ray is imported here alone, and when it is used."""
