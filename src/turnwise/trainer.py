"""The loop: tasks, episodes, credit, update, and again.

Invariant: all state that matters is in the model, the learner and the step; everything else is derived from the seed,
so a run that was killed and resumed equals one that was not.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from turnwise.assemble import Parts, assemble
from turnwise.config import Config
from turnwise.envs.base import Env
from turnwise.evaluate import evaluate
from turnwise.learner.learner import Learner, Update
from turnwise.learner.models import load_weights, save_model
from turnwise.learner.passes import seeded
from turnwise.rollout import Shuffled, run_groups, summarise
from turnwise.runs import (
    Checkpoints,
    Display,
    MetricsLog,
    RunDirectory,
    capture_rng,
    load_state,
    make_display,
    restore_rng,
    save_state,
    write_trajectories,
)
from turnwise.seeds import derive_seed
from turnwise.settings import dump_settings
from turnwise.sft import imitate_all, imitation_steps, play_expert, read_chats
from turnwise.types import Group, Task

MAY_DIFFER = ("steps", "checkpoint", "evaluate.every")
"""What a resumed run may change without becoming another run."""


def run_training(
    config: Config,
    run: str | Path,
    *,
    resume: bool = False,
    env: Env | None = None,
    tasks: Sequence[Task] | None = None,
    display: Display | None = None,
) -> RunDirectory:
    """Trains to the end, in the folder `run`; with `resume`, goes on from its last checkpoint."""
    RunDirectory(Path(run)).check(dump_settings(config), resume=resume, may_differ=MAY_DIFFER)
    parts = assemble(config, env=env, tasks=tasks)
    if not resume:
        _require_demonstrations(config, parts)
    directory = RunDirectory.create(run, dump_settings(config), resume=resume, may_differ=MAY_DIFFER)
    with display or make_display() as shown, MetricsLog(directory.metrics) as metrics:
        asyncio.run(Trainer(config, parts, directory, metrics, shown).run())
    return directory


def _require_demonstrations(config: Config, parts: Parts) -> None:
    """Finds out that there is nothing to imitate before a run is begun that could not be begun again."""
    if config.cold_start is None:
        return
    if config.cold_start.chats is not None:
        read_chats(config.cold_start.chats, parts.render)
    elif type(parts.env).expert is Env.expert:
        parts.env.expert()  # its error says what to do


class Trainer:
    """One run: its parts, its learner, and what it writes down."""

    def __init__(
        self, config: Config, parts: Parts, directory: RunDirectory, metrics: MetricsLog, display: Display
    ) -> None:
        self.config, self.parts, self.directory = config, parts, directory
        self.metrics, self.display = metrics, display
        self.checkpoints = Checkpoints(directory.checkpoints, keep=config.checkpoint.keep)
        self.player = parts.player(config, config.rollout)
        self.tasks = Shuffled(parts.train_tasks, per_step=config.rollout.tasks, seed=self._seed("tasks"))

    async def run(self) -> None:
        """A cold start, then steps of reinforcement learning, each evaluated and saved when it is due."""
        learner, step = await self._begin()
        if step < self.config.steps:
            self.display.stage("training", self.config.steps)
        while step < self.config.steps:
            began = time.monotonic()
            groups = await self._sample(step)
            sampled = time.monotonic()
            update = learner.update(groups, seed=self._seed("update", step))
            step += 1
            self._record(step, groups, update, rollout=sampled - began, learn=time.monotonic() - sampled)
            if self._due(step, self.config.evaluate.every):
                await self._evaluate("evaluate", step)
            if self._due(step, self.config.checkpoint.every):
                self._save(step, learner)

    async def _begin(self) -> tuple[Learner, int]:
        """Where training starts: at the last checkpoint, or after the cold start of a new run."""
        last = self.checkpoints.latest()
        if last is not None:
            return await self._restore(last)
        self.metrics.truncate_after(-1)
        self.display.stage("preparation", 0)
        if self.config.evaluate.untrained:
            await self._evaluate("untrained", 0)
        if self.config.cold_start is not None:
            await self._imitate()
        learner = self._make_learner()
        await self._evaluate("evaluate", 0)
        self._save(0, learner)
        self.checkpoints.pin(0)
        return learner, 0

    async def _sample(self, step: int) -> list[Group]:
        await self._load_engine(step)
        return await run_groups(
            self.player,
            self.parts.env,
            self.tasks.draw(step),
            responses=self.config.rollout.responses,
            seed=self._seed("rollout", step),
            concurrency=self.config.rollout.concurrency,
            progress=self._progress("episodes"),
        )

    async def _imitate(self) -> None:
        """The cold start; its demonstrations are stored beside the trajectories that follow."""
        settings, parts, seed = self.config.cold_start, self.parts, self._seed("cold start")
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
        self._store("cold_start", 0, [Group(task=one.task, trajectories=(one,)) for one in demonstrations])
        self.display.stage("cold start", imitation_steps(len(demonstrations), settings))
        began = time.monotonic()
        losses = imitate_all(parts.loaded.model, demonstrations, settings, seed=seed, autocast=parts.autocast)
        with seeded(derive_seed(seed, "dropout"), parts.loaded.device):
            for step, metrics in enumerate(losses, 1):
                began, seconds = time.monotonic(), time.monotonic() - began
                self._tell("cold_start", step, metrics | {"sft/tokens_per_second": metrics["sft/tokens"] / seconds})

    async def _evaluate(self, stage: str, step: int) -> None:
        """Held-out success, on the same tasks with the same luck every time."""
        await self._load_engine(step)
        settings = self.config.evaluate
        result = await evaluate(
            self.parts.player(self.config, settings),
            self.parts.env,
            self.parts.test_tasks,
            responses=settings.responses,
            seed=self._seed("evaluate"),
            progress=self._progress(f"evaluation after step {step}"),
        )
        self.metrics.write(step, stage, result.metrics())
        self._store(stage, step, result.groups)
        self.display.note(f"{stage}, step {step}: {result}")

    async def _load_engine(self, version: int) -> None:
        """Gives the engine the newest weights: always just before it plays, so that no cache of what it played before
        is left, which a resumed run would not have; sums would round otherwise."""
        await self.parts.engine.load(self.parts.loaded.model.state_dict(), version)

    async def _restore(self, checkpoint: Path) -> tuple[Learner, int]:
        state = load_state(checkpoint / "state.pt")
        step = state["step"]
        assert isinstance(step, int)
        self.checkpoints.hold(step)
        load_weights(self.parts.loaded.model, checkpoint / "model")
        learner = self._make_learner()
        learner.load_state_dict(state["learner"])  # type: ignore[arg-type]  # what `_save` wrote
        restore_rng(state["rng"])  # type: ignore[arg-type]  # likewise
        self.metrics.truncate_after(step, stages={"train", "evaluate"})
        self.display.note(f"resumed after step {step}")
        return learner, step

    def _make_learner(self) -> Learner:
        return Learner(
            self.parts.loaded.model,
            settings=self.config.learner,
            credit=self.config.credit,
            loss=self.config.loss,
            temperature=self.config.rollout.temperature,
            total_steps=self.config.steps,
            device=self.parts.loaded.device,
            autocast=self.parts.autocast,
        )

    def _save(self, step: int, learner: Learner) -> None:
        def write(folder: Path) -> None:
            save_model(self.parts.loaded.model, self.parts.loaded.tokenizer, folder / "model")
            save_state(folder / "state.pt", {"step": step, "learner": learner.state_dict(), "rng": dict(capture_rng())})

        self.checkpoints.save(step, write)

    def _record(self, step: int, groups: Sequence[Group], update: Update, *, rollout: float, learn: float) -> None:
        summary = summarise(groups)
        pace = {
            "rollout/tokens_per_second": summary["rollout/action_tokens"] / rollout,
            "time/rollout_seconds": rollout,
            "time/update_seconds": learn,
        }
        self._tell("train", step, summary | update.metrics | pace)
        self._store("train", step, groups, update)

    def _tell(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics.write(step, stage, metrics)
        self.display.step(step, metrics)

    def _store(self, stage: str, step: int, groups: Sequence[Group], update: Update | None = None) -> None:
        places = [(g, m) for g, group in enumerate(groups) for m in range(len(group.trajectories))]
        advantages = {
            place: [one for turn in turns for one in turn]
            for place, turns in zip(places, update.advantages if update else [()] * len(places), strict=True)
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
