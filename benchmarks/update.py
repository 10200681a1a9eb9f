"""How fast an update is, in several ways side by side: `python benchmarks/update.py --device cuda --baseline`.

Without a model's folder it makes one of SmolLM2-135M's shape with random weights, which is as fast as the real one.
"""

import argparse
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, PreTrainedModel

from turnwise.bench.speed_update import (
    UpdateWay,
    UpdateWork,
    measure_full_logits,
    measure_update,
    random_smollm2,
)

RANDOM = "random-smollm2"


def main() -> None:
    arguments = _parse()
    device = torch.device(arguments.device)
    work = UpdateWork(
        rows=arguments.rows,
        length=arguments.length,
        action_share=arguments.action_share,
        uneven=arguments.uneven,
        shared_prompt=arguments.shared_prompt,
    )
    table = Table("update", "tokens/s", "seconds", "slowest", "peak GB", "times", title=_title(arguments))
    first = None
    for name, measure in _variants(arguments, work, device):
        figures = measure()
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        first = first or figures["tokens_per_second"]
        table.add_row(
            name,
            f"{figures['tokens_per_second']:,.0f}",
            f"{figures['seconds']:.3f}",
            f"{figures['seconds_max']:.3f}",
            f"{figures['peak_gigabytes']:.1f}" if "peak_gigabytes" in figures else "-",
            f"{figures['tokens_per_second'] / first:.2f}",
        )
    Console().print(table)


def _variants(
    arguments: argparse.Namespace, work: UpdateWork, device: torch.device
) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """What is measured, by name, each with a model of its own."""
    way = UpdateWay(precision=arguments.precision, tokens_per_microbatch=arguments.tokens_per_microbatch)
    clock = {"device": device, "repeats": arguments.repeats, "warmup": arguments.warmup}

    def measured(way: UpdateWay) -> Callable[[], dict[str, float]]:
        return lambda: measure_update(_model(arguments.model), work, way, **clock)

    if arguments.baseline:
        yield "padded, all logits", lambda: measure_full_logits(_model(arguments.model), work, way, **clock)
    layouts = {"padded": (False,), "packed": (None,), "both": (False, None)}[arguments.packing]
    for packing in layouts:
        name = "padded" if packing is False else "packed"
        for compiled in (False, True) if arguments.compile is None else (arguments.compile,):
            for checkpointing in (False, True) if arguments.checkpointing else (False,):
                options = ", compiled" * compiled + ", checkpointing" * checkpointing
                chosen = replace(way, packing=packing, compile=compiled, checkpointing=checkpointing)
                yield f"{name}{options}", measured(chosen)


def _model(name: str) -> PreTrainedModel:
    if name == RANDOM:
        return random_smollm2()
    return AutoModelForCausalLM.from_pretrained(Path(name).expanduser())


def _title(arguments: argparse.Namespace) -> str:
    return (
        f"{arguments.rows} x {arguments.length} tokens, {arguments.action_share:.0%} said by the agent, "
        f"{arguments.precision}, {arguments.device}"
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default=RANDOM, help=f"a folder that transformers loads, or {RANDOM}")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--action-share", type=float, default=0.3)
    parser.add_argument("--uneven", type=float, default=0.0, help="how much shorter the shortest row is, as a share")
    parser.add_argument("--shared-prompt", action="store_true", help="rows of a group open alike")
    parser.add_argument("--precision", choices=["float32", "bfloat16", "autocast"], default="autocast")
    parser.add_argument("--packing", choices=["padded", "packed", "both"], default="both")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None, help="default: both")
    parser.add_argument("--checkpointing", action="store_true", help="also with activation checkpointing")
    parser.add_argument("--tokens-per-microbatch", type=int, default=16384)
    parser.add_argument("--baseline", action="store_true", help="also the padded update with the logits of all tokens")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
