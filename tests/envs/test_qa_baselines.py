"""Closed book and naive RAG: one turn, without or with one retrieval, scored by the environment they wrap."""

import asyncio

import pytest

from turnwise.envs import EnvSettings, make_env
from turnwise.envs.check import check_env
from turnwise.envs.encyclopedia.env import Encyclopedia
from turnwise.envs.qa.baselines import ClosedBook, GivenPassages, NaiveRag
from turnwise.envs.qa.env import ANSWER, SearchQA
from turnwise.envs.tool_env import ToolEnv
from turnwise.errors import ConfigError, EnvError
from turnwise.rewards import exact_match_reward
from turnwise.tools.search.http_index import HttpIndex
from turnwise.tools.search.retrieval import Passage, SearchDownError
from turnwise.types import Message, Task, ToolCall

ENCYCLOPEDIA = Encyclopedia(passages=3)
LAMPS = [
    Passage(id="p1", title="Lumen", text="Lumen makes lamps."),
    Passage(id="p2", title="Nox", text="Nox makes no lamps."),
    Passage(id="p3", title="Oslo", text="Oslo makes laws."),
]
QUESTION = {"question": "Who makes lamps?", "answers": ["Lumen"], "supporting_ids": ["p1"]}
DOCUMENTS = SearchQA(
    corpus=LAMPS, questions={"train": [QUESTION], "test": [QUESTION]}, passages=1, found_gold=0.5, cache="off"
)


def begin(task, episode_seed=0):
    rag = NaiveRag(ENCYCLOPEDIA).spawn()
    return rag, asyncio.run(rag.reset(task, episode_seed))


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
        rag, _ = begin(ENCYCLOPEDIA.tasks("train")[place], episode_seed=place)
        step = asyncio.run(rag.step(rag.expert()))
        assert (step.done, step.rewards) == (True, {"exact_match": 1.0})


def test_an_environment_without_the_tool_is_refused():
    env = ToolEnv(tasks=[{"question": "?", "answers": ["!"]}], rewards=[exact_match_reward])
    with pytest.raises(EnvError, match=r"^ToolEnv has no tool 'search' to retrieve with; name one in tool=\.\.\.$"):
        NaiveRag(env)


async def ask(baseline, task):
    live = baseline.spawn()
    system, user = await live.reset(task, 0)
    return live, system.content, user.content


def test_closed_book_asks_the_question_alone_and_keeps_the_contract():
    closed = ClosedBook(ENCYCLOPEDIA)
    task = ENCYCLOPEDIA.tasks("test")[2]
    live, system, user = asyncio.run(ask(closed, task))
    assert (system, user) == ("Answer the question in <answer> tags.", task.data["question"])
    assert closed.tools == ()
    assert asyncio.run(check_env(closed)) == []
    step = asyncio.run(live.step(live.expert()))
    assert (step.done, step.rewards, step.metrics["tool_calls"]) == (True, {"exact_match": 1.0}, 0.0)


def test_both_are_told_how_to_answer_in_the_agents_own_words():
    task = DOCUMENTS.tasks("test")[0]
    for baseline in (ClosedBook(DOCUMENTS), NaiveRag(DOCUMENTS)):
        assert asyncio.run(ask(baseline, task))[1] == ANSWER
    assert asyncio.run(ask(ClosedBook(DOCUMENTS, system="Say it."), task))[1] == "Say it."


def test_naive_rag_retrieves_as_many_passages_as_asked_for():
    task = DOCUMENTS.tasks("test")[0]
    assert asyncio.run(ask(NaiveRag(DOCUMENTS), task))[2] == "[1] Lumen: Lumen makes lamps.\nWho makes lamps?"
    three = asyncio.run(ask(NaiveRag(DOCUMENTS, passages=3), task))[2]
    assert [line.partition(":")[0] for line in three.splitlines()] == [
        "[1] Lumen",
        "[2] Nox",
        "[3] Oslo",
        "Who makes lamps?",
    ]
    with pytest.raises(EnvError, match="passages=3 is for SearchQA; make Encyclopedia show as many itself"):
        NaiveRag(ENCYCLOPEDIA, passages=3)


def test_the_retrieval_before_the_question_earns_and_costs_the_model_nothing():
    live, _, _ = asyncio.run(ask(NaiveRag(DOCUMENTS), DOCUMENTS.tasks("test")[0]))
    step = asyncio.run(live.step(Message(role="assistant", content="<answer>lumen</answer>")))
    assert step.rewards == {"format_gated_exact_match": 1.0}
    assert (step.metrics["success"], step.metrics["gold_recall"]) == (1.0, 1.0)


@pytest.mark.parametrize("baseline", ["ClosedBook", "NaiveRag"])
def test_a_recipe_names_a_baseline_and_what_it_wraps(baseline):
    args = {"env": {"name": "encyclopedia", "args": {"people": 8}}}
    env = make_env(EnvSettings(name=f"turnwise.envs.qa.baselines:{baseline}", args=args))
    assert env.tasks("test")[0] == Encyclopedia(people=8).tasks("test")[0]
    with pytest.raises(ConfigError, match=r"nam: unknown key in env\.args\.env; did you mean 'name'\?"):
        make_env(EnvSettings(name=f"turnwise.envs.qa.baselines:{baseline}", args={"env": {"nam": "encyclopedia"}}))


def test_a_search_service_that_is_down_fails_the_episode_and_scores_nothing(monkeypatch):
    async def aquery(self, queries, k):
        raise SearchDownError("no answer")

    monkeypatch.setattr(HttpIndex, "aquery", aquery)
    env = SearchQA(index="http", url="http://127.0.0.1:9", questions={"test": [QUESTION]})
    with pytest.raises(SearchDownError, match="did not answer"):
        asyncio.run(ask(NaiveRag(env), env.tasks("test")[0]))


def test_what_cannot_be_wrapped_is_said():
    env = SearchQA(corpus=LAMPS, questions={"test": [QUESTION]}, max_turns=1, cache="off")
    with pytest.raises(
        EnvError, match="takes a turn to retrieve and one to answer: give the environment max_turns of 2"
    ):
        asyncio.run(ask(NaiveRag(env), env.tasks("test")[0]))
    with pytest.raises(EnvError, match="task 'x' has no 'question'"):
        asyncio.run(ask(ClosedBook(DOCUMENTS), Task(id="x")))


def test_given_passages_stand_in_the_prompt_alone_and_as_a_search_would_show_them():
    env = SearchQA(
        corpus=LAMPS,
        questions={"train": [QUESTION | {"supporting_ids": ["p3", "p1"]}], "test": [QUESTION]},
        passage_chars=9,
        cache="off",
    )
    given = GivenPassages(env).spawn()
    _, user = asyncio.run(given.reset(env.tasks("train")[0], 0))
    assert user.content == "[1] Oslo: Oslo make ...\n[2] Lumen: Lumen mak ...\nWho makes lamps?"
    assert given.tools == ()
    step = asyncio.run(given.step(Message(role="assistant", content="<answer> Lumen </answer>")))
    assert step.done
    assert step.metrics["success"] == 1.0
    assert asyncio.run(check_env(GivenPassages(DOCUMENTS))) == []


def test_given_passages_need_passages_to_give():
    with pytest.raises(EnvError, match="wrap search_qa"):
        GivenPassages(ENCYCLOPEDIA)
    bare = {"question": "Who?", "answers": ["Lumen"], "supporting_titles": ["Lumen"]}
    env = SearchQA(corpus=LAMPS, questions={"train": [bare], "test": [bare]}, cache="off")
    with pytest.raises(EnvError, match="has no supporting_ids"):
        asyncio.run(GivenPassages(env).spawn().reset(env.tasks("train")[0], 0))
