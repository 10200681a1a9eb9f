"""How fast: sampling, episodes, updates and whole steps, beside peers."""
