"""What `turnwise plan` is fitted to and simulates.

    python -m benchmarks.plan measure NAME=RUN:FIRST:LAST ...    prints the JSON of src/turnwise/planning/measured.json
    python -m benchmarks.plan simulate 8 64 512                  fleets of episodes of 400 tokens, 10 ms each

Runs may be of earlier versions: of their config, only the names of environment and model, `learner.compile` and
`learner.epochs` are read.
"""

import dataclasses
import json
import logging
import sys

import yaml

from turnwise.cli.plan import print_simulation
from turnwise.planning.measured import RunSettings, measure_run
from turnwise.planning.shape import ModelShape
from turnwise.planning.simulation import Load, Mode, simulate_with_limits

SMOLLM2 = ModelShape(layers=30, width=576, heads=9, kv_heads=3, head_size=64, ffn=1536, vocabulary=49152, tied=True)
QWEN_500M = ModelShape(layers=24, width=896, heads=14, kv_heads=2, head_size=64, ffn=4864, vocabulary=151936, tied=True)
MODELS = {
    "smol": ("HuggingFaceTB/SmolLM2-135M-Instruct", SMOLLM2),
    "qwen": ("Qwen/Qwen2.5-Coder-0.5B-Instruct", QWEN_500M),
}


def measure(argument: str, device: str = "h200") -> dict[str, object]:
    name, _, where = argument.partition("=")
    folder, first, last = where.rsplit(":", 2)
    with open(f"{folder}/config.yaml", encoding="utf-8") as file:
        config = yaml.safe_load(file)
    model, shape = MODELS["qwen" if "qwen" in name else "smol"]
    learner = config["learner"]
    settings = RunSettings(
        env=config["env"]["name"],
        model=model,
        shape=shape,
        compiled=bool(learner.get("compile")),
        epochs=learner.get("epochs", 1),
    )
    run = measure_run(folder, settings, device=device, steps=(int(first), int(last)))
    return dataclasses.asdict(dataclasses.replace(run, name=name))


def main(command: str, *arguments: str) -> None:
    if command == "measure":
        rows = [measure(argument) for argument in arguments]
        print(json.dumps({"runs": rows}, indent=1))  # noqa: T201
        return
    logging.getLogger("turnwise.rollout.fleet").setLevel(logging.ERROR)
    modes: tuple[Mode, ...] = ("synchronous", "asynchronous")
    for workers in map(int, arguments):
        print_simulation([simulate_with_limits(Load(), workers, mode) for mode in modes])


if __name__ == "__main__":
    main(*sys.argv[1:])
