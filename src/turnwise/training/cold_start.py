"""The cold start: demonstrations, then supervised fine-tuning on them, with checkpoints of its own.

Invariant: a cold start that was killed goes on from its last checkpoint to the weights and metrics of one that was not.
Demonstrations that are stored are not played again: a checkpoint holds the hash of their file. The first checkpoint,
of step 0, has no weights, for they are those that the run began with, and is never pruned. All are removed when
training has a checkpoint.
"""

import hashlib
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from turnwise.checks.tasks import known_by_data
from turnwise.config import Config
from turnwise.errors import ConfigError, RunError
from turnwise.learner.group import LearnerGroup
from turnwise.learner.settings import SFTSettings
from turnwise.runs import Checkpoints, RunDirectory, capture_rng, read_trajectories, restore_rng, save_state
from turnwise.seeds import derive_seed
from turnwise.training.build import Components
from turnwise.training.checkpoint_files import CheckpointState, read_checkpoint, write_checkpoint, writes_shards
from turnwise.training.interruption import StopSignal
from turnwise.training.recorder import Recorder
from turnwise.training.sft import count_sft_steps, draw_demonstrated, play_expert, read_chats, run_sft
from turnwise.types import Task, Trajectory

_logger = logging.getLogger(__name__)


class ColdStart:
    """Imitation of demonstrations before reinforcement learning; `resume` or the stages before it, then `run`."""

    def __init__(
        self,
        config: Config,
        settings: SFTSettings,
        parts: Components,
        learners: LearnerGroup,
        directory: RunDirectory,
        recorder: Recorder,
        stop: StopSignal,
    ) -> None:
        self._settings, self._rollout, self._saving = settings, config.rollout, config.checkpoint
        self._parts, self._learners, self._recorder, self._stop = parts, learners, recorder, stop
        self._seed = derive_seed(config.seed, "cold start")
        self._file = directory.trajectory_file("sft", 0)
        self._checkpoints = Checkpoints(directory.sft_checkpoints, keep=config.checkpoint.keep)
        self._resumed, self._done = False, 0
        """Whether this process goes on from a checkpoint, and after how many steps."""
        self._saved: CheckpointState | None = None
        self._sharded = writes_shards(config, learners)
        self._stored: Sequence[Trajectory] | None = None
        self._hash = ""

    def resume(self) -> bool:
        """Loads the last checkpoint of the cold start, if it has one."""
        last = self._checkpoints.newest_whole()
        if last is None:
            return False
        saved = read_checkpoint(last, self._parts.loaded)
        done = saved.state["step"]
        assert isinstance(done, int)
        self._checkpoints.set_aside_after(done)
        self._checkpoints.hold(done)
        self._resumed, self._done, self._saved = True, done, saved if done else None
        self._stored = self._read_stored(str(saved.state["demonstrations"]))
        if "rng" in saved.state:  # checkpoints of older versions lack it
            restore_rng(saved.state["rng"])  # type: ignore[arg-type]  # what `_save` wrote
        return True

    async def run(self) -> None:
        """Trains the model on the demonstrations, which are stored beside the trajectories that follow."""
        with self._stop.at_once("before the cold start; its demonstrations are played again"):
            demonstrations = self._stored or await self._make_demonstrations()
        total = count_sft_steps(len(demonstrations), self._settings)
        if self._stored is None:
            self._recorder.record_demonstrations(demonstrations)
            self._recorder.flush()
            self._hash = _hash(self._file)
        if self._resumed:
            self._recorder.resume_sft(self._done, total)
        else:
            self._save(0)
        self._recorder.start_stage("cold start", total)
        self._saved_at = time.monotonic()
        steps = run_sft(
            self._learners,
            demonstrations,
            self._settings,
            seed=self._seed,
            done=self._done,
            saved=self._saved,
            pause=self._pause,
            pauses=self._is_due,
        )
        for step, metrics in enumerate(steps, self._done + 1):
            self._recorder.record_sft_step(step, metrics)

    def remove_checkpoints(self) -> None:
        """Once training has a checkpoint, those of the cold start are of no use."""
        shutil.rmtree(self._checkpoints.folder, ignore_errors=True)

    async def _make_demonstrations(self) -> list[Trajectory]:
        settings, parts = self._settings, self._parts
        if settings.chats is not None:
            return read_chats(settings.chats, parts.render)
        tasks = demonstrated_tasks(parts, settings.split)
        return await play_expert(
            parts.env,
            draw_demonstrated(parts.env, tasks, settings.demonstrations, self._seed),
            render=parts.render,
            limits=self._rollout,
            context_limit=parts.engine.context_limit,
            seed=self._seed,
            workers=settings.workers,
            progress=self._recorder.show_progress("demonstrations"),
        )

    def _read_stored(self, expected: str) -> list[Trajectory] | None:
        """The demonstrations of the checkpoint; None where their file is gone or broken: they are played again."""
        try:
            if _hash(self._file) == expected:
                self._hash = expected
                return [group.trajectories[0] for group in read_trajectories(self._file)]
        except (OSError, RunError):
            pass
        _logger.warning("%s is not as it was written: the demonstrations are played again", self._file)
        return None

    def _is_due(self, step: int) -> bool:
        every, minutes = self._saving.sft_every, self._saving.sft_minutes
        waited = minutes > 0 and time.monotonic() - self._saved_at >= 60 * minutes
        return self._stop.received is not None or waited or (every > 0 and step % every == 0)

    def _pause(self, step: int) -> None:
        self._save(step)
        self._stop.interrupt(f"after step {step} of the cold start, which is saved")

    def _save(self, step: int) -> None:
        self._recorder.flush()
        state = {"step": step, "demonstrations": self._hash, "rng": dict(capture_rng())}

        def write(folder: Path) -> Mapping[str, str]:
            if step:
                return write_checkpoint(folder, state, self._parts.loaded, self._learners, sharded=self._sharded)
            save_state(folder / "state.pt", {**state, "sft": None})
            return {}

        with self._parts.ledger.spend("checkpoint"):
            self._checkpoints.save(step, write)
            if not step:
                self._checkpoints.pin(step)
        self._saved_at = time.monotonic()


def require_demonstrations(settings: SFTSettings | None, parts: Components) -> None:
    """Fails before the run directory is created if there are no demonstrations to train on."""
    if settings is None:
        return
    if settings.chats is not None:
        read_chats(settings.chats, parts.render)
    elif not parts.env.has_expert:
        parts.env.expert()  # its error says what to do
    else:
        tasks = demonstrated_tasks(parts, settings.split)
        draw_demonstrated(parts.env, tasks, settings.demonstrations, seed=0)
        _warn_of_repetition(settings, tasks)


def _warn_of_repetition(settings: SFTSettings, tasks: Sequence[Task]) -> None:
    """Of questions that are played again: a level may end another way, a question is the same demonstration."""
    asked, there = settings.demonstrations, len(tasks)
    if asked > there and known_by_data(tasks):
        message = (
            "sft.demonstrations: %d, but '%s' has %d tasks: some are demonstrated %d times; lower it, or bring more"
        )
        _logger.warning(message, asked, settings.split, there, -(-asked // there))


def demonstrated_tasks(parts: Components, split: str) -> Sequence[Task]:
    """What the expert plays: the training tasks, or another split of the environment."""
    tasks = parts.train_tasks if split == "train" else parts.held_out.leave_out(parts.env.tasks(split))
    if not tasks:
        raise ConfigError(f"sft.split: the environment has no tasks in '{split}': name another split")
    return tasks


def _hash(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
