"""Checkpoints: folders that appear whole or not at all, and the random state that makes a resumed run the same run.

Invariant: a folder named `step-NNNNNN` is complete and on the disk; everything unfinished has a hidden name.
"""

import logging
import os
import pickle
import random
import re
import shutil
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from turnwise.errors import RunError
from turnwise.runs.files import sync
from turnwise.runs.manifest import MANIFEST, find_fault, write_manifest
from turnwise.seeds import derive_seed

if TYPE_CHECKING:
    import torch  # imported where a state is saved or loaded: to look at runs must not take seconds

logger = logging.getLogger(__name__)

_NAME = re.compile(r"step-(\d+)")
_PIN = ".pinned"
_PLAIN = (type(None), bool, int, float, str, bytes)


class Checkpoints:
    """The checkpoints of one run: the `keep` newest, the pinned ones, and the one that was resumed from."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        assert keep >= 1, "a run without its newest checkpoint cannot resume"
        self.folder = folder
        self.keep = keep
        self._held: set[int] = set()

    def save(self, step: int, write: Callable[[Path], Mapping[str, str] | None]) -> Path:
        """Has `write` fill a new folder, makes it the checkpoint of `step`, and prunes old ones.

        It may return the SHA-256 of files that are on the disk already, by their names within the folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        target, temporary = self._name(step), self.folder / f".step-{step:06d}.tmp"
        temporary.mkdir()
        try:
            write_manifest(temporary, step, known=write(temporary) or {})
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if target.exists():
            # A folder cannot be renamed over another: the old one is moved to a name that `_sweep` removes.
            os.replace(target, self.folder / f".step-{step:06d}.old")
        os.replace(temporary, target)
        sync(self.folder)
        self._sweep()
        self._prune()
        return target

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first."""
        if not self.folder.is_dir():
            return []
        names = (_NAME.fullmatch(entry.name) for entry in self.folder.iterdir() if entry.is_dir())
        return sorted(step for name in names if name and self._name(step := int(name[1])).name == name[0])

    def latest(self) -> Path | None:
        """The newest checkpoint, or None if there is none yet; whether it is whole, `newest_whole` looks at."""
        steps = self.steps()
        return self._name(steps[-1]) if steps else None

    def newest_whole(self) -> Path | None:
        """The newest checkpoint whose files are as they were written, with a warning if newer ones are broken.

        None if the run has no checkpoint yet; an error if it has some and none is whole.
        """
        faults: list[str] = []
        for step in reversed(self.steps()):
            fault = self._find_fault(step)
            if fault is None:
                if faults:
                    logger.warning("%s: %s; using %s", self.folder, "; ".join(faults), self._name(step).name)
                return self._name(step)
            if not self._name(step).exists():  # pruned meanwhile, by the run that is training
                return self.newest_whole()
            faults.append(f"{self._name(step).name} is broken ({fault})")
        if faults:
            raise RunError(
                f"{self.folder}: no checkpoint is whole: {'; '.join(faults)}; start again with another --run"
            )
        return None

    def require_whole(self, step: int) -> Path:
        """The checkpoint of one step, or an error if its files are not as they were written."""
        path, fault = self.path(step), self._find_fault(step)
        if fault is not None:
            raise RunError(f"{path}: this checkpoint is broken ({fault}); name another one of this run")
        return path

    def set_aside_after(self, step: int) -> None:
        """Hides checkpoints after `step`, which `newest_whole` found broken, from the run that goes on from there."""
        for later in (one for one in self.steps() if one > step):
            hidden = self.folder / f".step-{later:06d}.broken"
            shutil.rmtree(hidden, ignore_errors=True)
            os.replace(self._name(later), hidden)
        sync(self.folder)

    def path(self, step: int) -> Path:
        """The checkpoint of one step."""
        if step not in self.steps():
            there = ", ".join(map(str, self.steps())) or "none"
            raise RunError(f"{self.folder}: no checkpoint of step {step}; available: {there}")
        return self._name(step)

    def pin(self, step: int) -> None:
        """Keeps a checkpoint from being pruned, across restarts."""
        (self.path(step) / _PIN).touch()
        sync(self.path(step))

    def pin_only(self, steps: Collection[int]) -> None:
        """Pins these checkpoints and no others; unpinned ones are pruned at the next save."""
        for step in steps:
            self.pin(step)
        for step in set(self.steps()) - set(steps):
            (self.path(step) / _PIN).unlink(missing_ok=True)

    def pin_remaining(self, steps: Collection[int]) -> None:
        """As `pin_only`, with a warning where one is gone: an older checkpoint may need some that were pruned since."""
        there = set(self.steps())
        if gone := sorted(set(steps) - there):
            logger.warning("%s: nothing to roll back to of step %s", self.folder, ", ".join(map(str, gone)))
        self.pin_only(there & set(steps))

    def hold(self, step: int) -> None:
        """Keeps a checkpoint from being pruned by this process: the one it resumed from."""
        self.path(step)
        self._held.add(step)

    def _name(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}"

    def _find_fault(self, step: int) -> str | None:
        """What is wrong with a checkpoint; one from before there were manifests has none, and no older one has."""
        older = (self._name(one) / MANIFEST for one in self.steps() if one <= step)
        return find_fault(self._name(step), step) if any(manifest.exists() for manifest in older) else None

    def _sweep(self) -> None:
        """Removes unfinished folders of a killed run; only `save` may: a reader cannot tell them from live ones."""
        for pattern in (".step-*.tmp", ".step-*.old"):
            for leftover in self.folder.glob(pattern):
                _remove(leftover)

    def _prune(self) -> None:
        for step in self.steps()[: -self.keep]:
            folder = self._name(step)
            if step in self._held or (folder / _PIN).exists():
                continue
            # Renamed first, so that a kill in the middle leaves no half-deleted checkpoint under a valid name.
            hidden = self.folder / f".step-{step:06d}.old"
            os.replace(folder, hidden)
            shutil.rmtree(hidden, ignore_errors=True)


def _remove(path: Path) -> None:
    """A folder, or the file or link that something else has put in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class RngState(TypedDict):
    """The random state of this process, in types that `load_state` accepts."""

    python: tuple[object, ...]
    numpy: "tuple[str, torch.Tensor, int, int, float]"
    torch: "torch.Tensor"
    cuda: "list[torch.Tensor]"


def seed_globals(seed: int) -> None:
    """Seeds the global generators, which environments, tools and rewards of others draw from."""
    random.seed(derive_seed(seed, "global", "python"))
    np.random.seed(derive_seed(seed, "global", "numpy") % 2**32)
    if "torch" in sys.modules:  # it takes seconds to import, and this process may have no use for it
        import torch

        torch.manual_seed(derive_seed(seed, "global", "torch"))


def capture_rng() -> RngState:
    """The state of Python's, NumPy's and PyTorch's global generators, CUDA devices included."""
    import torch

    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return RngState(
        python=random.getstate(),
        numpy=(
            str(kind),
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(position),
            int(has_gauss),
            float(gauss),
        ),
        torch=torch.get_rng_state(),
        cuda=torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    )


def restore_rng(state: RngState) -> None:
    """Restores the global generators to the state that `capture_rng` returned."""
    import torch

    random.setstate(state["python"])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"].cpu())
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if devices != len(state["cuda"]):
        logger.warning(
            "the checkpoint has the random state of %d CUDA devices, this machine has %d: sampling on them will differ",
            len(state["cuda"]),
            devices,
        )
    for device, device_state in enumerate(state["cuda"][:devices]):
        torch.cuda.set_rng_state(device_state.cpu(), device)


def save_state(path: Path, state: Mapping[str, object]) -> None:
    """Writes tensors and plain values, checked to be loadable by `load_state` without running code."""
    import torch

    plain = dict(state)
    _check_plain(plain, "state")
    torch.save(plain, path)


def load_state(path: Path) -> dict[str, object]:
    """Reads what `save_state` wrote, onto the CPU."""
    import torch

    try:
        state: dict[str, object] = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise RunError(f"{path}: missing from this checkpoint; resume from another one") from None
    except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        first = (str(error).splitlines() or ["empty"])[0]
        raise RunError(f"{path}: not a turnwise checkpoint state ({first}); resume from another checkpoint") from None
    return state


def _check_plain(value: object, where: str) -> None:
    import torch

    # Exact types: a NumPy scalar is a `float` to isinstance, yet pickles as code that a safe load refuses.
    if type(value) in _PLAIN or isinstance(value, torch.Tensor):
        return
    if type(value) in (dict, OrderedDict):
        assert isinstance(value, dict)
        for key, inner in value.items():
            _check_plain(key, f"a key of {where}")
            _check_plain(inner, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        assert isinstance(value, list | tuple)
        for index, inner in enumerate(value):
            _check_plain(inner, f"{where}[{index}]")
    else:
        raise AssertionError(f"{where} is a {type(value).__name__}: only tensors and plain values can be saved")
