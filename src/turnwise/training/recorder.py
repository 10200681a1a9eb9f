"""What a run writes down and shows: metrics, trajectories, findings, the ledger, the report, the display, callbacks.

Invariant: recording never changes training; metrics are written before they are shown or passed to a callback, and a
resumed run's files equal those of an uninterrupted one, apart from times. Trajectories are written behind the run, and
are on the disk before a checkpoint is.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from turnwise.checks.diagnosis import Diagnosis
from turnwise.engines.base import Engine
from turnwise.envs.base import Env
from turnwise.evaluation import Evaluation
from turnwise.learner.batch import PerTurn
from turnwise.learner.update import Update
from turnwise.ledger import Ledger
from turnwise.rewards.judge_client import CostMeter
from turnwise.rollout import RolloutBatch, summarise
from turnwise.rollout.fleet import Fleet
from turnwise.runs import Display, MetricsLog, Record, RunDirectory, read_metrics
from turnwise.runs.background import BackgroundWriter
from turnwise.runs.findings import FindingsLog, read_findings
from turnwise.runs.ledger.recorder import LedgerRecorder
from turnwise.runs.report.writer import write_report
from turnwise.runs.retention import Retention, count_thinned
from turnwise.runs.settings import TrajectorySettings
from turnwise.runs.store import DecodeMany, prepare_trajectories
from turnwise.stability import Decision
from turnwise.training.callbacks import Callback
from turnwise.training.step_checks import StepChecks
from turnwise.types import Group, Trajectory

_REPORT_INTERVAL = 60.0
"""Seconds between two reports of a run that is still training: each reads all its metrics again."""


class Recorder:
    """Everything the trainer reports goes through here; a context manager, so that files and callbacks are closed."""

    def __init__(
        self,
        directory: RunDirectory,
        display: Display,
        *,
        ledger: Ledger,
        engine: Engine,
        env: Env,
        fleet: Fleet | None = None,
        keep: TrajectorySettings,
        decode_many: DecodeMany,
        callbacks: Callback,
        checks: StepChecks | None = None,
        warnings: Sequence[Diagnosis] = (),
    ) -> None:
        """Files are made beneath the directory; `warnings` are told, and recorded, when a new run starts."""
        self._directory, self._display, self._ledger = directory, display, ledger
        self._decode_many, self._callbacks, self._checks = decode_many, callbacks, checks
        self._warnings = warnings
        self._metrics = MetricsLog(directory.metrics)
        self._findings = FindingsLog(directory.path / "findings.jsonl")
        self._ledger_recorder = LedgerRecorder(ledger, engine)
        self._writer = BackgroundWriter()
        self._retention = Retention(directory.trajectories, keep)
        self._judges = CostMeter()
        self._env, self._fleet, self._lost = env, fleet, 0
        self._worker_counts = self._all_worker_counts()
        self._reported = self._lap = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._writer.__exit__(kind, error, trace)
        finally:
            self._metrics.close()
            self._callbacks.on_run_end(error is None)

    def flush(self) -> None:
        """Waits for what is written behind the run: to be called before a checkpoint that stands for it."""
        with self._ledger.spend("store"):
            self._writer.flush()

    def start(self) -> None:
        """A run without a checkpoint starts from the beginning, whatever it recorded before."""
        self._metrics.truncate_after(-1)
        self._findings.truncate_after(-1)
        self._record_diagnoses(0, self._warnings)
        self.start_stage("preparation", 0)

    def resume(self, step: int, *, finished: bool) -> None:
        """Drops records after the checkpoint of `step`: the steps that the run repeats."""
        self._metrics.truncate_after(step, stages={"train", "evaluate"})
        if not finished:
            self._metrics.truncate_after(-1, stages={"end"})
        self._findings.truncate_after(step)
        if self._checks is not None:
            self._checks.reported = {str(one["kind"]) for one in read_findings(self._findings.path)}
        self._display.note(f"resumed after step {step}")

    def resume_sft(self, step: int, total: int) -> None:
        """Drops records after this step of the cold start, which the run repeats."""
        self._metrics.truncate_after(step, stages={"sft"})
        self._metrics.truncate_after(-1, stages={"evaluate", "train", "end"})
        self._findings.truncate_after(0)
        self._display.note(f"resumed in the cold start, after {step} of its {total} steps")

    def record_slow_sampling(self, reason: str) -> None:
        """Reports that the model's own forward samples, which is many times slower than the fused one."""
        sentence = f"sampling is many times slower than it could be: {reason}"
        self._findings.write({"step": 0, "kind": "slow_sampling", "severity": "alarm", "sentence": sentence})
        self._display.note(sentence)

    def start_stage(self, name: str, total: int) -> None:
        self._display.stage(name, total)
        self._lap = time.monotonic()

    def show_progress(self, what: str) -> Callable[[int, int], None]:
        """Shows how far a long step has come: `show_progress("episodes")(37, 128)`."""
        return lambda done, total: self._display.progress(done, total, what)

    def record_demonstrations(self, trajectories: Sequence[Trajectory]) -> None:
        self._store("sft", 0, [Group(task=one.task, trajectories=(one,)) for one in trajectories])

    def record_sft_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._lap, seconds = time.monotonic(), time.monotonic() - self._lap
        pace = {"sft/tokens_per_second": metrics["sft/tokens"] / seconds}
        found = {**metrics, **pace, **self._ledger_recorder.close()}
        self._write("sft", step, found)
        with self._ledger.spend("store"):
            self._callbacks.on_sft_step_end(step, found)

    def record_step(
        self, step: int, rollouts: RolloutBatch, update: Update, decision: Decision, *, update_seconds: float
    ) -> None:
        with self._ledger.spend("store"):
            summary = summarise(rollouts.groups)
            pace = {
                "rollout/tokens_per_second": summary["rollout/action_tokens"] / rollouts.seconds,
                "time/rollout_seconds": rollouts.seconds,
                "time/update_seconds": update_seconds,
            }
            kept = rollouts.selection.kept
            self._store("train", step, rollouts.groups, kept, update)
            spent = self._ledger_recorder.close_training(rollouts.groups, kept, update)
            metrics = {**summary, **rollouts.metrics(), **update.metrics, **decision.metrics, **pace, **spent}
            metrics |= self._judges.read() | self._count_workers()
            self._write("train", step, metrics)
            self._callbacks.on_step_end(step, metrics)
        self._report_lost(step)
        with self._ledger.spend("diagnose"):
            found = self._checks.observe(step, rollouts.groups, rollouts.kept, update) if self._checks else []
        self._record_diagnoses(step, found)
        for event in decision.events:
            self._findings.write(event.to_json())
            self._display.note(f"step {step}: {event.sentence}")
            self._callbacks.on_finding(step, event)

    def _record_diagnoses(self, step: int, found: Iterable[Diagnosis]) -> None:
        for diagnosis in found:
            self._findings.write({"step": step, **diagnosis.to_json()})
            self._display.note(f"step {step}: {diagnosis.sentence}")
            self._callbacks.on_finding(step, diagnosis)

    def _report_lost(self, step: int) -> None:
        """Reports rollout workers that were lost since the last step."""
        if self._fleet is None or self._fleet.lost == self._lost:
            return
        lost, self._lost = self._fleet.lost - self._lost, self._fleet.lost
        times = "a rollout worker was lost" if lost == 1 else f"rollout workers were lost {lost} times"
        sentence = f"{times}: what was being played there was played again elsewhere, with the same seeds"
        self._findings.write({"step": step, "kind": "worker_lost", "severity": "sign", "sentence": sentence})
        self._display.note(f"step {step}: {sentence}")

    def record_evaluation(self, stage: str, step: int, result: Evaluation) -> None:
        self._store(stage, step, result.groups)
        metrics = result.metrics() | self._ledger_recorder.close_evaluation(result.groups) | self._judges.read()
        self._metrics.write(step, stage, metrics)
        self._display.note(f"{stage}, step {step}: {result}")
        with self._ledger.spend("store"):
            self._callbacks.on_evaluation(stage, step, metrics)

    def record_checkpoint(self, step: int, path: Path) -> None:
        with self._ledger.spend("store"):
            self._callbacks.on_checkpoint(step, path)
        if time.monotonic() - self._reported > _REPORT_INTERVAL:
            self._write_report()

    def finish(self, step: int) -> None:
        """Records the time after the last step, once, and writes the report, whose own time is in the record, too."""
        self.flush()
        if any(record["stage"] == "end" for record in read_metrics(self._directory.metrics)):
            return
        spent = self._ledger_recorder.close()
        self._write_report({"step": step, "stage": "end", **spent})
        later = self._ledger_recorder.close()
        totals = later | {name: spent[name] + later.get(name, 0.0) for name in spent}
        thinned = count_thinned(self._directory.trajectories)
        if thinned.dropped or thinned.without_numbers:
            counts = {"dropped": thinned.dropped, "without_numbers": thinned.without_numbers}
            totals |= {f"store/episodes_{name}": float(count) for name, count in counts.items()}
        self._metrics.write(step, "end", totals)

    def _write_report(self, *unwritten: Record) -> None:
        with self._ledger.spend("store"):
            write_report(self._directory, *unwritten)
        self._reported = time.monotonic()

    def _count_workers(self) -> dict[str, float]:
        """What happened to environment workers since this was last asked: `{"workers/deaths": 1.0, ...}`."""
        before, self._worker_counts = self._worker_counts, self._all_worker_counts()
        return {f"workers/{name}": float(count - before[name]) for name, count in self._worker_counts.items()}

    def _all_worker_counts(self) -> Counter[str]:
        """Of this process's environment, and of those that rollout workers have."""
        counts = Counter(self._env.host.counts())
        counts.update({} if self._fleet is None else self._fleet.env_counts())
        return counts

    def _write(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        self._metrics.write(step, stage, metrics)
        self._display.step(step, metrics)

    def _store(
        self, stage: str, step: int, groups: Sequence[Group], kept: Sequence[int] = (), update: Update | None = None
    ) -> None:
        """Writes all groups, with what the update computed of the tokens of those it trained on, `kept` by index."""
        with self._ledger.spend("store"):
            places = [(group, member) for group in kept for member in range(len(groups[group].trajectories))]
            computed: Mapping[str, PerTurn] = {}
            if update is not None:
                computed = {
                    "advantages": update.advantages,
                    "learner_logprobs": update.logprobs,
                    "entropies": update.entropies,
                }
            per_token = {name: _by_place(places, turns) for name, turns in computed.items() if turns}
            file = self._directory.trajectory_file(stage, step)
            write = prepare_trajectories(file, step, groups, per_token, self._decode_many)

            def write_and_thin() -> None:
                write()
                self._retention.thin()

            self._writer.submit(write_and_thin)


def _by_place(places: Sequence[tuple[int, int]], trajectories: PerTurn) -> dict[tuple[int, int], list[float]]:
    """The numbers of each trajectory that was trained on, its turns end to end."""
    return {
        place: [one for turn in turns for one in turn]
        for place, turns in zip(places, trajectories, strict=True)
        if turns
    }
