"""The variants of the benchmark, one per device: what is measured there, and at which sizes.

Invariant: a variant's name is that of its section of the page and of its file of results; no other variant has it.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.harness.benchmark import Scope
from benchmarks.speed.episodes import Shape
from turnwise.errors import ConfigError
from turnwise.types import Json

CPU = "cpu"
OURS, COMPILED, IN_GROUPS, FULL_LOGITS = "turnwise", "compiled", "in-groups", "full-logits"
"""The ways of making an update that are compared; in groups, rows of a group open with the same prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The measurements on one device."""

    name: str
    """Of the device, in files and on the page: `cpu`, `h200`."""
    device: str
    """As torch calls it."""
    about: str
    """The device in words: `NVIDIA H200`."""
    model: str
    """A name that `make_model` knows, or a folder."""
    dtype: str
    steps: Mapping[str, Json] | None
    """Whole training steps beside TRL's, where these are measured."""
    sampling: Mapping[str, int]
    turns: Shape
    turn_jitter: int
    """How much shorter or longer turns are, where their lengths differ."""
    turns_repeats: int
    update: Mapping[str, Json]
    update_methods: tuple[str, ...]
    growth: Shape
    """Its number of turns is the first of `growth_turns`."""
    growth_turns: tuple[int, ...]
    growth_repeats: int

    def base(self, seed: int = 0) -> dict[str, Json]:
        """The settings of the model, for every measurement."""
        return {"model": self.model, "device": self.device, "dtype": self.dtype, "seed": seed}

    def describe(self) -> dict[str, str]:
        """Its settings in words, for the file of results."""
        settings = {"device": self.about, "model": self.model if "/" not in self.model else Path(self.model).name}
        settings |= {"dtype": self.dtype, "settings/sampling": _show(self.sampling)}
        if self.steps is not None:
            settings["settings/steps"] = _show(self.steps)
        shape = _show({**asdict(self.turns), "jitter": f"0 and {self.turn_jitter}"})
        settings["settings/turns"] = f"{shape}, repeats {self.turns_repeats}"
        settings["settings/update"] = _show(self.update)
        shape = _show({name: value for name, value in asdict(self.growth).items() if name != "turns"})
        settings["settings/growth"] = f"{shape}, repeats {self.growth_repeats}"
        return settings


_STEPS: Mapping[str, Json] = {
    "prompts": 4,
    "generations": 8,
    "turns": 4,
    "turn-tokens": 16,
    "prompt-tokens": 257,
    "observation-tokens": 23,
    "learning-rate": 1e-5,
    "warmup": 2,
    "steps": 6,
}

ON_CPU = Variant(
    name=CPU,
    device="cpu",
    about="CPU",
    model="tiny",
    dtype="float32",
    steps=_STEPS,
    sampling={"rows": 32, "prompt": 64, "tokens": 64, "repeats": 5},
    turns=Shape(groups=32, members=1, prompt=64, turns=4, turn=16, observation=32),
    turn_jitter=8,
    turns_repeats=5,
    update={"work": {"rows": 32, "length": 256, "action_share": 0.3}, "tokens_per_microbatch": 8192, "repeats": 3},
    update_methods=(OURS, IN_GROUPS, FULL_LOGITS),
    growth=Shape(groups=2, members=4, prompt=32, turns=2, turn=16, observation=16),
    growth_turns=(2, 4, 8, 16, 32),
    growth_repeats=5,
)
ON_CUDA = Variant(
    name="cuda",
    device="cuda",
    about="",
    model="smollm2",
    dtype="bfloat16",
    steps=None,
    sampling={"rows": 256, "prompt": 256, "tokens": 256, "repeats": 2},
    turns=Shape(groups=256, members=1, prompt=128, turns=4, turn=32, observation=64),
    turn_jitter=16,
    turns_repeats=3,
    update={"work": {"rows": 256, "length": 512, "action_share": 0.3}, "tokens_per_microbatch": 65536, "repeats": 5},
    update_methods=(OURS, COMPILED, IN_GROUPS, FULL_LOGITS),
    growth=Shape(groups=8, members=8, prompt=32, turns=2, turn=16, observation=16),
    growth_turns=(2, 4, 8, 16, 32),
    growth_repeats=2,
)


def choose_variant(scope: Scope) -> Variant:
    """The variant that the options choose."""
    if scope.overrides:
        raise ConfigError(f"bench speed: '{scope.overrides[0]}' is a setting of a recipe, so it goes with --recipe")
    if scope.data is not None:
        raise ConfigError("bench speed: --data goes with --recipe; other measurements bring their own texts")
    if scope.device in (None, CPU):
        if scope.model is not None:
            raise ConfigError(
                "bench speed: --model goes with --device cuda or --recipe; on a CPU the models are tiny ones"
            )
        return _shorten(ON_CPU) if scope.quick else ON_CPU
    if scope.tokenizer is not None:
        raise ConfigError("bench speed: --tokenizer is for training steps beside TRL's, which are measured on a CPU")
    if scope.model is not None and not (Path(scope.model) / "config.json").is_file():
        raise ConfigError(f"--model: {scope.model} is no folder with a config.json in it; give one, or leave it out")
    name = find_gpu()
    model = ON_CUDA.model if scope.model is None else str(Path(scope.model).absolute())
    variant = replace(ON_CUDA, name=shorten_name(name), about=name, model=model)
    return _shorten(variant) if scope.quick else variant


def has_gpu() -> bool:
    """Whether torch sees a GPU."""
    import torch

    return torch.cuda.is_available()


def find_gpu() -> str:
    """The name of the GPU that torch would take: `NVIDIA H200`."""
    import torch

    if not has_gpu():
        raise ConfigError("bench speed: --device cuda, but torch sees no GPU here")
    return str(torch.cuda.get_device_name())


def shorten_name(gpu: str) -> str:
    """`h200` of `NVIDIA H200`, `a100` of `NVIDIA A100-SXM4-80GB`, `rtx-4090` of `NVIDIA GeForce RTX 4090`."""
    words = [word for word in gpu.lower().split() if word not in ("nvidia", "amd", "geforce", "tesla", "instinct")]
    numbered = next((index for index, word in enumerate(words) if re.search(r"\d", word)), len(words) - 1)
    short = "-".join([*words[:numbered], words[numbered].partition("-")[0]]) if words else "gpu"
    return re.sub(r"[^\w-]+", "-", short)


def _shorten(variant: Variant) -> Variant:
    """Two minutes: the same sizes with fewer repeats, and at most a quarter of the turns."""
    return replace(
        variant,
        steps=None if variant.steps is None else {**variant.steps, "warmup": 1, "steps": 1},
        sampling={**variant.sampling, "repeats": 1},
        turns_repeats=1,
        update={**variant.update, "repeats": 1},
        growth_turns=variant.growth_turns[:-2],
        growth_repeats=1,
    )


def _show(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
