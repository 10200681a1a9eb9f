"""Which passes are compiled: those that are asked for, and on a GPU those that pay.

Invariant: what nobody asked for is left out, with a warning, where it does not work.
"""

import logging
from dataclasses import replace

import torch
from torch import nn

from turnwise.compute.layers import Compiled, find_layers, require_layers
from turnwise.compute.score import backbone_of, hidden_states
from turnwise.errors import ModelError
from turnwise.learner.forward_runner import ForwardRunner, Packing
from turnwise.learner.parallel import SINGLE
from turnwise.learner.settings import Compile, LearnerSettings, SFTSettings

_logger = logging.getLogger(__name__)


def compile_passes(
    runner: ForwardRunner, settings: LearnerSettings | SFTSettings, *modules: nn.Module, steps: int, setting: str
) -> ForwardRunner:
    """The same runner with the layers or backbones of `modules` compiled, the model first; `setting` is for errors."""
    model, asked = modules[0], settings.compile
    chosen = settings.compile_for(parameters=sum(p.numel() for p in model.parameters()), steps=steps)
    if asked:
        require_layers(model, setting=setting)
    elif not (chosen and _may_compile(runner, model)):
        return runner
    # Checkpoints lie between layers, so that no graph can hold all of them.
    whole = not runner.checkpointing and compiles_whole(chosen, runner.device, runner.packing)
    compiled = replace(runner, compiled=Compiled(*modules, whole_backbones=whole, setting=setting))
    return compiled if asked or _works(compiled, model) else runner


def compiles_whole(asked: Compile, device: torch.device, packing: Packing) -> bool:
    """Whether a backbone is compiled as one graph, if so asked: on a CPU, rows are attended to one by one."""
    return asked is True and device.type == "cuda" and packing is Packing.BY_ROWS


def _may_compile(runner: ForwardRunner, model: nn.Module) -> bool:
    """Whether layers may be compiled that nobody asked for: by one process on a GPU, if they are of known kinds."""
    return runner.device.type == "cuda" and runner.parallel is SINGLE and bool(find_layers(model))


def _works(runner: ForwardRunner, model: nn.Module) -> bool:
    """Whether a few tokens pass through the compiled layers, forward and backward."""
    ids = torch.arange(8, device=runner.device)[None] % 4  # [1, W]
    positions = None if runner.packing is Packing.PADDED else torch.arange(8)[None]  # [1, W]
    try:
        with runner.running(model, dropout=False), runner.precision():
            states = hidden_states(backbone_of(model), ids, positions)  # [1, W, H]
            states.float().sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    except ModelError as error:
        _logger.warning("passes of the model run uncompiled, and take longer: %s", error)
        return False
    finally:
        for parameter in model.parameters():
            parameter.grad = None
    return True
