"""Benchmarks: each fills a page of docs and writes a flat JSON of results. Part of a checkout, not of the wheel."""
