"""Question answering over a corpus with a search tool, its data sets, its expert, and its baselines."""
