"""How fast the studio opens, filters and searches large runs, and what it costs: `python -m benchmarks.studio`."""
