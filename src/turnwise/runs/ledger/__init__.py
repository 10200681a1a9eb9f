"""A run's ledger: recorded step by step, and added up for its report."""
