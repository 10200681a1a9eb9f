"""What the checks of every training step cost: their share of the CPU time of the demo recipe's steps.

    python benchmarks/doctor.py

prints both in one table, measured in the same run; evaluations, checkpoints and the cold start are left out.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from turnwise.config import load_config
from turnwise.runs import PlainDisplay
from turnwise.training.step_checks import StepChecks
from turnwise.training.trainer import Trainer, run_training

RECIPE = "encyclopedia-grpo"
OVERRIDES = ("sft.demonstrations=240", "steps=4", "evaluate.tasks=8", "evaluate.every=0")


def main() -> None:
    seconds = {"checks": 0.0}
    calls = 0

    def observe(self: StepChecks, *args: object) -> object:
        nonlocal calls
        calls += 1
        began = time.process_time()
        found = right_observe(self, *args)
        seconds["checks"] += time.process_time() - began
        return found

    right_observe: Callable[..., object] = StepChecks.observe
    StepChecks.observe = observe  # type: ignore[method-assign, assignment]
    right_begin = Trainer._begin
    began = 0.0

    async def begin(self: Trainer) -> int:
        nonlocal began
        step = await right_begin(self)
        began = time.process_time()
        return step

    Trainer._begin = begin  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        run_training(load_config(RECIPE, OVERRIDES), Path(folder) / "run", display=PlainDisplay(Console(quiet=True)))
    steps = time.process_time() - began - seconds["checks"]
    lines = [
        f"{RECIPE}: {calls} training steps, {steps / calls:.2f} s of CPU each",
        f"their checks: {seconds['checks'] / calls:.3f} s of CPU each, {seconds['checks'] / steps:.2%} of the steps",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
