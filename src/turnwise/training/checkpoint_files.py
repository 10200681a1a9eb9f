"""The files of a checkpoint: `model/`, `state.pt` and, written by all ranks, `shards/`.

Invariant: either form holds the same state to the bit, and is read by any number of processes, sharded or not. In
shards, `model/` lacks its weights and `state.pt` the content of its tensors: no process ever holds all of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from turnwise.compute.device import copy_to_host
from turnwise.config import Config
from turnwise.learner.group import LearnerGroup
from turnwise.models.loading import LoadedModel, copy_model, load_weights, save_model
from turnwise.models.lora import has_lora
from turnwise.models.shards import SHARDS
from turnwise.runs import load_state, save_state


def writes_shards(config: Config, learners: LearnerGroup) -> bool:
    """Whether all ranks write; by default where they share one copy of the model."""
    asked = config.checkpoint.format
    return asked == "sharded" or (asked == "auto" and learners.is_sharded)


def write_checkpoint(
    folder: Path, state: Mapping[str, object], loaded: LoadedModel, learners: LearnerGroup, *, sharded: bool
) -> Mapping[str, str]:
    """Writes the weights, `state` and the learners' own; returns what is known of the files, for the manifest."""
    if not sharded:
        save_model(loaded.model, loaded.tokenizer, folder / "model")
        save_state(folder / "state.pt", {**state, **learners.full_state()})
        return {}
    # Adapters are small, and merged into weights that are whole on rank 0 anyway.
    whole = has_lora(loaded.model)
    described, digests = learners.write_shards(folder / SHARDS, weights=not whole)
    save_model(loaded.model, loaded.tokenizer, folder / "model", weights=whole)
    save_state(folder / "state.pt", {**state, **described})
    return {f"{SHARDS}/{name}": digest for name, digest in digests.items()}


def copy_checkpoint(
    state: Mapping[str, object], loaded: LoadedModel, learners: LearnerGroup
) -> Callable[[Path], Mapping[str, str]]:
    """What writes weights and state as they are now, from copies in the host's memory, as `write_checkpoint` does.

    The tokenizer that was loaded is not copied: it must be the writer's own.
    """
    held = copy_to_host({**state, **learners.full_state()})
    assert isinstance(held, dict)
    write_model = copy_model(loaded.model, loaded.tokenizer)

    def write(folder: Path) -> Mapping[str, str]:
        write_model(folder / "model")
        save_state(folder / "state.pt", held)
        return {}

    return write


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """What a checkpoint holds beside the policy's weights."""

    state: Mapping[str, object]
    shards: Path | None
    """Where the tensors of its learners' sections are; None where they are in the sections themselves."""

    def section(self, name: str) -> Mapping[str, object]:
        section = self.state[name]
        assert isinstance(section, Mapping)
        return section

    def sections(self, *names: str) -> dict[str, Mapping[str, object]]:
        """Those of the learners, to restore: `sections("learner", "inactive")`."""
        return {name: self.section(name) for name in names}


def read_checkpoint(folder: Path, loaded: LoadedModel) -> CheckpointState:
    """Loads a checkpoint's weights into the model, and returns the rest; what its learners had is read by theirs."""
    if (folder / "model").is_dir():
        load_weights(loaded.model, folder / "model")
    shards = folder / SHARDS
    return CheckpointState(state=load_state(folder / "state.pt"), shards=shards if shards.is_dir() else None)
