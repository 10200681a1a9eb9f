"""One folder of safetensors from a run: what transformers, vLLM and the model hub load."""

import os
import shutil
from pathlib import Path

from turnwise.errors import RunError
from turnwise.models.loading import write_whole
from turnwise.runs import Checkpoints, RunDirectory


def export_model(run: str | Path, folder: str | Path, *, step: int | None = None) -> Path:
    """Writes the model of a checkpoint, the newest or that of `step`, into a new folder; returns the checkpoint.

    The folder appears whole or not at all.
    """
    checkpoints, target = Checkpoints(RunDirectory.open(run).checkpoints), Path(folder)
    checkpoint = checkpoints.newest_whole() if step is None else checkpoints.require_whole(step)
    if checkpoint is None:
        raise RunError(f"{run}: this run has no checkpoint yet; let it finish its cold start first")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError(f"{target}: it is there already: name a folder that is new or empty")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        write_whole(checkpoint / "model", temporary)
        if target.exists():
            target.rmdir()
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return checkpoint
