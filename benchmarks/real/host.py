"""What the host does in a training step, without a GPU: episodes of a real run are played again by a scripted engine.

The engine answers with the stored turns and sleeps for as long as a GPU would take, so that whatever runs beside it
counts only where it does not fit into that time. Environment, search, rendering, rewards, batch and store are the real
ones. Nothing is trained.
"""

import asyncio
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.agents import PolicyAgent
from turnwise.compute.garbage import reduced_gc
from turnwise.config import Config, load_config
from turnwise.engines.base import Completion, EngineStats, Sampling
from turnwise.envs.base import Env
from turnwise.envs.registry import make_env
from turnwise.learner.batch import Batch
from turnwise.ledger import Ledger
from turnwise.render import Render, make_render
from turnwise.rollout import run_groups
from turnwise.runs import Checkpoints, RunDirectory
from turnwise.runs.store import prepare_trajectories, read_trajectories
from turnwise.types import Group, Trajectory

if TYPE_CHECKING:
    import torch

_DELIVERED_AT_ONCE = 64
"""As the local engine does on a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long a GPU takes: measured on SmolLM2-135M with 256 slots."""

    prefill_tokens_per_second: float = 600_000.0
    decode_step_seconds: float = 0.0012


@dataclass(slots=True, kw_only=True)
class _Request:
    answer: Completion
    future: asyncio.Future[Completion]
    unread: int
    left: int


class ReplayEngine:
    """Answers each session with the turns that were stored for it, a token of every turn at a time."""

    def __init__(self, latency: Latency, *, context_limit: int, ledger: Ledger) -> None:
        self.context_limit = context_limit
        self._latency, self._ledger = latency, ledger
        self._turns: dict[str, deque[Completion]] = {}
        self._read: dict[str, int] = {}
        self._waiting: list[_Request] = []
        self._finished: deque[_Request] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def stats(self) -> EngineStats:
        return EngineStats()

    def script(self, session: str, trajectory: Trajectory) -> None:
        """Makes a session repeat what was sampled in this trajectory."""
        self._turns[session] = deque(
            Completion(ids=turn.action_ids, logprobs=turn.logprobs, finish=turn.finish, version=turn.version)
            for turn in trajectory.turns
        )
        self._read[session] = 0

    async def generate(self, session: str, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        answer = self._turns[session].popleft()
        unread = len(prompt_ids) - self._read[session]
        self._read[session] = len(prompt_ids) + len(answer.ids)
        loop = asyncio.get_running_loop()
        request = _Request(answer=answer, future=loop.create_future(), unread=unread, left=len(answer.ids))
        self._waiting.append(request)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._drain())
        return await request.future

    async def _drain(self) -> None:
        while self._waiting or self._finished:
            self._prefill()
            self._decode()
            for _ in range(min(_DELIVERED_AT_ONCE, len(self._finished))):
                done = self._finished.popleft()
                done.future.set_result(done.answer)
            await asyncio.sleep(0)

    def _prefill(self) -> None:
        tokens = sum(request.unread for request in self._waiting)
        if tokens:
            with self._ledger.spend("prefill"):
                time.sleep(tokens / self._latency.prefill_tokens_per_second)
        for request in self._waiting:
            request.unread = 0

    def _decode(self) -> None:
        if not self._waiting:
            return
        with self._ledger.spend("decode"):
            time.sleep(self._latency.decode_step_seconds)
        for request in self._waiting:
            request.left -= 1
        self._finished += [request for request in self._waiting if not request.left]
        self._waiting = [request for request in self._waiting if request.left]

    async def end(self, session: str) -> None:
        """Nothing is kept for a session."""

    async def load(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        """There are no weights."""


def measure_host(run: Path, tokenizer: Path | None, *, rounds: int, own_time: bool) -> dict[str, object]:
    """Plays the stored training steps of a run `rounds` times; medians of the seconds of a step, by account.

    With `own_time`, seconds are those that the main thread spent on a core: neither waiting nor what other threads and
    programs did meanwhile.
    """
    from transformers import AutoTokenizer

    config, directory = load_config(run / "config.yaml"), RunDirectory.open(run)
    files = sorted(directory.trajectories.glob("train-*.parquet"))
    folder = tokenizer or (Checkpoints(directory.checkpoints).latest() or run) / "model"
    clock = time.thread_time if own_time else time.perf_counter
    steps: list[dict[str, float]] = []
    groups: list[Group] = []
    for _ in range(rounds):
        # Made anew: what a step has kept must not help to play the same step again.
        env = make_env(config.env)
        render = make_render(AutoTokenizer.from_pretrained(folder), config.render)
        for file in files:
            groups = read_trajectories(file)
            with reduced_gc():
                steps.append(_play_step(config, env, render, groups, Ledger(clock)))
    names = sorted({name for step in steps for name in step})
    medians = {name: round(statistics.median(step.get(name, 0.0) for step in steps), 3) for name in names}
    episodes = sum(len(group.trajectories) for group in groups)
    return {"episodes": episodes, "steps": len(steps), "seconds": medians}


def _play_step(config: Config, env: Env, render: Render, groups: Sequence[Group], ledger: Ledger) -> dict[str, float]:
    engine = ReplayEngine(Latency(), context_limit=config.rollout.context_tokens or 4096, ledger=ledger)
    size = len(groups[0].trajectories)
    for index, group in enumerate(groups):
        for member, trajectory in enumerate(group.trajectories):
            engine.script(f"0/{index}/{member}", trajectory)
    agent = PolicyAgent(engine=engine, render=render, decoding=config.rollout, ledger=ledger)
    with asyncio.Runner(loop_factory=ledger.new_event_loop) as runner:
        played = runner.run(
            run_groups(
                agent,
                env,
                [group.task for group in groups],
                group_size=size,
                seed=0,
                limits=config.rollout,
                concurrency=config.rollout.concurrency,
                ledger=ledger,
            )
        )
    _check_same(played, groups)
    with ledger.spend("update"):
        Batch.of(played, tails=False)
    with tempfile.TemporaryDirectory() as folder:
        with ledger.spend("store"):
            write = prepare_trajectories(Path(folder) / "step.parquet", 0, played, None, render.decode)
        with ledger.spend("behind"):  # in training, a thread does this beside the next step
            write()
    entry = ledger.close_step()
    return {**entry.seconds, "whole": entry.wall}


def _check_same(played: Sequence[Group], stored: Sequence[Group]) -> None:
    """Every token that was read, and every reward, is that of the stored run."""
    for one, other in zip(played, stored, strict=True):
        for mine, theirs in zip(one.trajectories, other.trajectories, strict=True):
            assert [turn.context_ids for turn in mine.turns] == [turn.context_ids for turn in theirs.turns], "contexts"
            assert mine.reward == theirs.reward, "rewards"
