import asyncio

import pytest

from turnwise.engines import Engine, EngineStats, Sampling, ScriptedEngine
from turnwise.errors import ModelError
from turnwise.types import Finish

END = 9


def encode(text: str) -> tuple[int, ...]:
    return (*(int(letter) for letter in text), END)


def ask(engine: ScriptedEngine, prompt: list[int], *, max_tokens: int = 8):
    return asyncio.run(engine.generate("s", prompt, Sampling(max_tokens=max_tokens, stop_ids=(END,))))


def test_text_is_encoded_and_ends_with_its_stop():
    completion = ask(ScriptedEngine(lambda session, prompt: "123", encode), [5])
    assert completion.ids == (1, 2, 3, END)
    assert completion.logprobs == (0.0,) * 4
    assert completion.finish is Finish.STOP


def test_the_script_sees_session_and_prompt():
    completion = ask(ScriptedEngine(lambda session, prompt: [len(session), *prompt, END], encode), [5, 6])
    assert completion.ids == (1, 5, 6, END)


def test_limits_cut_the_reply():
    engine = ScriptedEngine(lambda session, prompt: "1234567", encode, context_limit=7)
    cut = ask(engine, [5], max_tokens=3)
    assert (cut.ids, cut.finish) == ((1, 2, 3), Finish.LENGTH)
    assert ask(engine, [5] * 5).ids == (1, 2)
    with pytest.raises(ModelError, match="7 tokens leaves no room to answer in a context of 7"):
        ask(engine, [5] * 7)


def test_nothing_is_said_after_a_stop():
    assert ask(ScriptedEngine(lambda session, prompt: [1, END, 2], encode), [5]).ids == (1, END)


def test_saying_nothing_is_an_error():
    with pytest.raises(ModelError, match="empty reply"):
        ask(ScriptedEngine(lambda session, prompt: [], encode), [5])


def test_completions_carry_the_loaded_version():
    engine = ScriptedEngine(lambda session, prompt: "1", encode)
    asyncio.run(engine.load({}, version=4))
    assert ask(engine, [5]).version == 4


def test_a_script_is_an_engine_without_work_to_count():
    engine: Engine = ScriptedEngine(lambda session, prompt: "1", encode)
    ask(engine, [5])
    assert engine.stats == EngineStats()
