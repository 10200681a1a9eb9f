"""The loop: tasks, episodes, credit, update, diagnosis, and again.

Invariant: all state that matters is in the model, the learner, the sampler, the controller and the step; everything
else is derived from the seed, so a run that was killed and resumed equals one that was not.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from turnwise.compute.garbage import reduced_gc
from turnwise.config import Config
from turnwise.envs.base import Env
from turnwise.evaluation import evaluate
from turnwise.learner.cross_score import first_replies, measure_information
from turnwise.learner.forward_runner import Passes, seeded
from turnwise.learner.learner import Learner, Update
from turnwise.ledger import Ledger
from turnwise.models.loading import load_weights, save_model
from turnwise.rollout import RolloutBatch, RolloutCollector, Shuffled, summarise
from turnwise.runs import (
    Checkpoints,
    Display,
    MetricsLog,
    Record,
    RunDirectory,
    capture_rng,
    load_state,
    make_display,
    read_metrics,
    restore_rng,
    save_state,
    write_trajectories,
)
from turnwise.runs.findings import FindingsLog
from turnwise.runs.ledger.recorder import LedgerRecorder
from turnwise.runs.report.writer import write_report
from turnwise.seeds import derive_seed
from turnwise.settings import dump_settings
from turnwise.stability import Act, Controller, Information, Verdict, measure, select
from turnwise.training.build import Components, assemble
from turnwise.training.sft import count_sft_steps, play_expert, read_chats, run_sft
from turnwise.types import Group, Task

MAY_DIFFER = ("steps", "checkpoint", "evaluate.every")
"""What a resumed run may change without becoming another run."""
_REPORT_PAUSE = 60.0
"""Seconds between two reports of a run that goes on: reading all its metrics again must stay cheap."""


def run_training(
    config: Config,
    run: str | Path,
    *,
    resume: bool = False,
    env: Env | None = None,
    tasks: Sequence[Task] | None = None,
    display: Display | None = None,
    ledger: Ledger | None = None,
) -> RunDirectory:
    """Trains to the end, in the folder `run`; with `resume`, goes on from its last checkpoint.

    A `ledger` that was begun earlier has the time before this call, too.
    """
    ledger = ledger or Ledger()
    with ExitStack() as stack:
        with ledger.spend("prepare"):
            RunDirectory(Path(run)).check(dump_settings(config), resume=resume, may_differ=MAY_DIFFER)
            parts = assemble(config, env=env, tasks=tasks, ledger=ledger)
            if not resume:
                _require_demonstrations(config, parts)
            directory = RunDirectory.create(run, dump_settings(config), resume=resume, may_differ=MAY_DIFFER)
            stack.enter_context(reduced_gc())
        shown = stack.enter_context(display or make_display())
        metrics = stack.enter_context(MetricsLog(directory.metrics))
        runner = stack.enter_context(asyncio.Runner(loop_factory=ledger.new_event_loop))
        runner.run(Trainer(config, parts, directory, metrics, shown).run())
    return directory


def _require_demonstrations(config: Config, parts: Components) -> None:
    """Finds out that there is nothing to imitate before a run is begun that could not be begun again."""
    if config.sft is None:
        return
    if config.sft.chats is not None:
        read_chats(config.sft.chats, parts.render)
    elif type(parts.env).expert is Env.expert:
        parts.env.expert()  # its error says what to do


class Trainer:
    """One run: its parts, its learner, and what it writes down."""

    def __init__(
        self, config: Config, parts: Components, directory: RunDirectory, metrics: MetricsLog, display: Display
    ) -> None:
        self.config, self.parts, self.directory = config, parts, directory
        self.metrics, self.display = metrics, display
        self.ledger, self.ledger_recorder = parts.ledger, LedgerRecorder(parts.ledger, parts.engine)
        self.reported = time.monotonic()
        """When the report was last written; a run begins as if it just had been."""
        self.checkpoints = Checkpoints(directory.checkpoints, keep=config.checkpoint.keep)
        self.findings = FindingsLog(directory.path / "findings.jsonl")
        self.collector = RolloutCollector(
            parts.policy(config.rollout),
            parts.env,
            parts.train_tasks,
            config.rollout,
            seed=config.seed,
            ledger=parts.ledger,
        )
        self.waiting: list[RolloutBatch] = []
        """Sampled, and not learnt from yet."""
        self.controller = Controller(config.stability, config.regime)
        self.asleep: Mapping[str, object] = {}
        """What a learner under another regime needs (a critic, a reference) and the one in force does not."""

    async def run(self) -> None:
        """A cold start, then steps of reinforcement learning, each diagnosed, evaluated and saved when it is due."""
        learner, step = await self._begin()
        if step < self.config.steps:
            self.display.stage("training", self.config.steps)
        while step < self.config.steps:
            lot = await self._sample(step)
            began = time.monotonic()
            update = learner.update(lot.kept, seed=self._seed("update", step))
            learnt = time.monotonic() - began
            step += 1
            verdict = self._diagnose(step, lot, update)
            self._record(step, lot, update, verdict, learnt)
            if verdict.act is not None:
                learner = self._carry_out(verdict.act, learner)
            if self._due(step, self.config.evaluate.every):
                await self._evaluate("evaluate", step)
            if self._due(step, self.config.checkpoint.every):
                self._save(step, learner)
        self._end(step)

    async def _begin(self) -> tuple[Learner, int]:
        """Where training starts: at the last checkpoint, or after the cold start of a new run."""
        last = self.checkpoints.latest()
        if last is not None:
            return await self._restore(last)
        self.metrics.truncate_after(-1)
        self.display.stage("preparation", 0)
        if self.config.evaluate.untrained:
            await self._evaluate("untrained", 0)
        if self.config.sft is not None:
            with self.ledger.spend("sft"):
                await self._imitate()
        learner = self._make_learner()
        await self._evaluate("evaluate", 0)
        self._save(0, learner)
        return learner, 0

    async def _sample(self, step: int) -> RolloutBatch:
        """The next lot; all that one set of weights serves are sampled together."""
        if not self.waiting:
            for ahead in range(self.config.rollout.updates_per_rollout):
                await self._load_engine(step)
                keep = self.controller.regime.filter
                lot = await self.collector.collect(
                    step + ahead,
                    partial(select, settings=keep),
                    refill=keep.refill,
                    progress=self._progress("episodes"),
                )
                self.waiting.append(lot)
        return self.waiting.pop(0)

    def _diagnose(self, step: int, lot: RolloutBatch, update: Update) -> Verdict:
        """What the step's samples and its update say about the health of the run, and what is to be done."""
        if not self.controller.watches:
            return Verdict(metrics={})
        with self.ledger.spend("diagnose"):
            every = self.config.stability.monitor.information_every
            information = self._compare_prompts(lot) if every and step % every == 0 else None
            vitals = measure(lot.groups, update.metrics, information)
            verdict = self.controller.observe(step, vitals, may_act=not self.waiting)
            return replace(verdict, metrics={**verdict.metrics, **(vitals.metrics() if vitals else {})})

    def _compare_prompts(self, lot: RolloutBatch) -> Information | None:
        """What the thoughts of a lot say of the prompts they answer."""
        parts, config = self.parts, self.config
        replies = first_replies(
            lot.groups,
            most=config.stability.monitor.information_sample,
            end_of_thinking=parts.loaded.tokenizer.encode("</think>", add_special_tokens=False),
        )
        passes = Passes(
            device=parts.loaded.device,
            autocast=parts.autocast,
            temperature=config.rollout.temperature,
            token_budget=config.learner.tokens_per_microbatch,
        )
        return measure_information(parts.loaded.model, replies, passes, context_limit=parts.loaded.context_limit)

    def _carry_out(self, act: Act, learner: Learner) -> Learner:
        """Another regime from here on, and other weights where the act says so; the step goes on counting."""
        if act.return_to is None:
            self.controller.carry_out(act)
            return self._make_learner({**self.asleep, **learner.state_dict()}, version=act.step)
        with self.ledger.spend("checkpoint"):
            checkpoint = self.checkpoints.path(act.return_to)
            load_weights(self.parts.loaded.model, checkpoint / "model")
            state = load_state(checkpoint / "state.pt")
        self.controller.carry_out(act, _section(state, "stability"))
        return self._make_learner({**_section(state, "asleep"), **_section(state, "learner")}, version=act.step)

    async def _imitate(self) -> None:
        """The cold start; its demonstrations are stored beside the trajectories that follow."""
        settings, parts, seed = self.config.sft, self.parts, self._seed("cold start")
        assert settings is not None
        if settings.chats is not None:
            demonstrations = read_chats(settings.chats, parts.render)
        else:
            demonstrations = await play_expert(
                parts.env,
                Shuffled(parts.train_tasks, per_step=settings.demonstrations, seed=seed).draw(0),
                render=parts.render,
                limits=self.config.rollout,
                context_limit=parts.engine.context_limit,
                seed=seed,
                progress=self._progress("demonstrations"),
            )
        self._store("sft", 0, [Group(task=one.task, trajectories=(one,)) for one in demonstrations])
        self.display.stage("cold start", count_sft_steps(len(demonstrations), settings))
        began = time.monotonic()
        losses = run_sft(parts.loaded.model, demonstrations, settings, seed=seed, autocast=parts.autocast)
        with seeded(derive_seed(seed, "dropout"), parts.loaded.device):
            for step, metrics in enumerate(losses, 1):
                began, seconds = time.monotonic(), time.monotonic() - began
                pace = {"sft/tokens_per_second": metrics["sft/tokens"] / seconds}
                self._tell("sft", step, metrics | pace | self.ledger_recorder.close())

    async def _evaluate(self, stage: str, step: int) -> None:
        """Held-out success, on the same tasks with the same episode seed every time."""
        await self._load_engine(step)
        settings = self.config.evaluate
        with self.ledger.spend("evaluate"):
            result = await evaluate(
                self.parts.policy(settings),
                self.parts.env,
                self.parts.test_tasks,
                limits=self.config.rollout,
                ledger=self.ledger,
                samples_per_task=settings.samples_per_task,
                seed=self._seed("evaluate"),
                group_by=settings.group_by,
                progress=self._progress(f"evaluation after step {step}"),
            )
        self._store(stage, step, result.groups)
        self.metrics.write(step, stage, result.metrics() | self.ledger_recorder.close_evaluation(result.groups))
        self.display.note(f"{stage}, step {step}: {result}")

    async def _load_engine(self, version: int) -> None:
        """Gives the engine the newest weights: always just before it plays, so that no cache of what it played before
        is left, which a resumed run would not have; sums would round otherwise."""
        await self.parts.engine.load(self.parts.loaded.model.state_dict(), version)

    async def _restore(self, checkpoint: Path) -> tuple[Learner, int]:
        with self.ledger.spend("checkpoint"):
            state = load_state(checkpoint / "state.pt")
            step = state["step"]
            assert isinstance(step, int)
            self.checkpoints.hold(step)
            load_weights(self.parts.loaded.model, checkpoint / "model")
        self.collector.task_sampler.load_state_dict(_section(state, "sampler"))
        self.controller.load_state_dict(_section(state, "stability"))
        self.checkpoints.pin_only(self.controller.wanted_checkpoints)
        learner = self._make_learner({**_section(state, "asleep"), **_section(state, "learner")}, version=step)
        restore_rng(state["rng"])  # type: ignore[arg-type]  # what `_save` wrote
        self.metrics.truncate_after(step, stages={"train", "evaluate"})
        if step < self.config.steps:
            self.metrics.truncate_after(-1, stages={"end"})
        self.findings.truncate_after(step)
        self.display.note(f"resumed after step {step}")
        return learner, step

    def _make_learner(self, known: Mapping[str, object] | None = None, version: int = 0) -> Learner:
        """A learner by the regime in force; with `known`, it goes on from what other learners of the run knew."""
        regime, settings = self.controller.regime, self.config.learner
        warmup = max(settings.critic.warmup, self.controller.warm_until)
        critic = settings.critic.model_copy(update={"warmup": warmup})
        with self.ledger.spend("prepare"):
            learner = Learner(
                self.parts.loaded.model,
                settings=settings.model_copy(update={"critic": critic}),
                credit=regime.credit,
                loss=regime.loss,
                temperature=self.config.rollout.temperature,
                total_steps=self.config.steps,
                device=self.parts.loaded.device,
                autocast=self.parts.autocast,
                ledger=self.ledger,
            )
        if known is not None:
            own = learner.state_dict()
            learner.load_state_dict({**own, **known})
            learner.version = version
            self.asleep = {name: part for name, part in known.items() if name not in own}
        return learner

    def _save(self, step: int, learner: Learner) -> None:
        assert not self.waiting, "samples that wait would be lost"
        self.controller.choose_checkpoint(step)
        state = {
            "step": step,
            "learner": learner.state_dict(),
            "asleep": dict(self.asleep),
            "sampler": self.collector.task_sampler.state_dict(),
            "stability": self.controller.state_dict(),
            "rng": dict(capture_rng()),
        }

        def write(folder: Path) -> None:
            save_model(self.parts.loaded.model, self.parts.loaded.tokenizer, folder / "model")
            save_state(folder / "state.pt", state)

        with self.ledger.spend("checkpoint"):
            self.checkpoints.save(step, write)
            self.checkpoints.pin_only(self.controller.wanted_checkpoints)
        if time.monotonic() - self.reported > _REPORT_PAUSE:
            self._report()

    def _end(self, step: int) -> None:
        """Accounts for what came after the last record, once, and leaves a report; its own time is in the record."""
        if any(record["stage"] == "end" for record in read_metrics(self.directory.metrics)):
            return
        spent = self.ledger_recorder.close()
        self._report({"step": step, "stage": "end", **spent})
        later = self.ledger_recorder.close()
        self.metrics.write(step, "end", later | {name: spent[name] + later.get(name, 0.0) for name in spent})

    def _report(self, *unwritten: Record) -> None:
        with self.ledger.spend("store"):
            write_report(self.directory, *unwritten)
        self.reported = time.monotonic()

    def _record(self, step: int, lot: RolloutBatch, update: Update, verdict: Verdict, learnt: float) -> None:
        with self.ledger.spend("store"):
            summary = summarise(lot.groups)
            pace = {
                "rollout/tokens_per_second": summary["rollout/action_tokens"] / lot.seconds,
                "time/rollout_seconds": lot.seconds,
                "time/update_seconds": learnt,
            }
            self._store("train", step, lot.groups, lot.selection.kept, update)
            spent = self.ledger_recorder.close_training(lot.groups, lot.selection.kept, update)
            self._tell("train", step, summary | lot.metrics() | update.metrics | dict(verdict.metrics) | pace | spent)
        for event in verdict.events:
            self.findings.write(event.to_json())
            self.display.note(f"step {step}: {event.sentence}")

    def _tell(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics.write(step, stage, metrics)
        self.display.step(step, metrics)

    def _store(
        self,
        stage: str,
        step: int,
        groups: Sequence[Group],
        learnt: Sequence[int] = (),
        update: Update | None = None,
    ) -> None:
        """Writes all groups down, with the advantages of those that were `learnt` from, by place."""
        with self.ledger.spend("store"):
            places = [(g, m) for g in learnt for m in range(len(groups[g].trajectories))]
            advantages = {
                place: [one for turn in turns for one in turn]
                for place, turns in zip(places, update.advantages if update else (), strict=True)
                if turns
            }
            file = self.directory.trajectory_file(stage, step)
            write_trajectories(file, step, groups, advantages, self.parts.render.decode)

    def _due(self, step: int, every: int) -> bool:
        return step == self.config.steps or (every > 0 and step % every == 0)

    def _progress(self, what: str) -> Callable[[int, int], None]:
        return lambda done, total: self.display.progress(done, total, what)

    def _seed(self, *parts: int | str) -> int:
        return derive_seed(self.config.seed, *parts)


def _section(state: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = state[name]
    assert isinstance(section, Mapping)
    return section
