"""Groups that go on playing while the learner updates, under a bound on the age of the weights they began with.

Invariant: a group begun with version v is learnt from at step v + staleness at the latest. No more groups are begun
than the steps in reach will learn from, and a step leaves no more behind than the next ones can take in time. So a slow
group is passed over while it has time, and neither starved nor dropped, unless `straggler_seconds` limits the wait;
those dropped then are counted. Every group that ends is in one batch.
"""

import asyncio
import logging
import statistics
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from turnwise.agents.base import Agent
from turnwise.envs.base import Env
from turnwise.ledger import Ledger
from turnwise.rollout.collector import GroupFilter, RolloutBatch, fill_batch, make_job, make_task_sampler
from turnwise.rollout.failures import report_failures
from turnwise.rollout.fleet import Fleet, GroupJob, LocalWorker
from turnwise.rollout.limits import RolloutSettings
from turnwise.seeds import derive_seed
from turnwise.tools.watchdog import watching
from turnwise.types import Group, Task

if TYPE_CHECKING:
    import torch

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Play:
    """A group that was begun."""

    number: int
    """Counts all groups of the run, in the order they were begun."""
    place: int
    """Of its task, as the task sampler names it."""
    job: GroupJob
    version: int
    """Of the weights that it was begun with."""
    task: asyncio.Task[Group]

    @property
    def done(self) -> bool:
        return self.task.done()


class _Awaited:
    """What a batch still lacks, counted down."""

    def __init__(self, lacking: Mapping[int, int], show: Callable[[int], None]) -> None:
        """`lacking[v]` groups of those begun with version v or an older one; `show` takes how many the batch lacks."""
        self._lacking, self._show = dict(lacking), show
        self.enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def count(self, play: _Play, *, failed: bool) -> None:
        for version in self._lacking:
            if play.version <= version:
                self._lacking[version] -= 1
        left = max(0, *self._lacking.values())
        self._show(left)
        if (failed or not left) and not self.enough.done():
            self.enough.set_result(None)


class RolloutStream:
    """Plays tasks ahead of the learner; `task_sampler` draws them."""

    def __init__(
        self,
        agent: Agent,
        env: Env,
        tasks: Sequence[Task],
        settings: RolloutSettings,
        *,
        steps: int,
        seed: int,
        ledger: Ledger | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        """`steps` are those of the run: none is sampled for after the last. Without a `fleet`, the agent plays in this
        process."""
        self.task_sampler = make_task_sampler(env, tasks, settings, derive_seed(seed, "tasks"))
        self.fleet = fleet or Fleet([LocalWorker(agent, env, settings, concurrency=settings.concurrency)])
        self._env, self._settings, self._steps = env, settings, steps
        self._seed, self._ledger = derive_seed(seed, "stream"), ledger or Ledger()
        self._version = 0
        self._next = 0
        """The number of the next group."""
        self._drawn: deque[tuple[int | None, int]] = deque()
        """What is begun next: (number, place) of a group to play again, or (None, place) of a task that was drawn."""
        self._begun: list[_Play] = []
        """Playing, or played and not learnt from yet; in the order they were begun."""
        self._late: list[_Play] = []
        """Still playing, and too old to be learnt from once they end."""
        self._dropped: list[Group] = []
        """Ended too late, or before a rollback; they join the next batch without being learnt from."""
        self._awaited: _Awaited | None = None
        self._last_batch: float
        """When the last batch was complete; before the first of all, when that was asked for."""

    @property
    def active(self) -> bool:
        """Whether groups are under way."""
        return bool(self._begun or self._late)

    async def load(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        """New weights for all that is sampled from now on, in the middle of a turn, too."""
        await self.fleet.load(weights, version)
        self._version = version

    async def collect(
        self, step: int, select: GroupFilter, *, refill: int, progress: Callable[[int, int], None]
    ) -> RolloutBatch:
        """The batch of step 0, 1, ...: `groups_per_step` groups, and up to `refill` times as many more while `select`
        keeps too few."""
        clock, wanted = asyncio.get_running_loop().time, self._settings.groups_per_step
        began = clock()
        if not self.active:
            self._last_batch = began
        with self._ledger.spend("environment"), watching():
            batch = await fill_batch(
                lambda number: self._take(step, progress),
                select,
                wanted=wanted,
                refill=refill,
                sampling=self.task_sampler.metrics(),
            )
        self._gather_late()
        dropped, self._dropped = self._dropped, []
        now = clock()
        period, self._last_batch = now - self._last_batch, now
        metrics = {
            **measure_staleness(step, batch.kept),
            **count_dropped(batch.kept, dropped),
            "staleness/wait_seconds": now - began,
            "staleness/groups_ahead": float(len(self._begun)),
        }
        return replace(
            batch,
            groups=(*batch.groups, *dropped),
            seconds=period,
            sampling={**batch.sampling, **self.fleet.metrics(), **metrics},
        )

    async def restart(self) -> None:
        """After a rollback: what was sampled from the abandoned weights is dropped, and what was playing begins again,
        with the same seeds."""
        playing = [play for play in self._begun if not play.done]
        await _cancel(playing)
        self._dropped += [play.task.result() for play in self._begun if play not in playing]
        self._drawn.extendleft((play.number, play.place) for play in reversed(playing))
        self._begun = []

    async def close(self) -> None:
        """Ends what is still playing."""
        under_way = [play for play in (*self._begun, *self._late) if not play.done]
        await _cancel(under_way)
        if self._late:
            _logger.warning("%d groups were too late to be learnt from and still playing at the end", len(self._late))
        self._begun, self._late = [], []
        await self.fleet.close()

    def state_dict(self) -> dict[str, object]:
        """All that was begun and not learnt from, as jobs: a resumed run plays them again, by the same seeds."""
        again = [[play.number, play.place] for play in (*self._late, *self._begun)]
        drawn = [[number, place] for number, place in self._drawn]
        return {"sampler": self.task_sampler.state_dict(), "next": self._next, "drawn": again + drawn}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        sampler, number, drawn = state["sampler"], state["next"], state["drawn"]
        assert isinstance(sampler, Mapping)
        assert isinstance(number, int)
        assert isinstance(drawn, list)
        self.task_sampler.load_state_dict(sampler)
        self._next, self._drawn = number, deque((number, place) for number, place in drawn)

    def _in_reach(self, step: int) -> int:
        """The groups that this step and those within the bound learn from."""
        steps = min(self._settings.staleness, self._steps - 1 - step) + 1
        return steps * self._settings.groups_per_step

    def _begin(self, most: int) -> None:
        """Begins groups until this many are under way or wait to be learnt from."""
        while len(self._begun) < most:
            if not self._drawn:
                self._drawn.extend((None, place) for place in self.task_sampler.draw(self._settings.groups_per_step))
            number, place = self._drawn.popleft()
            if number is None:
                number, self._next = self._next, self._next + 1
            job = make_job(self._env, self.task_sampler.task(place), self._settings, seed=self._seed, index=number)
            task = asyncio.get_running_loop().create_task(self.fleet.play(job))
            play = _Play(number=number, place=place, job=job, version=self._version, task=task)
            task.add_done_callback(partial(self._note_end, play))
            self._begun.append(play)

    async def _take(self, step: int, progress: Callable[[int, int], None]) -> list[Group]:
        """As many groups as a step has, of those that have ended: the oldest, once what must be among them is."""
        wanted, patience = self._settings.groups_per_step, self._settings.straggler_seconds
        self._drop_overtaken(step)
        self._begin(self._in_reach(step))
        clock = asyncio.get_running_loop().time
        until, in_time = None if patience is None else clock() + patience, True

        def show(lacking: int) -> None:
            progress((wanted - lacking) * self._settings.group_size, wanted * self._settings.group_size)

        while lacking := self._count_lacking(step, leaves_room=in_time):
            show(max(lacking.values()))
            left = None if until is None else until - clock()
            if left is not None and left <= 0:
                self._drop_stragglers(step)
                until, in_time = None, False
                continue
            await self._wait_for(_Awaited(lacking, show), left)
        show(0)
        ended = [play for play in self._begun if play.done]
        chosen = sorted(ended, key=lambda play: (play.version, play.number))[:wanted]
        self._begun = _without(self._begun, chosen)
        chosen.sort(key=lambda play: play.number)
        groups = [play.task.result() for play in chosen]
        report_failures([one for group in groups for one in group.trajectories], most=self._settings.max_failures)
        self.task_sampler.learn([play.place for play in chosen], groups)
        return groups

    async def _wait_for(self, awaited: "_Awaited", seconds: float | None) -> None:
        """Until as many groups have ended as a batch lacks at the least, one has failed, or the time is up.

        Groups are counted as they end: thousands are under way, and looking at all of them for each would take longer
        than they play.
        """
        self._awaited = awaited
        try:
            await asyncio.wait([awaited.enough], timeout=seconds)
        finally:
            self._awaited = None

    def _note_end(self, play: _Play, task: asyncio.Task[Group]) -> None:
        if self._awaited is not None and not task.cancelled():
            self._awaited.count(play, failed=task.exception() is not None)

    def _count_lacking(self, step: int, *, leaves_room: bool) -> dict[int, int]:
        """How many more groups must end before this step has its batch, by version: of those begun with it or an older
        one. Empty where it has; a failure in any group is raised.

        The last step of groups begun with version v or an older one is v + staleness at the latest. What steps after
        this one cannot take of them by then, this one must; without `leaves_room`, only those whose last step it is.
        """
        for play in self._begun:
            if play.done and (error := play.task.exception()) is not None:
                raise error
        wanted, staleness = self._settings.groups_per_step, self._settings.staleness
        lacking = {step: wanted - sum(play.done for play in self._begun)}
        for later in range(staleness) if leaves_room else (0,):
            version = step + later - staleness
            begun = [play for play in self._begun if play.version <= version]
            lacking[version] = min(wanted, len(begun) - later * wanted) - sum(play.done for play in begun)
        return {version: groups for version, groups in lacking.items() if groups > 0}

    def _is_due(self, play: _Play, step: int) -> bool:
        return play.version + self._settings.staleness <= step

    def _drop_stragglers(self, step: int) -> None:
        """Waits no longer for groups whose last step this is; others take their places."""
        late = [play for play in self._begun if not play.done and self._is_due(play, step)]
        self._late += late
        self._begun = _without(self._begun, late)
        self._begin(self._in_reach(step))

    def _drop_overtaken(self, step: int) -> None:
        """Groups older than the bound: there are none unless a step that dropped stragglers took younger ones."""
        overtaken = [play for play in self._begun if play.version + self._settings.staleness < step]
        self._late += overtaken
        self._begun = _without(self._begun, overtaken)

    def _gather_late(self) -> None:
        """Drops late groups that have ended."""
        ended = [play for play in self._late if play.done]
        self._late = [play for play in self._late if not play.done]
        groups = [play.task.result() for play in ended]
        self.task_sampler.learn([play.place for play in ended], groups)
        self._dropped += groups


def _without(plays: Sequence[_Play], removed: Sequence[_Play]) -> list[_Play]:
    numbers = {play.number for play in removed}
    return [play for play in plays if play.number not in numbers]


async def _cancel(plays: Sequence[_Play]) -> None:
    for play in plays:
        play.task.cancel()
    await asyncio.gather(*(play.task for play in plays), return_exceptions=True)


def measure_staleness(step: int, groups: Sequence[Group]) -> dict[str, float]:
    """The age of the tokens that a step learns from, in steps: `{"staleness/mean": .8, "staleness/max": 1.0}`."""
    tokens: Counter[int] = Counter()  # by age
    for turn in (turn for group in groups for one in group.trajectories for turn in one.turns):
        ends = (*(first for first, _ in turn.versions[1:]), len(turn.action_ids))
        for (first, version), end in zip(turn.versions, ends, strict=True):
            tokens[step - version] += end - first
    if not tokens.total():
        return {}
    return {
        "staleness/mean": sum(age * count for age, count in tokens.items()) / tokens.total(),
        "staleness/max": float(max(tokens)),
        "staleness/mixed_turns": _share_of_mixed_turns(groups),
    }


def _share_of_mixed_turns(groups: Sequence[Group]) -> float:
    """The share of turns that more than one version of the weights sampled."""
    mixed = [len(turn.versions) > 1 for group in groups for one in group.trajectories for turn in one.turns]
    return sum(mixed) / len(mixed)


def count_dropped(kept: Sequence[Group], dropped: Sequence[Group]) -> dict[str, float]:
    """How many groups were dropped by age, and how long their episodes were beside those that are learnt from."""
    metrics = {"staleness/dropped_groups": float(len(dropped))}
    for name, groups in (("dropped", dropped), ("learnt", kept)):
        tokens = [one.action_tokens for group in groups for one in group.trajectories]
        if tokens and dropped:
            metrics[f"staleness/{name}_episode_tokens"] = statistics.fmean(tokens)
    return metrics
