"""Nobody waits for anybody: tools run while others decode, those who wait hold no slot, and tails leave no gaps.

Where a wait can only end by the work of others (an event, a barrier), a rollout that did not overlap would never end.
"""

import asyncio
import threading

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from byte_render import Scripted, Watched, policy, says
from turnwise.engines import LocalEngineSettings
from turnwise.engines.local.engine import LocalEngine
from turnwise.ledger import Ledger
from turnwise.rollout import Limits, run_groups
from turnwise.tools import tool
from turnwise.types import Step, Task

PATIENCE = 20
TURN = 8
"""The most tokens of a turn: one from its prefill and the rest from decode steps."""


def local_engine(slots: int) -> LocalEngine:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.4,
    )
    return LocalEngine(LlamaForCausalLM(config).eval(), settings=LocalEngineSettings(slots=slots))


def run(engine, env, names, *, concurrency=1024, turns=64):
    limits = Limits(max_turns=turns, turn_tokens=TURN)
    tasks = [Task(id=name) for name in names]
    rollout = run_groups(policy(engine), env, tasks, group_size=1, seed=5, limits=limits, concurrency=concurrency)
    groups = asyncio.run(asyncio.wait_for(rollout, PATIENCE))
    return {group.task.id: group.trajectories[0] for group in groups}


def tokens(episodes):
    return {name: [turn.action_ids for turn in episode.turns] for name, episode in episodes.items()}


class Others:
    """Answers all tasks but `slow` at once, three times each; `done` is set when all of them are over."""

    def __init__(self, engine: LocalEngine, count: int) -> None:
        self.engine, self.left = engine, count
        self.done = asyncio.Event()
        self.sampled_meanwhile = 0

    async def answer(self, episode) -> Step:
        if episode.turn < 3:
            return says("go on")
        self.left -= 1
        if not self.left:
            self.done.set()
        return Step(done=True)

    async def wait(self) -> None:
        before = self.engine.stats.decode_tokens
        await self.done.wait()
        self.sampled_meanwhile = self.engine.stats.decode_tokens - before


def test_others_decode_while_a_tool_is_awaited():
    """The tool of one episode takes exactly as long as all the other episodes together."""
    engine = local_engine(slots=4)
    others = Others(engine, 3)

    async def answer(episode) -> Step:
        if episode.task.id != "slow":
            return await others.answer(episode)
        await others.wait()
        return Step(done=True)

    episodes = run(engine, Scripted(answer), ["slow", "b", "c", "d"])
    later = [turn for name in "bcd" for turn in episodes[name].turns[1:]]
    assert len(later) == 6
    assert others.sampled_meanwhile >= sum(len(turn.action_ids) - 1 for turn in later)


def test_a_tool_that_blocks_runs_in_a_thread_and_stops_nobody():
    """A plain function may block for as long as it likes; the loop goes on, or this would end by the tool's timeout."""
    engine = local_engine(slots=4)
    others = Others(engine, 3)
    over = threading.Event()

    @tool(timeout=PATIENCE / 2)
    def block() -> str:
        """Waits until everyone else is done."""
        return str(over.wait(PATIENCE))

    async def answer(episode) -> Step:
        if episode.task.id != "slow":
            step = await others.answer(episode)
            if others.done.is_set():
                over.set()
            return step
        result = await block.call("{}")
        return says(result.content, done=True, metrics={"answered": float(result.content == "True")})

    episodes = run(engine, Scripted(answer), ["slow", "b", "c", "d"])
    assert episodes["slow"].metrics == {"answered": 1.0}


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_those_who_wait_for_tools_hold_no_slot(slots):
    """All six wait for each other within the same tool call: more than there are slots, so none can be held."""
    engine, plenty = local_engine(slots), local_engine(slots=16)

    def meeting() -> Scripted:
        together = asyncio.Barrier(6)

        async def answer(episode) -> Step:
            await together.wait()
            return Step(done=True) if episode.turn == 3 else says(f"{episode.task.id}, go on")

        return Scripted(answer)

    names = "abcdef"
    crowded, roomy = run(engine, meeting(), names), run(plenty, meeting(), names)
    assert all(len(episode.turns) == 3 for episode in crowded.values())
    assert tokens(crowded) == tokens(roomy), "evicted or not, they say the same"
    assert engine.stats.evictions > 0
    assert plenty.stats.evictions == 0


@pytest.mark.parametrize(("concurrency", "slots"), [(4, 32), (1024, 4)], ids=["episodes", "slots"])
def test_places_are_refilled_as_episodes_end_and_not_in_waves(concurrency, slots):
    """One long episode and many short ones in four places: the short ones pass through the other three meanwhile."""
    engine = local_engine(slots)
    ended = []

    async def answer(episode) -> Step:
        if episode.task.id == "long" and episode.turn < 12:
            return says("go on")
        ended.append(episode.task.id)
        return Step(done=True)

    episodes = run(engine, Scripted(answer), ["long", *map(str, range(24))], concurrency=concurrency)
    long = episodes["long"]
    assert ended[-1] == "long"
    own = sum(len(turn.action_ids) - 1 for turn in long.turns)
    in_waves = own + 6 * (TURN - 1)
    assert engine.stats.decode_steps <= own + 2 * len(long.turns) < in_waves


def test_the_ledger_of_a_rollout_tells_waiting_from_working():
    """Two tools wait side by side: the loop is idle for as long as the longer of them, not for their sum."""
    ledger = Ledger()
    who = policy(Watched("a"), ledger=ledger)
    naps = {"a": 0.3, "b": 0.2}

    async def nap(episode) -> Step:
        await asyncio.sleep(naps[episode.task.id])
        return Step(done=True)

    with asyncio.Runner(loop_factory=ledger.new_event_loop) as runner:
        ledger.close_step()
        runner.run(run_groups(who, Scripted(nap), [Task(id="a"), Task(id="b")], group_size=1, seed=0, ledger=ledger))
        entry = ledger.close_step()
    assert 0.28 < entry.seconds["tool_wait"] < 0.45
    assert entry.seconds["render"] > 0
    assert entry.seconds["environment"] > 0
    assert sum(entry.seconds.values()) == pytest.approx(entry.wall, rel=1e-9)


def test_an_episode_that_breaks_leaves_the_ledger_balanced():
    ledger = Ledger()
    who = policy(Watched("a"), ledger=ledger)

    async def break_down(episode) -> Step:
        if episode.task.id == "b":
            raise RuntimeError("broken")
        return Step(done=True)

    asyncio.run(
        run_groups(who, Scripted(break_down), [Task(id="a"), Task(id="b")], group_size=1, seed=0, ledger=ledger)
    )
    ledger.close_step()
    with ledger.spend("update"):
        pass
    assert ledger.close_step().seconds.keys() == {"other", "update"}, "no section was left open"
