"""Questions that go through one passage to another: whole small corpora, and what all of them keep to."""

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tiny_encyclopedia import CORPUS
from turnwise.envs.qa.formats import Question
from turnwise.envs.qa.writer.bridges import MANY, MOST_OF_ALL, MOST_OF_LIFE, find_chances, ration, write_bridges
from turnwise.envs.qa.writer.facts import FactBook
from turnwise.envs.qa.writer.files import Source, explain_all
from turnwise.envs.qa.writer.links import Encyclopedia
from turnwise.envs.qa.writer.questions import SHARES, write_questions
from turnwise.rewards import normalise_answer
from turnwise.tools.search.retrieval import Passage

GAMES = {
    "Skimmer": "Skimmer is a 1986 computer game published by Holt Soft.",
    "Holt Soft": "Holt Soft was a British software company based in Leeds. It was founded in 1980.",
}
CHAIN = {
    "The Tide": "The Tide is a novel by Nora Quill.",
    "Nora Quill": "Nora Quill was an Irish writer. She was born in Elm, Delaware.",
    "Elm, Delaware": "Elm, Delaware is a village in Kent County, Delaware. Its population was 1,204 at the census.",
}
MORE = {
    **GAMES,
    **CHAIN,
    "Dive": "Dive is a 1990 computer game published by Holt Soft.",
    "The Ebb": "The Ebb is a novel by Nora Quill.",
    "Low Sun": 'Low Sun is a song by Orca from their album "Cold Water".',
    "Cold Water": "Cold Water is the first studio album by Danish band Orca, released in 1999 by Reef Records.",
    "Orca (band)": "Orca are a Danish rock band formed in Odense in 1991.",
    "Elm Creek": "Elm Creek is a creek in Delaware. It is a tributary of the Oak River.",
    "Oak River": "The Oak River is a river in Delaware. It flows into the Shell Bay.",
    "Bo Lund": "Bo Lund is a footballer who plays for Vik United.",
    "Vik United": "Vik United is a Norwegian football club founded in 1911. They play their home games at Strand Park.",
}


def encyclopedia_of(texts: Mapping[str, str]) -> Encyclopedia:
    return Encyclopedia(book_of(texts))


def book_of(texts: Mapping[str, str]) -> FactBook:
    return FactBook([Passage(id=title, title=title, text=text) for title, text in texts.items()])


def ask_all(texts: Mapping[str, str]) -> dict[str, Question]:
    """Every question in all of its words, by its text."""
    encyclopedia = encyclopedia_of(texts)
    asked = [question for seed in range(60) for question in write_bridges(encyclopedia, random.Random(seed))]
    return {question.text: question for question in asked}


def test_two_passages_are_asked_about_in_every_shape():
    asked = ask_all(GAMES)
    year = [
        f"{ask} {who} founded?"
        for ask in ("In what year was", "What year was")
        for who in ("the publisher of Skimmer", "the British software company that published Skimmer")
    ]
    assert {*year} <= asked.keys()
    led = "Skimmer is a 1986 computer game published by"
    assert f"{led} a British software company founded in what year?" in asked
    assert f"{led} what British software company based in Leeds?" in asked
    assert "Which British software company based in Leeds published Skimmer?" in asked
    assert {question.supporting_titles for question in asked.values()} == {("Skimmer", "Holt Soft")}
    assert {question.answers for question in asked.values()} == {("1980",), ("Leeds",), ("Holt Soft",)}


def test_the_evidence_tells_the_facts_in_order_and_the_answer_last():
    asked = ask_all(GAMES)
    told = {question.evidence for question in asked.values() if question.answers == ("1980",)}
    assert told == {
        "Skimmer was published by Holt Soft. Holt Soft was founded in 1980.",
        "Skimmer is a 1986 computer game published by Holt Soft. Holt Soft was founded in 1980.",
    }
    named = {question.evidence for question in asked.values() if question.answers == ("Holt Soft",)}
    assert all(one.split(". ")[1].startswith("Holt Soft is a British software company ") for one in named)


def test_three_passages_are_asked_about():
    asked = {text: question for text, question in ask_all(CHAIN).items() if question.hops == 3}
    assert asked
    assert {question.supporting_titles for question in asked.values()} == {("The Tide", "Nora Quill", "Elm, Delaware")}
    question = asked["What is the population of the village where the author of The Tide was born?"]
    assert question.answers == ("1,204",)
    assert question.evidence == (
        "The Tide was written by Nora Quill. Nora Quill was born in Elm, Delaware. "
        "The population of Elm, Delaware is 1,204."
    )
    assert "The Tide is a novel by an Irish writer born in a village with what population?" in asked


@pytest.mark.parametrize(
    "changed",
    [
        {"Holt Soft (film)": "Holt Soft is a 1990 film."},
        {"Holt Soft (Leeds)": "Holt Soft is a company founded in 1999."},
    ],
)
def test_a_name_that_two_subjects_have_leads_to_what_the_words_call_for_or_nowhere(changed: dict[str, str]):
    answers = {answer for question in ask_all({**GAMES, **changed}).values() for answer in question.answers}
    assert "1999" not in answers
    assert ("1980" in answers) == ("Holt Soft (film)" in changed)


def test_a_passage_whose_title_another_has_is_not_asked_about():
    passages = [Passage(id=title, title=title, text=text) for title, text in GAMES.items()]
    for twin in passages:
        book = FactBook([*passages, replace(twin, id="twin", text=f"{twin.title} lies in the north.")])
        assert list(write_bridges(Encyclopedia(book), random.Random(0))) == []


def test_every_question_keeps_to_its_passages():
    asked = ask_all(MORE)
    assert len(asked) > 100
    assert {2, 3} == {question.hops for question in asked.values()}
    for question in asked.values():
        texts = [f"{title} {MORE[title]}" for title in question.supporting_titles]
        names = [title.split(" (")[0] for title in question.supporting_titles]
        assert question.type == "bridge"
        assert question.supporting_ids == question.supporting_titles
        assert len(question.supporting_ids) == question.hops == len(set(question.supporting_ids))
        assert normalise_answer(question.answers[0]) in normalise_answer(texts[-1]), "it is stated there"
        assert all(name in text for name, text in zip(names[1:], texts, strict=False)), "each names the next"
        assert names[0] in question.text
        assert not any(name in question.text for name in names[1:]), "what is to be found is not given"
        asked_words = f" {normalise_answer(question.text)} "
        assert not any(f" {normalise_answer(answer)} " in asked_words for answer in question.answers)
        assert question.evidence.rstrip(".").split(". ")[-1].find(question.answers[0]) >= 0, "the last fact answers"


def test_no_relation_of_many_has_more_than_its_share():
    texts = dict(MORE)
    for number in range(60):
        texts[f"Game{number}"] = f"Game{number} is a computer game published by Holt Soft."
    encyclopedia = encyclopedia_of(texts)
    facts = {chance.fact for chance in find_chances(encyclopedia) if "Holt Soft" in chance.fact}
    asked = list(write_bridges(encyclopedia, random.Random(0)))
    assert len(facts) > 150
    assert sum("Holt Soft" in question.supporting_titles for question in asked) == MANY > MOST_OF_ALL * len(asked)


def test_what_there_is_little_of_comes_first():
    novels = {f"Novel{number}": f"Novel{number} is a novel by Nora Quill." for number in range(30)}
    asked = list(write_bridges(encyclopedia_of({**MORE, **novels}), random.Random(0)))
    of_novels = [question.text.count("Novel") for question in asked]
    half = len(asked) // 2
    assert sum(of_novels[:half]) < 0.8 * sum(of_novels[half:])


def test_the_first_have_no_more_of_lives_and_dates_than_real_questions():
    asked = [
        Question(text=f"When was the author of Novel{number} born?" if number % 4 else f"Who wrote {number}?",
                 answers=("1950" if number % 4 else "Al Holt",))
        for number in range(400)
    ]  # fmt: skip
    order = ration(asked)
    assert sorted(one.text for one in order) == sorted(one.text for one in asked)
    for last in range(1, 110):
        lives = sum("born" in one.text for one in order[:last])
        assert lives <= MOST_OF_LIFE * last + 1
    assert [one.text for one in order if "wrote" in one.text] == [one.text for one in asked if "wrote" in one.text]


def test_a_title_that_has_the_answer_is_not_asked_about():
    texts = {
        "Burn (Ash song)": '"Burn" is a song by Ash.', "Burn": "Burn is a town in Norway.",
        "Ash": "Ash are a Danish rock band formed in 1991.",
    }  # fmt: skip
    assert not any("Ash" in question.answers for question in ask_all(texts).values())
    plain = {title.replace("Ash song", "song"): text for title, text in texts.items()}
    assert any("Ash" in question.answers for question in ask_all(plain).values())


def test_nothing_is_told_apart_by_what_the_question_says_anyway():
    shot = 'Bo Lund is a Danish cinematographer. He shot all of Al Holt\'s films, including the film "Tide".'
    texts = {"Bo Lund": shot, "Tide": "Tide is a 1990 Danish film directed by Al Holt."}
    asked = ask_all(texts)
    assert any("released in 1990" in text for text in asked)
    assert not any("directed by Al Holt" in text for text in asked)


def test_a_place_may_be_answered_without_its_region():
    asked = ask_all(CHAIN)
    answers = {one.answers for one in asked.values() if one.answers[0] == "Elm, Delaware"}
    assert answers == {("Elm, Delaware", "Elm")}


def test_what_is_of_no_known_kind_is_not_led_through():
    texts = {"Low Sun": "Low Sun is a song about Karl Wax.", "Karl Wax": "Karl Wax is a diverse class of compounds."}
    assert ask_all(texts) == {}


def test_no_city_of_a_city_is_asked_about():
    texts = {"Nes": "Nes is an island off the village of Elm, Delaware.", "Elm, Delaware": CHAIN["Elm, Delaware"]}
    assert ask_all(texts) != {}
    assert not any("village of a village" in text for text in ask_all(texts))


def test_a_year_is_no_song_of_that_name():
    texts = {"Low Sun": "Low Sun is a song by Orca recorded in 1979.", "1979": "1979 is a song by Reef."}
    assert ask_all(texts) == {}


def test_other_questions_are_the_same_whether_bridges_are_written_or_not():
    passages = [*CORPUS, *(Passage(id=title, title=title, text=text) for title, text in MORE.items())]
    book = FactBook(passages)
    without, beside = write_questions(book, count=60), write_questions(book, count=60, bridges=15)
    assert {question.type for question in without} <= set(SHARES)
    assert sum(question.type == "bridge" for question in beside) == 15
    others = [replace(question, id="") for question in beside if question.type != "bridge"]
    assert others == [replace(question, id="") for question in without]
    assert beside == write_questions(book, count=60, bridges=15)
    assert beside != write_questions(book, count=60, bridges=15, seed=1)
    assert len({question.id for question in beside}) == len(beside)
    places = [place for place, question in enumerate(beside) if question.type == "bridge"]
    assert places[0] < len(beside) / 3
    assert places[-1] > 2 * len(beside) / 3, "they are among the others"


def test_what_is_held_out_is_not_asked_about():
    book = book_of(MORE)
    held_out = Question(text="?", answers=("1980",), supporting_ids=("Skimmer", "Holt Soft"))
    whole, kept = (
        write_questions(book, count=1, bridges=500),
        write_questions(book, count=1, bridges=500, avoid=[held_out]),
    )
    assert any("Skimmer" in question.supporting_ids for question in whole)
    assert not any("Skimmer" in question.supporting_ids for question in kept)
    pair = Question(text="?", answers=("x",), supporting_ids=("The Tide", "Nora Quill"))
    kept = write_questions(book, count=1, bridges=500, avoid=[pair])
    assert any("Nora Quill" in question.supporting_ids for question in kept)
    assert not any({"The Tide", "Nora Quill"} <= set(question.supporting_ids) for question in kept), "nor by three"


def test_a_corpus_without_links_has_none():
    assert ask_all({"Skimmer": GAMES["Skimmer"], "Nora Quill": CHAIN["Nora Quill"]}) == {}


@pytest.mark.parametrize(
    "name", ["Nora Quill, Jr.", "Nora Quill Jr.", "Nora Quill Holt", "Nora Quill's son", "Nora Quillan"]
)
def test_a_longer_name_is_anothers(name: str):
    texts = {"The Tide": f"The Tide is a novel by {name}", "Nora Quill": "Nora Quill (born 1950) is an Irish writer."}
    assert ask_all(texts) == {}
    assert ask_all({**texts, "The Tide": "The Tide is a novel by Nora Quill, first published in 1990."}) != {}


def test_a_play_is_not_the_film_of_it():
    film = {"Tide": "Tide is a 1955 French film directed by Al Holt.", "Al Holt": "Al Holt (born 1910) was a director."}
    based = 'Ebb is a 1990 film based on the {} "Tide".'
    linked = [
        any("Ebb" in question.supporting_ids for question in ask_all({**film, "Ebb": based.format(kind)}).values())
        for kind in ("play", "film")
    ]
    assert linked == [False, True]


def test_who_was_dead_or_not_born_directs_nothing():
    def texts(years: str) -> dict[str, str]:
        return {
            "Lamp": "Lamp is a 1955 French film directed by Al Holt.",
            "Al Holt": f"Al Holt ({years}) was a director.",
        }

    assert ask_all(texts("3 May 1900 – 4 June 1960")) != {}
    assert ask_all(texts("3 May 1850 – 4 June 1910")) == {}
    assert ask_all(texts("3 May 1960 – 4 June 2010")) == {}


ASKED = {
    "the answer is stated of the second": (
        "In what year was the firm behind Skimmer founded?", "1980",
        "Skimmer is a 1986 computer game published by Holt Soft. Holt Soft was founded in 1980.",
    ),
    "the answer is the second": (
        "Which British company published Skimmer?", "Holt Soft",
        "Skimmer is a 1986 computer game published by Holt Soft. Holt Soft was a British software company.",
    ),
    "nothing that is asked stands beside the answer": ("How many died when Skimmer sank?", "1980", ""),
    "the answer stands nowhere": ("In what year was the firm behind Skimmer founded?", "1981", ""),
    "the first passage is not asked about": ("In what year was the firm behind Dive founded?", "1980", ""),
    "yes or no": ("Was the firm behind Skimmer founded in 1980?", "yes", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_questions_of_a_known_answer_are_explained_in_the_passages_words(case: str):
    text, answer, evidence = ASKED[case]
    question = Question(text=text, answers=(answer,), supporting_ids=("Holt Soft", "Skimmer"), type="bridge")
    source = Source(passages=[], book=book_of(GAMES), train=[question], avoid=[])
    (explained,), summary = explain_all(source, bridges=True)
    assert explained.evidence == evidence
    assert summary.startswith(f"1 questions, {bool(evidence):d} with evidence; ")
    assert explain_all(source)[0][0].evidence == "", "only where it is asked for"
