"""The loop: tasks, episodes, credit, update, diagnosis, and again.

Invariant: all state that matters is in the model, the learner, the sampler, the controller and the step; everything
else is derived from the seed, so a run that was killed and resumed equals one that was not.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from turnwise.compute.garbage import gc_between_steps, reduced_gc
from turnwise.config import Config
from turnwise.envs.base import Env
from turnwise.evaluation import evaluate
from turnwise.learner.cross_score import first_replies, measure_information
from turnwise.learner.forward_runner import ForwardRunner
from turnwise.learner.group import LearnerGroup
from turnwise.learner.update import Update
from turnwise.ledger import Ledger
from turnwise.plugins import describe_sources
from turnwise.render.base import decode_many
from turnwise.rollout import RolloutBatch
from turnwise.runs import (
    Checkpoints,
    Display,
    RunDirectory,
    capture_rng,
    make_display,
    restore_rng,
    seed_globals,
)
from turnwise.runs.directory import Resume
from turnwise.runs.files import one_line_disk_error, write_text
from turnwise.runs.lock import lock_run
from turnwise.seeds import derive_seed
from turnwise.settings import dump_settings
from turnwise.sources import write_sources
from turnwise.stability import Controller, Decision, Information, measure_envs, measure_health
from turnwise.training.build import Components, assemble, record_env
from turnwise.training.callbacks import Callback, Callbacks, make_callbacks
from turnwise.training.checkpoint_files import CheckpointState, read_checkpoint
from turnwise.training.cold_start import ColdStart, require_demonstrations
from turnwise.training.disk import warn_of_disk
from turnwise.training.interruption import StopSignal
from turnwise.training.launch import single_process
from turnwise.training.memory import MEMORY_SETTINGS, TO_LOAD, TO_TRAIN, one_line_out_of_memory
from turnwise.training.on_cluster import on_cluster, reach_cluster
from turnwise.training.recorder import Recorder
from turnwise.training.sampling import make_rollouts
from turnwise.training.saving import CheckpointSaver
from turnwise.training.step_checks import make_step_checks
from turnwise.types import Task

_FAILURE_LIMITS = ("rollout.env_seconds", "rollout.max_failures", "env.workers", "env.workers_on", "env.max_deaths")
MAY_DIFFER = (
    "steps",
    "engine",
    "checkpoint",
    "trajectories",
    "evaluate.every",
    "callbacks",
    "cluster",
    "sft.workers",
    *MEMORY_SETTINGS,
    *_FAILURE_LIMITS,
)
"""What a resumed run may change and stay the same: its length, its engine, what its device fits, when it gives up."""


def run_training(
    config: Config,
    run: str | Path,
    *,
    resume: Resume = False,
    env: Env | None = None,
    tasks: Sequence[Task] | None = None,
    display: Display | None = None,
    ledger: Ledger | None = None,
    learners: LearnerGroup | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunDirectory:
    """Trains to the end, in the folder `run`; with `resume`, goes on from its last checkpoint, "auto": if there is one.

    A `ledger` that was begun earlier includes the time before this call; `callbacks` join those that the config names.
    `learners` are those of all processes. Ctrl-C, SIGTERM and SIGHUP end it with RunInterrupted, once a step is saved.
    """
    ledger, learners = ledger or Ledger(), learners or single_process()
    config = config if env is None else record_env(config, env)
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignal())
        stack.enter_context(one_line_disk_error(Path(run)))
        with ledger.spend("prepare"), stop.at_once("while it prepared, with nothing to save"):
            exclude_from_gc = stack.enter_context(reduced_gc())
            stack.enter_context(lock_run(Path(run)))
            resume = RunDirectory(Path(run)).resumes(resume)
            seed_globals(config.seed)
            observers = Callbacks([*make_callbacks(config.callbacks), *callbacks])
            RunDirectory(Path(run)).check(dump_settings(config), resume=resume, may_differ=MAY_DIFFER)
            reached = stack.enter_context(reach_cluster(config))
            parts = assemble(
                config, env=env, tasks=tasks, ledger=ledger, on_cluster=reached.plays, open_nursery=reached.open_nursery
            )
            if env is None or not env.host.workers:
                stack.callback(parts.env.host.close)
            if not resume:
                require_demonstrations(config.sft, parts)
            _load_model(learners, config, parts)
            parts = stack.enter_context(on_cluster(config, parts))
            directory = RunDirectory.create(run, dump_settings(config), resume=resume, may_differ=MAY_DIFFER)
            write_sources(directory.path, config.model_dump(mode="json"), describe_sources(config), write_text)
            exclude_from_gc()
        shown = stack.enter_context(display or make_display())
        recorder = stack.enter_context(_make_recorder(config, parts, directory, shown, observers))
        with ledger.spend("prepare"):
            observers.on_run_begin(config, directory)
        runner = stack.enter_context(asyncio.Runner(loop_factory=ledger.new_event_loop))
        with one_line_out_of_memory(f"{TO_TRAIN}; then continue with --resume"):
            runner.run(Trainer(config, parts, learners, directory, recorder, stop).run())
    return directory


def _make_recorder(
    config: Config, parts: Components, directory: RunDirectory, display: Display, callbacks: Callbacks
) -> Recorder:
    return Recorder(
        directory,
        display,
        ledger=parts.ledger,
        engine=parts.engine,
        env=parts.env,
        fleet=parts.fleet,
        keep=config.trajectories,
        decode_many=partial(decode_many, parts.render),
        callbacks=callbacks,
        checks=make_step_checks(config, parts.loaded.model, parts.autocast),
        warnings=warn_of_disk(config, parts.loaded.model, directory.path),
    )


def _load_model(learners: LearnerGroup, config: Config, parts: Components) -> None:
    with one_line_out_of_memory(TO_LOAD):
        learners.load_model(
            parts.loaded,
            config.model,
            seed=config.seed,
            autocast=parts.autocast,
            shard=config.learner.shard,
            ledger=None if config.rollout.staleness else parts.ledger,  # which belongs to the event loop's thread
        )


class Trainer:
    """One run: its parts, its learner, and the decision in force."""

    def __init__(
        self,
        config: Config,
        parts: Components,
        learners: LearnerGroup,
        directory: RunDirectory,
        recorder: Recorder,
        stop: StopSignal,
    ) -> None:
        self.config, self.parts, self.learners = config, parts, learners
        self.recorder, self.ledger, self.stop = recorder, parts.ledger, stop
        self.checkpoints = Checkpoints(directory.checkpoints, keep=config.checkpoint.keep)
        self.rollouts = make_rollouts(config, parts, parts.fleet)
        self.cold_start: ColdStart | None = None
        if config.sft is not None:
            self.cold_start = ColdStart(config, config.sft, parts, learners, directory, recorder, stop)
        self.saved: int | None = None
        """The step of the newest checkpoint, which may still be written."""
        self.saver = CheckpointSaver(config, self.checkpoints, parts.loaded, learners, self._record_saved)
        self.controller = Controller(config.stability, config.algorithm_settings, cold_start=config.sft is not None)
        self.decision = self.controller.current

    async def run(self) -> None:
        """SFT, then steps of reinforcement learning, each diagnosed, evaluated and saved when it is due."""
        try:
            with self.saver:
                await self._run()
        finally:
            await self.rollouts.close()

    async def _run(self) -> None:
        step = await self._begin()
        if step < self.config.steps:
            self.recorder.start_stage("training", self.config.steps)
        with gc_between_steps() as collect_garbage:
            while step < self.config.steps:
                self._stop_if_asked(step)
                await self._train(step)
                step += 1
                collect_garbage()
                if self._due(step, self.config.evaluate.every):
                    await self._evaluate("evaluate", step)
                if self._due(step, self.config.checkpoint.every):
                    self._save(step)
                self.saver.check()
        self.recorder.finish(step)

    async def _train(self, step: int) -> None:
        """One step: rollouts, the update on them, what they say of the run's health, and what follows from it."""
        progress = self.recorder.show_progress("episodes")
        rollouts = await self.rollouts.next(step, self.decision.settings.filter, progress)
        began = time.monotonic()
        learn = partial(self.learners.update, rollouts.kept, seed=self._seed("update", step))
        update = await self.rollouts.update(learn)
        update_seconds = time.monotonic() - began
        self.decision = self._decide(step + 1, rollouts, update)
        self.recorder.record_step(step + 1, rollouts, update, self.decision, update_seconds=update_seconds)
        await self._apply(self.decision)

    def _stop_if_asked(self, step: int) -> None:
        """Saves and ends the run after a signal; samples that wait are trained on first."""
        if self.stop.received is None or self.rollouts.waiting:
            return
        if self.saved != step:
            self._save(step)
        self._wait_for_saver()
        self.stop.interrupt(f"after step {step}, which is saved")

    async def _begin(self) -> int:
        """The step training starts at: that of the last checkpoint, or 0 after the cold start of a new run."""
        last = self.checkpoints.newest_whole()
        if last is not None:
            return self._restore(last)
        if self.cold_start is None or not self.cold_start.resume():
            await self._begin_untrained()
        if self.cold_start is not None:
            with self.ledger.spend("sft"):
                await self.cold_start.run()
        self._make_learner()
        await self._evaluate("evaluate", 0)
        self._save(0)
        return 0

    async def _begin_untrained(self) -> None:
        """Before any training: nothing is worth saving yet, so a signal need not wait."""
        self.recorder.start()
        slow_reason: str | None = getattr(self.parts.engine, "slow_reason", None)  # only a local engine has one
        if slow_reason is not None:
            self.recorder.record_slow_sampling(slow_reason)
        if self.config.evaluate.untrained:
            with self.stop.at_once("in the evaluation of the untrained model, which starts again"):
                await self._evaluate("untrained", 0)

    def _decide(self, step: int, rollouts: RolloutBatch, update: Update) -> Decision:
        """Measures the run's health and asks the controller; settings change only between two rollouts."""
        settings = self.config.stability
        with self.ledger.spend("diagnose"):
            health = None
            if settings.mode != "off":
                every = settings.monitor.information_every
                information = self._measure_information(rollouts) if every and step % every == 0 else None
                rollout = self.config.rollout
                on_policy = not rollout.staleness and self.rollouts.waiting + 1 == rollout.updates_per_rollout
                clipped = update.first_clip_fraction if on_policy else None
                health = measure_health(rollouts.groups, update.metrics, information, clipped)
            saves = self._due(step, self.config.checkpoint.every)
            return self.controller.decide(
                step,
                health,
                by_env=measure_envs(rollouts.groups) if health is not None else {},
                checkpoint=saves,
                may_act=not self.rollouts.waiting,
            )

    def _measure_information(self, rollouts: RolloutBatch) -> Information | None:
        """Mutual information between prompts and reasoning."""
        parts, config = self.parts, self.config
        replies = first_replies(
            rollouts.groups,
            most=config.stability.monitor.information_sample,
            end_of_thinking=parts.loaded.tokenizer.encode("</think>", add_special_tokens=False),
        )
        runner = ForwardRunner(
            device=parts.loaded.device,
            autocast=parts.autocast,
            temperature=config.rollout.temperature,
            token_budget=config.learner.first_microbatch,
        )
        return measure_information(parts.loaded.model, replies, runner, context_limit=parts.loaded.context_limit)

    async def _apply(self, decision: Decision) -> None:
        """After an action, makes another learner, on other weights after a rollback."""
        action = decision.action
        if action is None:
            return
        saved = None
        if action.rollback_to is None:
            self.learners.keep_state()
        else:
            self._wait_for_saver()
            saved = self._load_checkpoint(self.checkpoints.require_whole(action.rollback_to))
            await self.rollouts.roll_back()
        self._continue_learner(saved, version=action.step)

    async def _evaluate(self, stage: str, step: int) -> None:
        """Held-out success, on the same tasks with the same episode seeds every time."""
        await self.rollouts.load(step)
        settings = self.config.evaluate
        with self.ledger.spend("evaluate"):
            result = await evaluate(
                self.parts.policy(settings),
                self.parts.env,
                self.parts.test_tasks,
                limits=self.config.rollout,
                ledger=self.ledger,
                fleet=self.parts.fleet,
                samples_per_task=settings.samples_per_task,
                seed=self._seed("evaluate"),
                group_by=settings.group_by,
                progress=self.recorder.show_progress(f"evaluation after step {step}"),
            )
        self.recorder.record_evaluation(stage, step, result)

    def _restore(self, checkpoint: Path) -> int:
        saved = self._load_checkpoint(checkpoint)
        step = saved.state["step"]
        assert isinstance(step, int)
        self.checkpoints.set_aside_after(step)
        self.checkpoints.hold(step)
        if self.cold_start is not None:
            self.cold_start.remove_checkpoints()
        self.saved = step
        self.rollouts.load_state_dict(saved.section("sampler"))
        self.controller.load_state_dict(saved.section("stability"))
        self.decision = self.controller.current
        self.checkpoints.pin_remaining(self.decision.keep_checkpoints)
        self._continue_learner(saved, version=step)
        restore_rng(saved.state["rng"])  # type: ignore[arg-type]  # what `_save` wrote
        self.recorder.resume(step, finished=step >= self.config.steps)
        return step

    def _load_checkpoint(self, checkpoint: Path) -> CheckpointState:
        with self.ledger.spend("checkpoint"):
            return read_checkpoint(checkpoint, self.parts.loaded)

    def _make_learner(self) -> None:
        """Makes a learner under the decision in force."""
        algorithm = self.decision.settings
        settings = self.config.learner.reduced(algorithm.lr_share)
        warmup = max(settings.critic.warmup, self.decision.critic_warmup_until)
        critic = settings.critic.model_copy(update={"warmup": warmup})
        with self.ledger.spend("prepare"):
            self.learners.make_learner(
                settings=settings.model_copy(update={"critic": critic}),
                credit=algorithm.credit,
                loss=algorithm.loss,
                temperature=self.config.rollout.temperature,
                total_steps=self.config.steps,
            )

    def _continue_learner(self, saved: CheckpointState | None, *, version: int) -> None:
        """Makes a learner under the decision in force that continues from a checkpoint, or from the one before it."""
        self._make_learner()
        if saved is None:
            self.learners.restore(version=version)
        else:
            sections = saved.sections("learner", "inactive")
            self.learners.restore(version=version, saved=sections, shards=saved.shards)

    def _save(self, step: int) -> None:
        assert not self.rollouts.waiting, "samples that wait would be lost"
        self.recorder.flush()
        state = {
            "step": step,
            "sampler": self.rollouts.state_dict(),
            "stability": self.controller.state_dict(),
            "rng": dict(capture_rng()),
        }
        async_save = 0 < step < self.config.steps
        with self.ledger.spend("checkpoint"):
            self.saver.save(step, state, keep=self.decision.keep_checkpoints, async_save=async_save)
        self.saved = step

    def _record_saved(self, step: int, path: Path) -> None:
        if step == 0 and self.cold_start is not None:
            self.cold_start.remove_checkpoints()
        self.recorder.record_checkpoint(step, path)

    def _wait_for_saver(self) -> None:
        with self.ledger.spend("checkpoint"):
            self.saver.wait()

    def _due(self, step: int, every: int) -> bool:
        return step == self.config.steps or (every > 0 and step % every == 0)

    def _seed(self, *parts: int | str) -> int:
        return derive_seed(self.config.seed, *parts)
