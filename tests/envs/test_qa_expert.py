"""What the expert of SearchQA searches for where no title of a missing passage has been read: it follows a name."""

import asyncio
import json

import pytest

from turnwise.envs.qa.env import SearchQA
from turnwise.envs.qa.expert import queries_from
from turnwise.tools.search.http_index import HttpIndex
from turnwise.tools.search.retrieval import Hit, Passage

CORPUS = [
    Passage(
        id="p1", title="AAM-N-4 Oriole", text="The Oriole was a missile made by the American Glenn L. Martin Company."
    ),
    Passage(
        id="p2", title="Martin Marietta", text="An American firm that followed the Glenn L. Martin Company in 1961."
    ),
    Passage(id="p3", title="Oriole", text="An oriole is a bird that followed the sun."),
    Passage(id="p4", title="Baltimore", text="Baltimore is a port. Birds are followed there."),
]
FOLLOWED = {
    "question": "Which company followed the company that made the AAM-N-4 Oriole?",
    "answers": ["Martin Marietta"],
    "supporting_titles": ["AAM-N-4 Oriole", "Martin Marietta"],
    "supporting_ids": ["p1", "p2"],
}


def queries(question, **options):
    given = {"corpus": CORPUS, "questions": {"train": [question]}, "cache": "off", "passages": 1}
    return asyncio.run(play(SearchQA(**(given | options))))


async def play(env):
    live = env.spawn()
    await live.reset(env.tasks("train")[0], 0)
    made = []
    while (message := live.expert()).tool_calls:
        made.append(json.loads(message.tool_calls[0].arguments)["query"])
        await live.step(message)
    return made


@pytest.mark.parametrize(
    ("question", "read", "wanted", "expected"),
    [
        (
            "Who leads the party of Al Ford?",
            "Al Ford is of the Farm Party.",
            "Eva Lund leads the Farm Party.",
            ["Farm Party", "Farm Party leads"],
        ),
        # Names of the question come first; a word that the name has is not said twice.
        (
            "Which river of Ohio flows past Lima?",
            "Lima has a mill. The Ottawa River passes it.",
            "The Ottawa River is in Ohio and flows north.",
            ["Ohio", "Ottawa River", "Ohio river", "Ohio river flows", "Ottawa River Ohio",
             "Ottawa River Ohio flows"],
        ),
        # A name ends with its sentence, an initial does not end it, and small words join it.
        ("Who?", "He met Alf. B. Ford of the Isle of Man did not.", "B. Ford of the Isle of Man, Alf",
         ["Alf", "B. Ford of the Isle of Man"]),
        # At most three words of the question.
        ("Who sold red green blue lamps in Oslo?", "", "Oslo sold red green blue lamps",
         ["Oslo", "Oslo sold", "Oslo sold red", "Oslo sold red green"]),
        # A nationality, a number and a common word lead nowhere.
        ("Where?", "In 1961, American firms.", "In 1961, American firms.", []),
        ("Where?", "Bergen is a port.", "Oslo is a port.", []),
    ],
)  # fmt: skip
def test_a_lead_is_a_name_that_both_have_then_with_words_of_the_question(question, read, wanted, expected):
    assert list(queries_from(question, read, wanted)) == expected


def test_an_expert_follows_a_name_to_a_passage_whose_title_it_has_not_read():
    assert queries(FOLLOWED) == ["AAM-N-4 Oriole", "Glenn L. Martin Company"]


def test_questions_that_know_titles_alone_are_led_on_too():
    titles_alone = {key: value for key, value in FOLLOWED.items() if key != "supporting_ids"}
    assert queries(titles_alone) == ["AAM-N-4 Oriole", "Glenn L. Martin Company"]


def test_a_name_that_the_search_cut_off_was_not_read():
    assert queries(FOLLOWED, passage_chars=20) == ["AAM-N-4 Oriole", FOLLOWED["question"], "Martin Marietta"]


def test_a_query_that_does_not_show_the_passage_is_not_made():
    """The bird's passage answers for "Oriole" alone, so a word of the question goes along."""
    bird = FOLLOWED | {"supporting_titles": ["AAM-N-4 Oriole", "Baltimore"], "supporting_ids": ["p1", "p4"]}
    assert queries(bird) == ["AAM-N-4 Oriole", FOLLOWED["question"], "Baltimore"], "nothing read leads there"
    corpus = [*CORPUS[:3], Passage(id="p4", title="Baltimore", text="Baltimore followed the Oriole company.")]
    assert queries(bird, corpus=corpus) == ["AAM-N-4 Oriole", "Oriole company"]


def test_a_second_passage_under_a_title_that_was_found_is_looked_for():
    again = Passage(
        id="p5",
        title="AAM-N-4 Oriole",
        text="It was tested for years by the Navy, far out at sea and in Point Mugu, until all of the tests ended.",
    )
    twice = FOLLOWED | {
        "question": "Who made the AAM-N-4 Oriole that the Navy tested in Point Mugu?",
        "supporting_titles": ["AAM-N-4 Oriole", "AAM-N-4 Oriole"],
        "supporting_ids": ["p1", "p5"],
    }
    assert queries(twice, corpus=[*CORPUS, again]) == ["AAM-N-4 Oriole", "Navy"]


def test_a_lazy_expert_follows_nothing():
    assert queries(FOLLOWED, lazy=1.0) == [FOLLOWED["question"]]


def test_over_a_service_no_query_is_tried(monkeypatch):
    asked = []

    async def aquery(self, wanted, k):
        asked.extend(wanted)
        return [[Hit(passage=CORPUS[0], score=1.0)] for _ in wanted]

    monkeypatch.setattr(HttpIndex, "aquery", aquery)
    made = queries(FOLLOWED, corpus=None, index="http", url="http://127.0.0.1:9")
    assert made == asked == ["AAM-N-4 Oriole", FOLLOWED["question"], "Martin Marietta"]
