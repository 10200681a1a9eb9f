"""What the host does in a training step, without a GPU: episodes of a real run are played again by the local engine.

Only its forwards are stood in for: they give the stored turns after as long as a GPU would take, so that whatever runs
beside them counts only where it does not fit into that time. Slots, environment, search, rendering, rewards, batch and
store are the real ones. Nothing is trained.
"""

import asyncio
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.real.replay_runner import Latency, ReplayRunner, replaying_engine
from turnwise.agents import PolicyAgent
from turnwise.compute.garbage import reduced_gc
from turnwise.config import Config, load_config
from turnwise.engines.settings import LocalEngineSettings
from turnwise.envs.base import Env
from turnwise.envs.registry import make_env
from turnwise.learner.batch import Batch
from turnwise.ledger import Ledger
from turnwise.render import Render, make_render
from turnwise.render.base import decode_many
from turnwise.rollout import run_groups
from turnwise.runs import Checkpoints, RunDirectory
from turnwise.runs.store import prepare_trajectories, read_trajectories
from turnwise.seeds import derive_seed
from turnwise.types import Group

_SEED = 0


def measure_host(run: Path, tokenizer: Path | None, *, rounds: int, own_time: bool) -> dict[str, object]:
    """Plays the stored training steps of a run `rounds` times; medians of the seconds of a step, by account, and how
    often the engine launched what.

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
    launches: Counter[str] = Counter()
    for _ in range(rounds):
        # Made anew: what a step has kept must not help to play the same step again.
        env = make_env(config.env)
        render = make_render(AutoTokenizer.from_pretrained(folder), config.render)
        for file in files:
            groups = read_trajectories(file)
            with reduced_gc():
                steps.append(_play_step(config, env, render, groups, Ledger(clock), launches))
    names = sorted({name for step in steps for name in step})
    medians = {name: round(statistics.median(step.get(name, 0.0) for step in steps), 3) for name in names}
    episodes = sum(len(group.trajectories) for group in groups)
    means = {name: round(count / len(steps), 1) for name, count in sorted(launches.items())}
    return {"episodes": episodes, "steps": len(steps), "seconds": medians, "launches": means}


def _play_step(
    config: Config, env: Env, render: Render, groups: Sequence[Group], ledger: Ledger, launches: Counter[str]
) -> dict[str, float]:
    played = _play_episodes(config, env, render, groups, ledger, launches)
    _check_same(played, groups)
    with ledger.spend("update"):
        Batch.of(played, tails=False)
    with tempfile.TemporaryDirectory() as folder:
        with ledger.spend("store"):
            write = prepare_trajectories(Path(folder) / "step.parquet", 0, played, None, partial(decode_many, render))
        with ledger.spend("behind"):  # in training, a thread does this beside the next step
            write()
    entry = ledger.close_step()
    return {**entry.seconds, "whole": entry.wall}


def _play_episodes(
    config: Config, env: Env, render: Render, groups: Sequence[Group], ledger: Ledger, launches: Counter[str]
) -> list[Group]:
    assert isinstance(config.engine, LocalEngineSettings), "the run was sampled in its own process"
    turns = {
        derive_seed(derive_seed(_SEED, "luck", index, member), "turn", number): turn.action_ids
        for index, group in enumerate(groups)
        for member, trajectory in enumerate(group.trajectories)
        for number, turn in enumerate(trajectory.turns)
    }
    runner = ReplayRunner(slots=config.engine.slots, latency=Latency(), turns=turns)
    limit = config.rollout.context_tokens or 4096
    with (
        replaying_engine(config.engine, runner, context_limit=limit, ledger=ledger) as engine,
        asyncio.Runner(loop_factory=ledger.new_event_loop) as loop,
    ):
        agent = PolicyAgent(engine=engine, render=render, decoding=config.rollout, ledger=ledger)
        played: list[Group] = []

        async def play() -> None:
            played.extend(
                await run_groups(
                    agent,
                    env,
                    [group.task for group in groups],
                    group_size=len(groups[0].trajectories),
                    seed=_SEED,
                    limits=config.rollout,
                    concurrency=config.rollout.concurrency,
                    ledger=ledger,
                )
            )

        loop.run(play())  # without a result: asyncio's runner takes the repr of the task, and so of its result
    launches += runner.counts
    return played


def _check_same(played: Sequence[Group], stored: Sequence[Group]) -> None:
    """Every token that was read, and every reward, is that of the stored run."""
    for one, other in zip(played, stored, strict=True):
        for mine, theirs in zip(one.trajectories, other.trajectories, strict=True):
            assert [turn.context_ids for turn in mine.turns] == [turn.context_ids for turn in theirs.turns], "contexts"
            assert mine.reward == theirs.reward, "rewards"
