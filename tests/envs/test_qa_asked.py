"""Questions by a model: what is kept, what is dropped and why, and nothing held out is asked about."""

import asyncio
import json

import pytest

from tiny_encyclopedia import CORPUS
from turnwise.envs.qa.formats import Question
from turnwise.envs.qa.writer.asked import ask_for_questions, find_fault
from turnwise.tools.search import open_index
from turnwise.tools.search.retrieval import Passage

FILM = Passage(id="p0", title="Paris Nights (film)", text="Paris Nights is a film directed by Abel Gance.")
GANCE = Passage(id="p3", title="Abel Gance", text="Abel Gance was a French film director. He was born in Paris.")


def draft(question, answer):
    return Question(text=question, answers=(answer,))


@pytest.mark.parametrize(
    ("kind", "question", "answer", "fault"),
    [
        ("composition", "What nationality is the director of Paris Nights?", "French", None),
        ("composition", "What nationality is Abel Gance?", "French", "it names the passage that is to be found"),
        ("composition", "Is the director of Paris Nights French?", "French", "it tells the answer"),
        ("composition", "Who made Paris Nights?", "Jean Renoir", "the answer is not in the passages"),
        ("composition", "Which film?", "Paris Nights", "the answer is not in the passages"),
        ("inference", "Which film?", "Paris Nights", None),
        ("inference", "Which film?", " ".join(["long"] * 13), "the answer is long"),
        ("comparison", "Is Paris Nights older than Abel Gance?", "no", None),
        ("comparison", "Which is older, Paris Nights or Abel Gance?", "Abel Gance", None),
        (
            "comparison",
            "Which is older, Paris Nights or Abel Gance?",
            "1889",
            "the answer is neither subject, yes nor no",
        ),
        ("comparison", "Is Paris Nights old?", "yes", "it does not name both subjects"),
    ],
)
def test_words_alone_tell_some_faults(kind, question, answer, fault):
    assert find_fault(draft(question, answer), kind=kind, first=FILM, second=GANCE) == fault


class Model:
    """Writes one composition for every pair, and answers by what it is shown."""

    def __init__(self, *, needs=2, reply=None):
        self.needs, self.reply = needs, reply
        self.prompts = []

    async def __call__(self, prompt):
        self.prompts.append(prompt)
        if "Write one question" not in prompt:
            return "The Sea." if prompt.count(": ") >= self.needs else "unknown"
        if self.reply is not None:
            return self.reply(prompt)
        first = prompt.removeprefix("First passage: ").split(":")[0]
        return "Sure! " + json.dumps({"question": f"Where is what {first} is near?", "answer": "the sea"})


SEA = [
    Passage(id="a", title="Alpha Rock", text="Alpha Rock is near Beta Rock"),
    Passage(id="b", title="Beta Rock", text="Beta Rock stands in the sea near Gamma Rock"),
    Passage(id="c", title="Gamma Rock", text="Gamma Rock stands in the sea, far from Alpha Rock"),
]


def run(model, **options):
    return asyncio.run(ask_for_questions(open_index(SEA, cache="off"), model, **({"count": 9, "at_once": 2} | options)))


def seeds_of(kind):
    """A seed under which every pair is of the kind."""
    for seed in range(200):
        model = Model(reply=lambda prompt: "nothing")
        run(model, seed=seed)
        if model.prompts and all(("compares them" in prompt) == (kind == "comparison") for prompt in model.prompts):
            return seed
    raise AssertionError(kind)


def test_a_question_is_kept_when_both_passages_answer_it_and_neither_alone():
    seed = seeds_of("linked")
    asked = run(Model(), seed=seed)
    assert asked.questions
    for one in asked.questions:
        assert (one.source, one.hops, one.answers) == ("asked", 2, ("the sea",))
        assert one.type in ("composition", "inference")
        titles = {passage.id: passage.title for passage in SEA}
        assert [titles[name] for name in one.supporting_ids] == list(one.supporting_titles)
    assert run(Model(needs=3), seed=seed).dropped["not answered from both passages"]
    assert run(Model(needs=1), seed=seed).dropped["answered from one passage"]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (None, "no reply"),
        ("I cannot.", "no question in the reply"),
        ("{not json}", "no question in the reply"),
        ('{"question": "What?", "answer": "the"}', "no question in the reply"),
        ('{"question": "In the sea?", "answer": "the sea"}', "it tells the answer"),
    ],
)
def test_what_is_dropped_is_counted_by_its_reason(reply, reason):
    asked = run(Model(reply=lambda prompt: reply) if reply else _silent, seed=seeds_of("linked"))
    assert not asked.questions
    assert set(asked.dropped) == {reason}


async def _silent(prompt):
    return None


def test_nothing_held_out_is_asked_about_and_no_text_twice():
    seed = seeds_of("linked")
    every = {frozenset(one.supporting_ids) for one in run(Model(), seed=seed).questions}
    assert every
    for ids in every:
        titles = tuple(passage.title for passage in SEA if passage.id in ids)
        for held_out in (
            Question(text="x", answers=("y",), supporting_ids=tuple(ids)),
            Question(text="x", answers=("y",), supporting_titles=titles),
            Question(text="x", answers=("y",), supporting_ids=(min(ids),)),  # one passage of the pair answers it
        ):
            kept = run(Model(), seed=seed, avoid=[held_out]).questions
            assert ids not in {frozenset(one.supporting_ids) for one in kept}
    first = run(Model(), seed=seed).questions[0]
    again = run(Model(), seed=seed, known=[first])
    assert first.text not in {one.text for one in again.questions}
    assert again.dropped["asked before"] == 1
    same = Model(reply=lambda prompt: json.dumps({"question": "What?", "answer": "the sea"}))
    asked = run(same, seed=seed)
    assert len(asked.questions) <= 1
    assert run(Model(), seed=seed, count=1).questions == run(Model(), seed=seed).questions[:1]


def test_pairs_are_linked_by_a_name():
    asked = Model(reply=lambda prompt: "nothing")
    for seed in range(5):
        asyncio.run(ask_for_questions(open_index(CORPUS, cache="off"), asked, count=50, seed=seed))
    linked = [prompt for prompt in asked.prompts if "compares them" not in prompt]
    assert any("First passage: Paris Nights (film): " in prompt for prompt in linked)
    for prompt in linked:
        first, second = prompt.split("\n\n")[:2]
        assert second.removeprefix("Second passage: ").split(":")[0] in first
