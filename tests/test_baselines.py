"""Naive RAG: one retrieval, one turn, scored by the environment it wraps."""

import asyncio

import pytest

from turnwise.baselines import NaiveRag
from turnwise.envs.check import check_env
from turnwise.envs.encyclopedia import Encyclopedia
from turnwise.envs.tool_env import ToolEnv
from turnwise.errors import EnvError
from turnwise.rewards import exact_match_reward
from turnwise.types import Message, ToolCall

ENCYCLOPEDIA = Encyclopedia(passages=3)


def begin(task, luck=0):
    rag = NaiveRag(ENCYCLOPEDIA).spawn()
    return rag, asyncio.run(rag.reset(task, luck))


def search(task, query):
    env = ENCYCLOPEDIA.spawn()
    asyncio.run(env.reset(task, 0))
    call = ToolCall(id="c", name="search", arguments=f'{{"query": "{query}"}}')
    return asyncio.run(env.step(Message(role="assistant", content="", tool_calls=(call,)))).messages[0].content


def test_it_keeps_the_contract_of_an_environment():
    assert asyncio.run(check_env(NaiveRag(ENCYCLOPEDIA))) == []


def test_it_asks_the_same_questions_without_tools():
    rag = NaiveRag(ENCYCLOPEDIA)
    assert rag.tools == ()
    assert len(rag.tasks("test")) == len(ENCYCLOPEDIA.tasks("test"))
    assert rag.tasks("train")[3] == ENCYCLOPEDIA.tasks("train")[3]


@pytest.mark.parametrize("place", [0, 17])
def test_the_prompt_holds_what_a_search_for_the_question_finds_and_the_question(place):
    task = ENCYCLOPEDIA.tasks("test")[place]
    _, (system, user) = begin(task)
    found = search(task, task.data["question"])
    assert len(found.splitlines()) == 3
    assert user == Message(role="user", content=f"{found}\n{task.data['question']}")
    assert "search" not in system.content


@pytest.mark.parametrize(("answer", "reward"), [("gold", 1.0), ("somebody else", 0.0)])
def test_whatever_is_said_is_the_answer_and_ends_the_episode(answer, reward):
    task = ENCYCLOPEDIA.tasks("test")[1]
    rag, _ = begin(task)
    text = task.data["answers"][0] if answer == "gold" else answer
    step = asyncio.run(rag.step(Message(role="assistant", content=f"<answer>{text}</answer>")))
    assert (step.done, step.messages) == (True, ())
    assert step.rewards == {"exact_match": reward}
    assert step.metrics["success"] == reward


def test_a_tool_call_is_not_run_and_counts_as_no_answer():
    rag, _ = begin(ENCYCLOPEDIA.tasks("test")[1])
    call = ToolCall(id="c", name="search", arguments='{"query": "anything"}')
    step = asyncio.run(rag.step(Message(role="assistant", content="", tool_calls=(call,))))
    assert (step.done, step.messages, step.rewards) == (True, (), {"exact_match": 0.0})


def test_its_expert_always_succeeds():
    for place in range(20):
        rag, _ = begin(ENCYCLOPEDIA.tasks("train")[place], luck=place)
        step = asyncio.run(rag.step(rag.expert()))
        assert (step.done, step.rewards) == (True, {"exact_match": 1.0})


def test_an_environment_without_the_tool_is_refused():
    env = ToolEnv(tasks=[{"question": "?", "answers": ["!"]}], rewards=[exact_match_reward])
    with pytest.raises(EnvError, match=r"^ToolEnv has no tool 'search' to retrieve with; name one in tool=\.\.\.$"):
        NaiveRag(env)
