"""Benchmarks: each prints a page of docs and a flat JSON of results. Part of a checkout, not of the wheel."""
