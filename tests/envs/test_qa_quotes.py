"""Quotes as evidence: sentences of supporting passages, as a search shows them, the one with the answer last."""

from dataclasses import replace

from turnwise.envs.qa.formats import Question
from turnwise.envs.qa.writer.quotes import quote
from turnwise.tools.search.retrieval import Passage

FILM = Passage(id="f", title="Uskyld (film)", text="Uskyld is a film. It was shown in 1931. Ada Berg directed Uskyld.")
PERSON = Passage(id="p", title="Ada Berg", text="Ada Berg was a director. She was born in Oslo. She died in Bergen.")
PASSAGES = {one.id: one for one in (FILM, PERSON)}
ASKED = Question(
    text="Where was the director of film Uskyld born?", answers=("Oslo",), supporting_ids=("p", "f"), type="bridge"
)


def test_the_sentence_that_names_the_next_passage_comes_before_the_one_with_the_answer():
    assert quote(ASKED, PASSAGES) == "Ada Berg directed Uskyld. She was born in Oslo."


def test_of_several_sentences_with_the_answer_the_one_most_like_the_question_is_quoted():
    twice = replace(PERSON, text="Ada Berg lived in Oslo. She was born in Oslo, too.")
    assert quote(ASKED, PASSAGES | {"p": twice}) == "Ada Berg directed Uskyld. She was born in Oslo, too."


def test_an_initial_ends_no_sentence():
    named = replace(FILM, text="Uskyld is by Ada B. Berg. It is by St. Olaf.")
    person = replace(PERSON, title="Ada B. Berg")
    assert quote(ASKED, {"f": named, "p": person}) == "Uskyld is by Ada B. Berg. She was born in Oslo."


def test_for_yes_and_no_each_passage_is_quoted():
    asked = replace(ASKED, text="Are Uskyld and Ada Berg both a film?", answers=("no",), supporting_ids=("f", "p"))
    other = replace(PERSON, text="Berg was a director of one film. Berg died in Bergen.")
    assert quote(asked, PASSAGES | {"p": other}) == "Ada Berg directed Uskyld. Berg was a director of one film."


def test_nothing_is_quoted_that_a_search_does_not_show():
    filler = "This is a sentence about nothing. " * 30
    assert quote(ASKED, PASSAGES | {"p": replace(PERSON, text=filler + PERSON.text)}) == ""
    assert quote(replace(ASKED, answers=("Rome",)), PASSAGES) == ""
    assert quote(replace(ASKED, supporting_ids=("p", "lost")), PASSAGES) == ""
    assert quote(replace(ASKED, supporting_ids=()), PASSAGES) == ""
    cut = replace(PERSON, text="Ada Berg was born in Oslo. " + "x" * 5000)
    assert quote(ASKED, PASSAGES | {"p": cut}) == "Ada Berg directed Uskyld. Ada Berg was born in Oslo."


def test_a_long_sentence_is_cut_around_the_answer():
    words = [f"word{number}" for number in range(60)]
    long = replace(PERSON, text=" ".join([*words[:40], "Oslo", *words[40:]]))
    _, quoted = quote(ASKED, PASSAGES | {"p": long}).split(". ", 1)
    assert len(quoted.split()) == 24
    assert "Oslo" in quoted
    assert quoted.rstrip(".") in long.text
