"""Saves checkpoints of training, behind the run where it can: another thread writes what the run has copied.

Invariant: a checkpoint holds the run as it was when the save began. The run hears of it in its own thread and
once it is whole; one is written at a time; and what could not be written ends the run at its next step.
"""

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from turnwise.compute.host_memory import free_memory
from turnwise.config import Config
from turnwise.learner.group import LearnerGroup
from turnwise.models.loading import LoadedModel
from turnwise.models.lora import has_lora
from turnwise.runs import Checkpoints
from turnwise.runs.background import BackgroundWriter
from turnwise.training.checkpoint_files import copy_checkpoint, write_checkpoint, writes_shards
from turnwise.training.disk import one_checkpoint_bytes

Write: TypeAlias = Callable[[Path], Mapping[str, str] | None]
_SPARE = 2.0
"""A copy is made where the host has this many times its size to spare: environments and others need memory, too."""


class CheckpointSaver:
    """`with CheckpointSaver(...) as saver: saver.save(20, state, keep={0}, async_save=True)`."""

    def __init__(
        self,
        config: Config,
        checkpoints: Checkpoints,
        loaded: LoadedModel,
        learners: LearnerGroup,
        on_saved: Callable[[int, Path], None],
    ) -> None:
        """`on_saved` is called with the step and folder of each checkpoint, once it is whole."""
        self._config, self._checkpoints, self._on_saved = config, checkpoints, on_saved
        self._loaded, self._learners = loaded, learners
        self._writer = BackgroundWriter()
        self._completed: list[tuple[int, Path]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._writer.__exit__(kind, error, trace)
        finally:
            self._report_saved()

    def save(self, step: int, state: Mapping[str, object], *, keep: Collection[int], async_save: bool) -> None:
        """Writes the checkpoint of a step, after the one before it; `keep` are those that must not be pruned.

        With `async_save`, it may return when all is copied.
        """
        self.wait()  # before there is another copy
        sharded = writes_shards(self._config, self._learners)
        if async_save and not sharded and self._copies():
            copied = copy_checkpoint(state, self._loaded_for_writer, self._learners)
            self._writer.submit(partial(self._write, step, copied, keep))
            return
        write = partial(write_checkpoint, state=state, loaded=self._loaded, learners=self._learners, sharded=sharded)
        self._write(step, write, keep)
        self._report_saved()

    def check(self) -> None:
        """Reports what is whole by now, or raises the error of what could not be written."""
        self._writer.check()
        self._report_saved()

    def wait(self) -> None:
        """As `check`, once what is being written is whole."""
        self._writer.flush()
        self._report_saved()

    @cached_property
    def _loaded_for_writer(self) -> LoadedModel:
        """With a tokenizer of its own, which no episode uses while it is written; a large one takes .3 s to copy."""
        return replace(self._loaded, tokenizer=copy.deepcopy(self._loaded.tokenizer))

    def _copies(self) -> bool:
        asked, loaded = self._config.checkpoint.async_save, self._loaded
        if asked is None:
            on_gpu = loaded.device.type != "cpu"
            asked = on_gpu and free_memory() >= _SPARE * one_checkpoint_bytes(self._config, loaded.model)
        return asked and not has_lora(loaded.model)

    def _write(self, step: int, write: Write, keep: Collection[int]) -> None:
        path = self._checkpoints.save(step, write)
        self._checkpoints.pin_remaining(keep)
        self._completed.append((step, path))

    def _report_saved(self) -> None:
        while self._completed:
            self._on_saved(*self._completed.pop(0))
