"""Before a model is loaded: a broken environment is found in one move, and episodes give the tokenizer its text."""

import asyncio
import re

import pytest

from byte_render import Scripted, says
from tiny_runs import tiny_config
from turnwise.errors import EnvError
from turnwise.training import build as build_module
from turnwise.training.build import assemble, sample_texts, smoke_test_env
from turnwise.types import Message, Step, Task, ToolSpec

TASKS = [Task(id="a"), Task(id="b")]


@pytest.mark.parametrize(
    ("env", "where"),
    [
        (Scripted(Step(done=True), opening=OSError("no disk")), "reset: OSError: no disk"),
        (Scripted(KeyError("gold")), "step: KeyError: 'gold'"),
        (Scripted(Step(done=True), closing=OSError("busy")), "close: OSError: busy"),
        (Scripted(Step(done=True), keys=(RuntimeError("no state"),)), "state_key: RuntimeError: no state"),
    ],
)
def test_a_broken_environment_fails_its_smoke_test(env, where):
    words = rf"^Scripted failed its smoke test, task 'a': {where} \(.*\); `turnwise check` tells more$"
    with pytest.raises(EnvError, match=words):
        asyncio.run(smoke_test_env(env, TASKS))


def test_a_smoke_test_is_one_move_and_closes_the_environment():
    env = Scripted(says("go on"))
    asyncio.run(smoke_test_env(env, TASKS))
    assert (env.heard, env.closed) == ([("a", 0, "Hello.")], ["a"])


def test_a_prompt_that_leaves_no_room_for_a_turn_is_told_before_training(caplog):
    config = tiny_config(rollout={"context_tokens": 64})
    assemble(config, env=Scripted(Step(done=True), opening="word " * 99), tasks=TASKS)
    (told,) = caplog.messages
    assert re.match(r"the first task's prompt has \d{2,3} tokens, and the context 64: its episodes end before", told)
    caplog.clear()
    assemble(config, env=Scripted(Step(done=True)), tasks=TASKS)
    assert caplog.messages == []


def test_a_smoke_test_passes_over_a_single_bad_task():
    async def answer(episode):
        if episode.task.id == "a":
            raise KeyError("gold")
        return Step(done=True)

    env = Scripted(answer)
    asyncio.run(smoke_test_env(env, TASKS))
    assert env.closed == ["a", "b"]


class Led(Scripted):
    """Its expert thinks, and is asked to go on until it has taken two turns."""

    tools = (ToolSpec(name="look", description="Looks.", parameters={"properties": {"key": {}, "depth": {}}}),)

    def expert(self):
        return Message(role="assistant", content=f"move {self.turn}", thinking="hm")


def test_texts_are_what_is_said_in_episodes_by_both_sides():
    texts = list(sample_texts(Led(says("more"), Step(done=True)), TASKS))
    episode = ["hi", "<think>\nhm\n</think>\n\nmove 0", "more", "<think>\nhm\n</think>\n\nmove 1"]
    assert texts == ["look(key, depth): Looks.", *episode, *episode]


def test_an_environment_that_never_ends_is_sampled_for_a_while():
    [opening, *rest] = list(sample_texts(Led(says("more")), TASKS[:1]))[1:]
    assert (opening, len(rest)) == ("hi", 64)


def test_without_an_expert_the_openings_are_the_texts():
    env = Scripted(says("never asked"))
    assert list(sample_texts(env, TASKS)) == ["hi", "hi"]
    assert (env.heard, env.closed) == ([], ["a", "b"])


def test_a_task_that_fails_is_named(caplog):
    async def answer(episode):
        if episode.task.id == "a":
            raise KeyError("gold")
        return Step(done=True)

    assert len(list(sample_texts(Led(answer), TASKS))) == 5
    [words] = caplog.messages
    assert words.startswith("1 of 2 sampled episodes failed, the first: task 'a': step: KeyError: 'gold' (")
    words = r"^every sampled episode failed, 2 times alike: task 'a': step: KeyError: 'gold'"
    with pytest.raises(EnvError, match=words):
        list(sample_texts(Led(KeyError("gold")), TASKS))


def test_the_engine_checks_its_forward_on_the_first_prompt_of_the_run(monkeypatch):
    given = []
    make = build_module.make_engine
    monkeypatch.setattr(build_module, "make_engine", lambda *a, **k: given.append(k["prompt_ids"]) or make(*a, **k))
    parts = build_module.assemble(tiny_config())
    assert "sun" in parts.render.decode(given[0])
    assert given[0] == parts.render.start([Message(role="user", content="sun")], parts.env.tools)
