"""The search agent against its baselines, by algorithm and by mask."""
