"""Packages in child processes, on tiny stand-ins: deadlines, crashes, recovery, random states; nothing reaches us."""

import asyncio
import os
import time

import pytest

from turnwise.agents import ExpertAgent
from turnwise.envs import check_env
from turnwise.envs.adapters.child import ChildLostError, Children, ChildTimeoutError, ForeignError, require_package
from turnwise.envs.adapters.foreign_game import ForeignGame
from turnwise.errors import EnvError
from turnwise.rollout import Limits, run_episode
from turnwise.types import Message, Task


@pytest.fixture(autouse=True)
def _fakes_are_importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.path.join(os.path.dirname(__file__), "..", "support"))


@pytest.fixture
def calls():
    children = Children("fake_worlds:Calls", {}, seconds=1.0)
    yield children
    children.close()


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


def test_calls_are_answered_by_one_process_that_keeps_its_state(calls):
    child = calls.assign()
    assert child.call("ready") is None
    assert child.call("echo", {"a": [1, None, "é"]}) == [{"a": [1, None, "é"]}]
    assert child.call("echo", 2) == [{"a": [1, None, "é"]}, 2]
    assert child.call("pid") != os.getpid()


@pytest.mark.parametrize("hang", [("sleep", 1000), ("hold_the_lock",)])
def test_a_call_that_hangs_is_killed_and_the_next_one_is_answered(calls, hang):
    child = calls.assign()
    before = child.call("pid")
    began = time.monotonic()
    with pytest.raises(ChildTimeoutError, match=f"{hang[0]} gave no answer within 1 seconds"):
        child.call(*hang)
    assert time.monotonic() - began < 10
    assert not is_running(before)
    assert child.call("echo", 1) == [1], "what the killed process held is gone"
    assert child.generation == 2


def test_what_the_package_raises_is_told_in_one_line_and_the_process_goes_on(calls):
    child = calls.assign()
    before = child.call("pid")
    with pytest.raises(ForeignError, match=r"^KeyError: 'kitchen' \(fake_worlds.py:\d+ in raise_it\)$"):
        child.call("raise_it")
    with pytest.raises(ForeignError, match="SystemExit: no such world"):
        child.call("leave")
    assert child.call("pid") == before


def test_a_process_that_dies_is_not_mistaken_for_the_one_that_follows(calls):
    child = calls.assign()
    _, generation = child.open("echo", 1)
    with pytest.raises(ChildLostError, match="status 7"):
        child.call("die")
    with pytest.raises(ChildLostError, match="is gone"):
        child.call("echo", 2, generation=generation)
    assert child.call("echo", 3) == [3]


def test_a_process_ends_with_the_last_reference_to_it():
    children = Children("fake_worlds:Calls", {}, count=2)
    pids = [children.assign().call("pid") for _ in range(2)]
    assert len(set(pids)) == 2
    del children
    assert not any(map(is_running, pids))


def test_what_is_gone_is_not_started_anew_to_be_closed(calls):
    child = calls.assign()
    _, generation = child.open("echo", 1)
    child.close()
    with pytest.raises(ChildLostError, match="is gone"):
        child.call("echo", 2, generation=generation)
    assert child.generation == 1


def test_a_process_that_is_forked_off_starts_a_child_of_its_own(calls):
    child = calls.assign()
    before = child.call("pid")
    told, tell = os.pipe()
    fork = os.fork()
    if fork == 0:
        os.write(tell, str(child.call("pid")).encode())
        child.close()
        os._exit(0)
    os.waitpid(fork, 0)
    other = int(os.read(told, 100))
    assert other != before
    assert child.call("pid") == before
    assert not is_running(other)


@pytest.mark.parametrize(
    "meanwhile", ["import time; time.sleep(1000)", "child.call('sleep', 0.5)"], ids=["idle", "busy"]
)
def test_a_child_follows_a_trainer_that_is_killed_without_a_word(meanwhile):
    import signal
    import subprocess
    import sys

    code = (
        "from turnwise.envs.adapters.child import Children\n"
        "child = Children('fake_worlds:Calls', {}).assign()\n"
        "print(child.call('pid'), flush=True)\n"
        f"{meanwhile}\n"
    )
    path = os.pathsep.join((os.environ["PYTHONPATH"], *filter(None, map(str, sys.path))))
    trainer = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    )
    pid = int(trainer.stdout.readline())
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert trainer.stderr.read() == b""


def test_a_package_that_is_missing_is_named_with_its_extra():
    with pytest.raises(EnvError, match=r"no_such_package is not installed; pip install 'turnwise\[games\]'$"):
        require_package("no_such_package", "games")


class Walk(ForeignGame):
    server = "fake_worlds:Corridor"

    def __init__(self, *, rooms=4, **shared):
        super().__init__(**shared)
        self.connect({"rooms": rooms})

    def setup(self, task):
        return {"seed": task.seed}


def say(game, command):
    return game.step(Message(role="assistant", content=f"<answer>{command}</answer>"))


def test_a_game_in_a_child_keeps_the_contract_of_an_environment():
    assert asyncio.run(check_env(Walk(think=False, processes=2), episodes=2)) == []
    assert asyncio.run(check_env(Walk(listed_only=False, max_actions_per_turn=3), episodes=1)) == []


def test_a_game_in_a_child_by_hand():
    async def play():
        env = Walk(think=False, rooms=2)
        game = env.spawn()
        opening = await game.reset(Task(id="one", seed=1), 0)
        assert opening[0].content.startswith("Walk to room 3.\nReply: <answer>command</answer>")
        assert opening[1].content == "Room 0.\nCommands: east, stumble"
        assert (await say(game, "fly")).messages[0].content == "Unknown command: fly\nRoom 0.\nCommands: east, stumble"
        steps = [await say(game, "East") for _ in range(3)]
        assert [round(step.rewards["game"], 3) for step in steps] == [0.333, 0.333, 0.333]
        assert (steps[-1].done, steps[-1].metrics["success"], steps[-1].metrics["score"]) == (True, 1.0, 1.0)
        await game.close()

    asyncio.run(play())


def test_the_wait_for_a_busy_process_is_no_failure():
    """Eight episodes of half a second share one process, and a call may take two seconds, or one in the rollout."""

    class Slow(Walk):
        server = "fake_worlds:SlowCorridor"

    env = Slow(think=False, rooms=1, seconds=2.0)
    tasks = [env.tasks("train")[place] for place in range(8)]

    async def play(task):
        return await run_episode(ExpertAgent(), env.spawn(), task, episode_seed=0, limits=Limits(env_seconds=1.0))

    async def play_all():
        return await asyncio.gather(*map(play, tasks))

    assert [episode.failure for episode in asyncio.run(play_all())] == [""] * 8


@pytest.mark.parametrize("end", ["hang", "die"])
def test_an_episode_outlives_the_process_that_another_one_lost(end):
    async def play():
        env = Walk(think=False, listed_only=False, seconds=2.0)
        lost, kept, undisturbed = env.spawn(), env.spawn(), env.spawn()
        for game in (lost, kept, undisturbed):
            await game.reset(Task(id="one", seed=0), 5)
        walked = [(await say(kept, command)).messages[0].content for command in ("stumble", "east", "stumble")]
        with pytest.raises((TimeoutError, ChildLostError), match="hang" if end == "hang" else "status"):
            await say(lost, end)
        after = [(await say(kept, command)).messages[0].content for command in ("stumble", "stumble")]
        alone = [
            (await say(undisturbed, command)).messages[0].content
            for command in ("stumble", "east", "stumble", "stumble", "stumble")
        ]
        assert walked + after == alone

    asyncio.run(play())


def test_the_trainers_own_random_state_is_untouched():
    import random

    async def play():
        game = Walk(think=False).spawn()
        await game.reset(Task(id="one", seed=0), 5)
        await say(game, "stumble")

    random.seed(3)
    expected = random.random()
    random.seed(3)
    asyncio.run(play())
    assert random.random() == expected
