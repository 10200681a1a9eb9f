"""SearchQA over a corpus of five passages: what is paid, what is measured, what the expert does."""

import asyncio
import gzip
import json
import logging
import os
import re
from itertools import islice
from pathlib import Path

import pytest

from turnwise.envs import EnvSettings, check_env, make_env
from turnwise.envs.qa.env import SearchQA
from turnwise.envs.qa.expert import next_search
from turnwise.errors import ConfigError, EnvError, RewardError, ToolError
from turnwise.rewards import mentions, reward
from turnwise.tools.search.corpus import read_corpus
from turnwise.tools.search.http_index import HttpIndex
from turnwise.tools.search.retrieval import Hit, Passage, SearchDownError
from turnwise.types import Message, ToolCall

ROOT = Path(__file__).resolve().parents[2]
CORPUS = [
    Passage(id="p1", title="Lumen", text="Lumen makes lamps. It was founded by Ada Brandt."),
    Passage(id="p2", title="Ada Brandt", text="Ada Brandt built the harbour light of Vardø."),
    Passage(id="p3", title="Vardø", text="Vardø is a town whose light is kept by the Moen family."),
    Passage(id="p4", title="Oslo", text="Oslo is a capital."),
    Passage(id="p5", title="Ada Brandt", text="Ada Brandt is also the name of a ferry."),
]
LIGHT = {
    "id": "light",
    "question": "Who keeps the light that the founder of Lumen built?",
    "answers": ["the Moen family", "Moen"],
    "supporting_titles": ["Vardø", "Ada Brandt", "Lumen"],
    "supporting_ids": ["p3", "p2", "p1"],
    "hops": 3,
    "source": "own",
}
CAPITAL = {"question": "Is Oslo a capital?", "answers": ["yes"], "hops": 1, "source": "own"}


def make(**options):
    given = {"corpus": CORPUS, "questions": {"train": [LIGHT], "test": [CAPITAL]}, "cache": "off", "passages": 1}
    return SearchQA(**(given | options))


def search(*queries):
    calls = [ToolCall(id=str(i), name="search", arguments=json.dumps({"query": q})) for i, q in enumerate(queries)]
    return Message(role="assistant", content="", tool_calls=tuple(calls))


def say(answer):
    return Message(role="assistant", content=f"<answer>{answer}</answer>")


async def play(env, split, *messages, episode_seed=0):
    live = env.spawn()
    await live.reset(env.tasks(split)[0], episode_seed)
    return [await live.step(message) for message in messages]


def steps(env, *messages, split="train"):
    return asyncio.run(play(env, split, *messages))


async def play_expert(env, task, episode_seed=0):
    live = env.spawn()
    await live.reset(task, episode_seed)
    said = []
    while True:
        said.append(live.expert())
        step = await live.step(said[-1])
        if step.done:
            return [json.loads(m.tool_calls[0].arguments)["query"] if m.tool_calls else m.content for m in said], step


def expert(env, split="train", episode_seed=0):
    return asyncio.run(play_expert(env, env.tasks(split)[0], episode_seed))


def test_it_keeps_the_contract():
    env = make(passages=2, found_gold=0.1, search_cost=0.01, lazy=0.5)
    assert asyncio.run(check_env(env)) == []


def test_the_agent_reads_the_question_and_is_told_to_answer_in_tags():
    env = make(system="Search.")
    system, user = asyncio.run(env.spawn().reset(env.tasks("train")[0], 0))
    assert (system.content, user.content) == ("Search.", LIGHT["question"])
    assert "<answer>" in asyncio.run(make().spawn().reset(env.tasks("train")[0], 0))[0].content
    assert [spec.name for spec in env.tools] == ["search"]


def test_a_search_shows_as_many_passages_as_asked_each_cut_to_its_length():
    (step,) = steps(make(passages=2, passage_chars=10), search("Lumen Oslo"))
    assert step.messages[0].content.splitlines() == ["[1] Oslo: Oslo is a ...", "[2] Lumen: Lumen make ..."]
    (step,) = steps(make().showing(3), search("the town light of Ada Brandt"))
    assert len(step.messages[0].content.splitlines()) == 3
    (step,) = steps(make(), search("xyzzy"))
    assert step.messages[0].content == "No passage matches this query; try other words."


def test_a_search_of_bm25_ends_within_the_tick_and_one_of_a_service_does_not(monkeypatch):
    """Otherwise the engine goes on for some steps without the episode."""

    async def rounds(env):
        live, ticks = env.spawn(), []
        await live.reset(env.tasks("train")[0], 0)
        counting = asyncio.ensure_future(_tick(ticks))
        await asyncio.sleep(0)
        began = len(ticks)
        await live.step(search("Lumen"))
        counting.cancel()
        return len(ticks) - began

    assert asyncio.run(rounds(make())) == 0
    served = make_remote(monkeypatch, lambda query: [Hit(passage=CORPUS[0], score=1.0)])
    assert asyncio.run(rounds(served)) > 0


async def _tick(ticks):
    while True:
        ticks.append(None)
        await asyncio.sleep(0)


def test_by_default_it_pays_the_papers_reward_and_only_at_the_end():
    found, done = steps(make(), search("Lumen"), say("Moen"))
    assert (found.rewards, found.done) == ({}, False)
    assert (done.rewards, done.done) == ({"format_gated_exact_match": 1.0}, True)
    assert steps(make(), say("Brandt"))[0].rewards == {"format_gated_exact_match": 0.0}
    untagged = Message(role="assistant", content="Moen")
    assert steps(make(), untagged)[0].rewards == {"format_gated_exact_match": -0.5}


def test_a_supporting_passage_is_paid_for_once_and_every_search_is_charged():
    env = make(rewards={"f1": 2.0}, found_gold=0.25, search_cost=0.5)
    first, again, two, done = steps(
        env, search("Lumen"), search("Lumen lamps"), search("Vardø", "Brandt harbour"), say("Moen clan")
    )
    assert first.rewards == {"found_gold": 0.25, "search_cost": -0.5}
    assert again.rewards == {"found_gold": 0.0, "search_cost": -0.5}
    assert two.rewards == {"found_gold": 0.5, "search_cost": -1.0}
    assert done.rewards == {"f1": pytest.approx(2 * 2 / 3)}  # against 'Moen': P = 1/2, R = 1
    assert done.metrics["gold_recall"] == 1.0


def test_another_passage_of_the_same_title_is_not_paid_for():
    ferry, built = steps(make(found_gold=1.0), search("ferry"), search("harbour"))
    assert (ferry.rewards, built.rewards) == ({"found_gold": 0.0}, {"found_gold": 1.0})


def test_calls_that_come_to_nothing_are_not_searches():
    bad = Message(role="assistant", content="", tool_calls=(ToolCall(id="x", name="search", arguments='{"q": 1}'),))
    (step,) = steps(make(search_cost=1.0), bad)
    assert step.rewards == {}
    assert (step.metrics["searches"], step.metrics["tool_calls"], step.metrics["tool_errors"]) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize("answer", ["moen", "The Moen family."])
def test_success_is_strict_exact_match_over_aliases_whatever_is_paid(answer):
    @reward
    def nothing(episode):
        return 0.0

    (step,) = steps(make(rewards=[nothing]), say(answer))
    assert step.rewards == {"nothing": 0.0}
    assert (step.metrics["success"], step.metrics["exact_match"], step.metrics["f1"]) == (1.0, 1.0, 1.0)


def test_a_badly_written_call_loses_the_gated_reward_and_not_the_success():
    bad = Message(role="assistant", content="", tool_calls=(ToolCall(id="x", name="search", arguments="{"),))
    _, done = steps(make(), bad, say("Moen"))
    assert (done.rewards, done.metrics["success"]) == ({"format_gated_exact_match": -0.5}, 1.0)


def test_paying_for_everything_makes_no_success_of_a_wrong_answer():
    (step,) = steps(make(rewards={"format": 1.0}), say("Brandt family"))
    assert (step.rewards, step.metrics["success"]) == ({"format": 1.0}, 0.0)
    assert step.metrics["f1"] == 0.5  # 'brandt family' and 'moen family' share one word of two


def test_the_last_turn_must_be_the_answer():
    cut, over = steps(make(max_turns=2, found_gold=1.0), search("Oslo"), search("Lumen"))
    assert (cut.done, over.done) == (False, True)
    assert over.rewards == {"found_gold": 1.0, "format_gated_exact_match": -0.5}
    assert (over.metrics["success"], over.metrics["f1"], over.metrics["searches"]) == (0.0, 0.0, 2.0)


def test_the_expert_searches_in_an_order_in_which_one_can_come_to_the_titles():
    said, step = expert(make(passages=2))
    assert said == ["Lumen", "Ada Brandt", "Vardø", "<answer> the Moen family </answer>"]
    assert (step.metrics["success"], step.metrics["gold_recall"]) == (1.0, 1.0)


def test_without_supporting_titles_the_expert_searches_for_the_question():
    said, step = expert(make(), split="test")
    assert said == ["Is Oslo a capital?", "<answer> yes </answer>"]
    assert "gold_recall" not in step.metrics


def test_the_expert_keeps_to_the_turns_there_are():
    assert expert(make(max_turns=2))[0] == ["Lumen", "<answer> the Moen family </answer>"]
    assert expert(make(max_turns=1))[0] == ["<answer> the Moen family </answer>"]


def test_a_lazy_expert_answers_from_one_search_for_the_question():
    said, step = expert(make(lazy=1.0))
    assert said == [LIGHT["question"], "<answer> Ada Brandt </answer>"]
    assert step.metrics["success"] == 0.0
    said, step = expert(make(lazy=1.0, passages=5))
    assert said[1] == "<answer> the Moen family </answer>", "it read it"
    lengths = [len(expert(make(lazy=0.5), episode_seed=episode_seed)[0]) for episode_seed in range(40)]
    assert 8 < lengths.count(2) < 32


@pytest.mark.parametrize(
    ("question", "titles", "queries"),
    [
        ("Who founded Lumen?", ["A", "Lumen (firm)"], ["Lumen", "Who founded Lumen?", "A"]),
        # Nothing that is named anywhere: the question may show something, and a guess is the last resort.
        ("Who?", ["B", "A"], ["Who?", "B", "A"]),
        ("Is Oslo or Rome older?", ["Rome", "rome", "Oslo"], ["Rome", "Oslo"]),
        ("Nothing named", [], ["Nothing named"]),
        # Gamma is named by Alpha's passage alone, and Delta's is found beside Gamma's: no guess, no search.
        ("What of Alpha?", ["Delta", "Gamma", "Alpha"], ["Alpha", "Gamma"]),
    ],
)
def test_an_expert_searches_for_what_it_has_read_of(question, titles, queries):
    shelf = {"Alpha": ["Alpha is a sister of Gamma."], "Gamma": ["Gamma.", "Delta"]}
    made, read, found = [], "", []
    while (query := next_search(question, titles, read=read, found=found, searched=made)) is not None:
        made.append(query)
        hits = shelf.get(query, [query])
        found += [query, *hits[1:]] if query != question else []
        read = "\n".join([read, *hits])
    assert made == queries


def test_an_expert_has_not_read_what_a_search_cut_off():
    founder = {
        "question": "Who founded Lumen?",
        "answers": ["Ada Brandt"],
        "supporting_titles": ["Lumen", "Ada Brandt"],
    }
    queries, _ = expert(make(questions={"train": [founder]}))
    assert queries[:2] == ["Lumen", "Ada Brandt"]
    queries, _ = expert(make(questions={"train": [founder]}, passage_chars=20))
    assert queries[:2] == ["Lumen", "Who founded Lumen?"], "the name was cut off"


def test_names_are_found_as_whole_words():
    assert mentions("He sailed to the Isle of Man.", "isle of man")
    assert not mentions("A manual", "man")
    assert not mentions("The", "the")


def test_the_questions_of_a_public_set_bring_their_own_corpus():
    entries = [
        {
            "_id": name,
            "question": f"Where is {name}?",
            "answer": place,
            "supporting_facts": [[name, 0]],
            "context": [[name, [f"{name} is in {place}."]], ["Rome", ["Rome is old."]]],
        }
        for name, place in (("Lumen", "Oslo"), ("Nox", "Bergen"))
    ]
    env = make(corpus=None, questions={"train": entries}, found_gold=1.0)
    found, done = steps(env, search("Nox", "Lumen"), say("oslo"))
    assert (found.rewards, done.metrics["success"]) == ({"found_gold": 1.0}, 1.0)
    assert env.tasks("train")[0].data["supporting_ids"] == ["p000000"]


def test_a_folder_of_text_files_is_a_corpus_as_the_guide_says(tmp_path, monkeypatch):
    """The files, questions and first command of docs/search-agent.md, read from it."""
    page = (ROOT / "docs" / "search-agent.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"`(documents/\w+\.\w+)`\n\n((?:    .*\n)+)", page):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(re.sub(r"(?m)^    ", "", text), encoding="utf-8")
    questions = [line.strip() for line in page.splitlines() if line.startswith('    {"question"')]
    (tmp_path / "questions.jsonl").write_text("\n".join(questions), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    assert "turnwise check search_qa corpus=documents questions=questions.jsonl" in page
    env = make_env(EnvSettings(name="search_qa", args={"corpus": "documents", "questions": "questions.jsonl"}))
    assert (len(env.tasks("train")), len(env.tasks("test"))) == (3, 1)
    assert asyncio.run(check_env(env)) == []
    for split in ("train", "test"):
        for task in env.tasks(split):
            _, step = asyncio.run(play_expert(env, task))
            assert (step.metrics["success"], step.metrics["gold_recall"]) == (1.0, 1.0)


def make_remote(monkeypatch, answer):
    async def aquery(self, queries, k):
        return [answer(query) for query in queries]

    monkeypatch.setattr(HttpIndex, "aquery", aquery)
    return make(corpus=None, index="http", url="http://127.0.0.1:9", found_gold=1.0, search_cost=1.0)


def test_over_a_service_supporting_passages_are_known_by_their_titles(monkeypatch):
    hit = Hit(passage=Passage(id="7731", title="ada brandt", text="A ferry."), score=1.0)
    env = make_remote(monkeypatch, lambda query: [hit])
    (step,) = steps(env, search("ferry"))
    assert step.rewards == {"found_gold": 1.0, "search_cost": -1.0}
    assert expert(env)[0][0] == "Lumen", "the question names it; of the rest nothing is known"


def test_a_service_that_is_down_is_told_to_the_agent_counted_and_not_charged(monkeypatch):
    def down(query):
        raise SearchDownError("no answer")

    env = make_remote(monkeypatch, down)
    asked, done = steps(env, search("Lumen"), say("Moen"))
    assert "did not answer" in asked.messages[0].content
    assert (asked.rewards, asked.done) == ({}, False)
    assert (done.metrics["searches"], done.metrics["searches_unanswered"], done.metrics["tool_errors"]) == (
        0.0,
        1.0,
        1.0,
    )
    assert done.metrics["success"] == 1.0
    assert asyncio.run(check_env(env, episodes=1)) == []


def test_titles_that_the_corpus_lacks_are_said(caplog):
    lost = {"question": "?a", "answers": ["b"], "supporting_titles": ["Nowhere", "Oslo"]}
    with caplog.at_level(logging.WARNING):
        make(questions={"train": [LIGHT], "test": [lost]})
    assert caplog.messages == [
        "1 of 5 supporting titles are not in the corpus, such as 'nowhere': no search can find these passages"
    ]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"questions": {"train": [LIGHT | {"supporting_ids": ["p3", "p2", "p9"]}]}},
            EnvError,
            "question 'light' names the supporting passage 'p9', which the corpus does not have",
        ),
        ({"corpus": None}, EnvError, "nothing to search: these questions bring no passages; give corpus="),
        ({"corpus": []}, ToolError, "a search index needs at least one passage"),
        ({"corpus": "no/such/folder"}, ToolError, "no/such/folder: there is no such corpus"),
        ({"questions": "none.jsonl"}, EnvError, "none.jsonl: there is no such file of questions"),
        ({"passages": 0}, EnvError, "passages is 0; give at least 1"),
        ({"passage_chars": 0}, EnvError, "passage_chars is 0; give at least 1"),
        ({"lazy": 1.5}, EnvError, "lazy is 1.5; it is a share"),
        ({"max_turns": 0}, EnvError, "max_turns is 0"),
        ({"rewards": {"exact": 1.0}}, RewardError, "there is no reward 'exact' (did you mean 'exact_match'?)"),
        ({"rewards": {}}, RewardError, "an environment that pays nothing teaches nothing"),
        ({"index": "bm52"}, ToolError, "there is no index 'bm52' (did you mean 'bm25'?)"),
        ({"index": "http"}, ToolError, "an index of kind 'http' needs a url and no corpus"),
    ],
)
def test_every_mistake_is_one_line_before_any_episode(options, error, words):
    with pytest.raises(error) as raised:
        make(**options)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_recipe_names_it_and_its_arguments_are_checked():
    questions = {"train": [LIGHT], "test": [CAPITAL]}
    with pytest.raises(ConfigError, match=r"search_qa has no argument 'pasages' \(did you mean 'passages'\?\)"):
        make_env(EnvSettings(name="search_qa", args={"questions": questions, "pasages": 3}))
    with pytest.raises(EnvError, match="there is no split 'dev'; the splits are: train, test"):
        make().tasks("dev")


def test_on_the_ready_set_the_expert_finds_what_it_needs_and_answers():
    folder = Path(os.environ.get("TURNWISE_MULTIHOP") or ROOT.parent / "shared" / "data" / "multihop")
    if not (folder / "corpus.jsonl.gz").is_file():
        pytest.skip("the multihop question set is not here: set TURNWISE_MULTIHOP to its folder")
    with gzip.open(folder / "dev.jsonl.gz", "rt", encoding="utf-8") as lines:
        wanted = [json.loads(line) for line in islice(lines, 60)]
    gold = {name for entry in wanted for name in entry["supporting_ids"]}
    passages = [p for place, p in enumerate(read_corpus(folder / "corpus.jsonl.gz")) if p.id in gold or place % 20 == 0]
    env = make(corpus=passages, questions={"train": wanted[:1], "test": wanted}, passages=5)
    ends = [asyncio.run(play_expert(env, task))[1].metrics for task in env.tasks("test")]
    assert all(end["success"] == 1.0 for end in ends)
    assert sum(end["gold_recall"] for end in ends) / len(ends) > 0.9
