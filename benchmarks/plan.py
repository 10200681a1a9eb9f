"""What `turnwise plan` is fitted to and simulates.

    python -m benchmarks.plan measure NAME=RUN:FIRST:LAST ...    prints the JSON of src/turnwise/planning/measured.json
    python -m benchmarks.plan memory                             predicted beside what learners on a CPU use
    python -m benchmarks.plan simulate 8 64 512                  fleets of episodes of 400 tokens, 10 ms each

Runs may be of earlier versions: of their config, only the names of environment and model, `learner.compile` and
`learner.epochs` are read.
"""

import dataclasses
import json
import logging
import sys

import torch
import yaml

from turnwise.cli.plan import print_simulation
from turnwise.config import Config
from turnwise.envs.registry import EnvSettings
from turnwise.learner.learner import Learner
from turnwise.learner.settings import LearnerSettings
from turnwise.models.loading import load_model
from turnwise.models.settings import ModelSettings, SmallSettings
from turnwise.planning.measured import RunSettings, measure_run
from turnwise.planning.memory import learner_memory
from turnwise.planning.peak import PeakMemory
from turnwise.planning.shape import ModelShape, find_shape
from turnwise.planning.simulation import Load, Mode, simulate_with_limits
from turnwise.types import Group, StopReason, Task, Trajectory, Turn

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


def compare_memory(layers: int, width: int, heads: int, *, checkpointing: bool) -> tuple[float, float]:
    """Predicted bytes, and those of the tensors that are alive at the most in a learner's second update."""
    tokens, row = 1024, 256
    small = SmallSettings(layers=layers, width=width, heads=heads, positions=row, induction=False)
    settings = LearnerSettings(tokens_per_microbatch=tokens, checkpointing=checkpointing)
    config = Config(env=EnvSettings(name="bandit"), model=ModelSettings(small=small, device="cpu"), learner=settings)
    model = load_model(config.model, seed=0, texts=lambda: ["a text"]).model
    vocabulary = model.get_input_embeddings().weight.shape[0]
    shape = dataclasses.replace(find_shape(config.model, {}), vocabulary=vocabulary)
    learner = Learner(
        model,
        settings=settings,
        credit=config.credit,
        loss=config.loss,
        temperature=1.0,
        total_steps=2,
        device=torch.device("cpu"),
    )
    half = row // 2
    episodes = tuple(
        Trajectory(
            task=Task(id="one"),
            turns=(
                Turn(
                    context_ids=(place + 1,) * half,
                    action_ids=(1,) * half,
                    logprobs=(-1.0,) * half,
                    rewards={"env": float(place % 2)},
                    opens_row=True,
                ),
            ),
            stop=StopReason.DONE,
        )
        for place in range(tokens // row)
    )
    groups = [Group(task=Task(id="one"), trajectories=episodes)]
    learner.update(groups, seed=0)  # after which there are moments
    with PeakMemory() as memory:
        learner.update(groups, seed=1)
    kept = 3 * sum(p.numel() * p.element_size() for p in model.parameters())
    return learner_memory(config, shape, trained=shape.parameters, tile=2**20).total, memory.peak + kept


def main(command: str, *arguments: str) -> None:
    if command == "memory":
        for layers, width, heads in ((2, 128, 4), (6, 64, 2), (4, 256, 8)):
            for checkpointing in (False, True):
                predicted, used = compare_memory(layers, width, heads, checkpointing=checkpointing)
                words = f"{layers} layers, {width} wide{', checkpointing' if checkpointing else ''}"
                figures = f"{predicted / 1e6:.1f} MB predicted, {used / 1e6:.1f} used, {predicted / used - 1:+.0%}"
                print(f"{words}: {figures}")  # noqa: T201
        return
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
