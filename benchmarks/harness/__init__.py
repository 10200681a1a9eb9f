"""Benchmarks: many small, independent jobs, and the pages, pictures and figures made from what they return.

plan -> [Job] -> workers (N processes) -> result.json each -> Report -> docs/NAME.md, benchmarks/results/NAME.json
"""

BENCHMARKS = {
    "credit": "benchmarks.credit.benchmark",
    "games": "benchmarks.games.benchmark",
    "multihop": "benchmarks.multihop.benchmark",
    "speed": "benchmarks.speed.benchmark",
}
"""The modules by the names `turnwise bench` knows; each has a `BENCHMARK`. Nothing heavy is imported to list them."""
