"""The harness: runs a benchmark's independent jobs in processes, and publishes a page, pictures and results from them.

plan -> [Job] -> workers (N processes) -> result.json each -> Report -> docs/NAME.md, benchmarks/results/NAME.json
"""

BENCHMARKS = {
    "ablation": "benchmarks.ablation.benchmark",
    "credit": "benchmarks.credit.benchmark",
    "games": "benchmarks.games.benchmark",
    "masks": "benchmarks.masks.benchmark",
    "multihop": "benchmarks.multihop.benchmark",
    "speed": "benchmarks.speed.benchmark",
    "starpo": "benchmarks.starpo.benchmark",
}
"""The modules by the names that `turnwise bench` takes; each has a `BENCHMARK`, imported when it is run."""
