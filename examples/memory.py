"""What a memory keeps: `python examples/memory.py [PART ...] [a.b=c ...]`.

Trains the recipe `memory` with its own summaries, with the oldest turns dropped, and with a context that holds the
whole way, then prints held-out success after the cold start and after training. PART is `summary`, `oldest` or `whole`;
all of them by default. What was trained before is not trained again.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import turnwise
from turnwise.config import load_config
from turnwise.runs import RunDirectory, read_metrics

RUNS = Path("runs/memory-compared")
PARTS = {
    "summary": (),
    "oldest": ("rollout.compaction={kind: oldest, at: 0.6, to: 0.5}",),
    "whole": ("rollout.compaction=null", "rollout.context_tokens=512"),
}
"""What each memory changes of the recipe."""


def success(run: RunDirectory) -> list[str]:
    """Held-out success in the first and in the last evaluation: `["0.316 [0.262, 0.376]", ...]`."""
    records = [record for record in read_metrics(run.metrics) if record["stage"] == "evaluate"]
    keys = [f"evaluate/success{end}" for end in ("", "_low", "_high")]
    return ["{:.3f} [{:.3f}, {:.3f}]".format(*(float(str(one[key])) for key in keys)) for one in records]


def main(parts: Sequence[str] = (), overrides: Sequence[str] = (), runs: Path = RUNS) -> None:
    lines = [f"{'memory':10} {'after the cold start':>24} {'after training':>24}"]
    for part in parts or PARTS:
        config = load_config("memory", [*PARTS[part], *overrides])
        found = success(turnwise.train(config=config, run=runs / part / f"seed-{config.seed}", resume="auto"))
        lines.append(f"{part:10} {found[0]:>24} {found[-1]:>24}")
    print("\n".join(lines))


if __name__ == "__main__":
    words = sys.argv[1:]
    main([word for word in words if "=" not in word], [word for word in words if "=" in word])
