"""Losses: pure functions of flat tensors, each beside its formula and source; a recipe chooses the form."""
