"""Sokoban: the game, its level generator and the solver that is its expert."""
