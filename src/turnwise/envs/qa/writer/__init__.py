"""Writes training questions from a corpus: facts are read by patterns, and templates make questions of them."""
