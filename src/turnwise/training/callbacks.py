"""Callbacks: a user's own code that watches a run, such as a tracker.

Invariant: a callback only observes. An exception as the run begins ends it with one line (a tracker without its login
should not be found out hours later); any later one is logged, once per callback, and training goes on.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.errors import ConfigError, TurnwiseError
from turnwise.plugins import PluginKind, PluginSettings, make_plugin
from turnwise.training.trackers import TRACKERS

if TYPE_CHECKING:  # a module with a callback need not import torch
    from turnwise.checks.diagnosis import Diagnosis
    from turnwise.config import Config
    from turnwise.runs.directory import RunDirectory
    from turnwise.stability.controller import Action
    from turnwise.stability.findings import Finding

logger = logging.getLogger(__name__)

_KIND = PluginKind(
    key="callbacks",
    noun="callback",
    group="turnwise.callbacks",
    args="callbacks.args",
    contract="derive it from turnwise.training.callbacks.Callback",
)


class Callback:
    """Override what you need; every method is called in the training process, between steps.

    A resumed run repeats the steps after its last checkpoint, so a step may be reported twice.
    """

    def on_run_begin(self, config: "Config", run: "RunDirectory") -> None:
        """The run starts or resumes."""

    def on_sft_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """A supervised step ended: `{"sft/loss": 1.7, ...}`."""

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """A training step ended; `metrics` are those of its line in `metrics.jsonl`."""

    def on_evaluation(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """An evaluation ended; the stage is `untrained` before any training, `evaluate` from then on."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """A checkpoint was saved."""

    def on_finding(self, step: int, finding: "Finding | Action | Diagnosis") -> None:
        """The monitor or a check found something, or the controller acted; `finding.sentence` says what."""

    def on_run_end(self, completed: bool) -> None:
        """The run ended: `completed`, or by an error or an interrupt."""


def make_callbacks(settings: Sequence[PluginSettings]) -> list[Callback]:
    """The callbacks that a recipe names: trackers of ours, or a user's own."""
    return [make_plugin(_KIND, one, TRACKERS, Callback) for one in settings]


class Callbacks(Callback):
    """Calls each of several callbacks, and keeps their errors from the run."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise ConfigError(f"callbacks: {callback!r} is not a Callback; if it is a class, call it")
        self._callbacks = tuple(callbacks)
        self._failures: Counter[int] = Counter()

    def on_run_begin(self, config: "Config", run: "RunDirectory") -> None:
        for callback in self._callbacks:
            try:
                callback.on_run_begin(config, run)
            except TurnwiseError:
                raise
            except Exception as error:
                raise ConfigError(
                    f"callback {_name(callback)} failed as the run began: {_describe(error)}; mend it or remove it, "
                    "and go on with --resume"
                ) from error

    def on_sft_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._call_each("on_sft_step_end", lambda callback: callback.on_sft_step_end(step, dict(metrics)))

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._call_each("on_step_end", lambda callback: callback.on_step_end(step, dict(metrics)))

    def on_evaluation(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        self._call_each("on_evaluation", lambda callback: callback.on_evaluation(stage, step, dict(metrics)))

    def on_checkpoint(self, step: int, path: Path) -> None:
        self._call_each("on_checkpoint", lambda callback: callback.on_checkpoint(step, path))

    def on_finding(self, step: int, finding: "Finding | Action | Diagnosis") -> None:
        self._call_each("on_finding", lambda callback: callback.on_finding(step, finding))

    def on_run_end(self, completed: bool) -> None:
        self._call_each("on_run_end", lambda callback: callback.on_run_end(completed))
        for place, failures in self._failures.items():
            if failures > 1:
                logger.warning("callback %s failed %d times in all", _name(self._callbacks[place]), failures)

    def _call_each(self, event: str, call: Callable[[Callback], None]) -> None:
        for place, callback in enumerate(self._callbacks):
            try:
                call(callback)
            except Exception as error:  # the user's code; training does not depend on it
                self._failures[place] += 1
                if self._failures[place] == 1:
                    message = "callback %s failed in %s: %s; training goes on, further failures are counted"
                    logger.warning(message, _name(callback), event, _describe(error), exc_info=error)


def _name(callback: Callback) -> str:
    return f"{type(callback).__module__}:{type(callback).__qualname__}"


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
