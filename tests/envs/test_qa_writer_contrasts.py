"""Comparisons in HotpotQA's shapes, over a dozen passages: what is asked follows from both of two."""

import random
from itertools import islice

import pytest

from turnwise.envs.qa.writer.contrasts import write_contrasts
from turnwise.envs.qa.writer.facts import FactBook
from turnwise.envs.qa.writer.links import Encyclopedia
from turnwise.envs.qa.writer.questions import write_questions
from turnwise.tools.search.retrieval import Passage

TEXTS = {
    "Nox": "Nox is a Norwegian rock band from Oslo, formed in 1993.",
    "Lumen": "Lumen is a Swedish rock band formed in 1981.",
    "Ada Brandt": "Ada Brandt (born 3 May 1950) is a Norwegian film director and producer.",
    "Eva Lund": "Eva Lund (born 9 June 1944) is a Swedish film director.",
    "Per Moen": "Per Moen (born 1 July 1971) is a Norwegian photographer.",
    "Ola Vik": "Ola Vik (born 2 August 1966) is a Norwegian photographer and film director.",
    "Skerry (town)": "Skerry is a town in Norway. The population was 1,200.",
    "Skerry (village)": "Skerry is a village in Norway. The population was 90.",
    "Holm": "Holm is a town in Norway. The population was 34,000.",
    "Tide": "Tide is a 1999 Norwegian film directed by Ada Brandt.",
    "Reef": "Reef is a 2004 Norwegian film directed by Eva Lund.",
}
CORPUS = [Passage(id=f"p{n}", title=title, text=text) for n, (title, text) in enumerate(TEXTS.items())]


@pytest.fixture(scope="module")
def written():
    drafts = write_contrasts(Encyclopedia(FactBook(CORPUS)), random.Random(5))
    return {question.text: question for question in islice(drafts, 600)}


def asked(written, *words):
    return [one for text, one in written.items() if all(word in text for word in words)]


def facts(one):
    return one.answers[0], one.evidence


def test_of_two_numbers_the_first_or_the_larger_wins(written):
    for one in asked(written, "rock band", "formed first"):
        assert facts(one)[0] == "Lumen"
        assert "1981 is before 1993." in one.evidence
    assert {facts(one)[0] for one in asked(written, "formed later")} == {"Nox"}
    assert {facts(one)[0] for one in asked(written, "director is older")} == {"Eva Lund"}
    (towns,) = {facts(one) for one in asked(written, "more people", "or Holm")}
    assert towns[0] == "Holm"
    assert towns[1].endswith("1,200 is less than 34,000.")


def test_both_are_of_a_nation_or_a_trade_or_not(written):
    assert {one.answers for one in asked(written, "both", "Ada Brandt", "Eva Lund", "Norwegian")} == {("no",)}
    assert {one.answers for one in asked(written, "both", "Ola Vik", "Per Moen", "Norwegian")} == {("yes",)}
    assert {one.answers for one in asked(written, "Ada Brandt", "Eva Lund", "film directors")} <= {("yes",), ("no",)}
    for one in asked(written, "photographers"):
        pair = set(one.supporting_titles)
        assert "Ada Brandt" not in pair or one.answers == ("no",)


def test_who_does_both_is_not_told_apart_by_one(written):
    """Ola Vik directs, too: his passage says it, though not first."""
    for one in asked(written, "directors", "Ola Vik"):
        assert one.answers != ("no",) or "Norwegian" in one.text or "Swedish" in one.text


def test_what_both_do_is_the_one_thing_that_they_share(written):
    shared = {one.supporting_titles: one.answers for one in asked(written, "profession") + asked(written, "occupation")}
    assert shared
    for titles, answers in shared.items():
        assert answers == (
            ("photographer",) if set(titles) == {"Ola Vik", "Per Moen"} else ("film director", "director")
        )


TRADES = {
    "of a nation of two words": ("a South Korean film director", "a Danish film director", "film director"),
    "in longer words": ("an American silent film actor", "an actor", "actor"),
    "with another in common": ("a South Korean film director and screenwriter", "a screenwriter and director", None),
    "with kin in common": ("a novelist and poet", "a screenwriter and poet", None),
    "with kin of its own": ("a writer and novelist", "a novelist", None),
    "which is two": ("an art director", "a film director", None),
    "with another behind": ("a painter who worked as an actor", "an actor and painter", None),
}


@pytest.mark.parametrize("case", TRADES)
def test_a_shared_trade_is_the_only_one(case):
    first, second, trade = TRADES[case]
    texts = {"Al Holt": first, "Bo Lund": second}
    corpus = [Passage(id=name, title=name, text=f"{name} (born 1950) is {what}.") for name, what in texts.items()]
    drafts = islice(write_contrasts(Encyclopedia(FactBook(corpus)), random.Random(0)), 200)
    answers = {one.answers[0] for one in drafts if "profession" in one.text or "occupation" in one.text}
    assert answers == (set() if trade is None else {trade})


@pytest.mark.parametrize(("second", "asked"), [("novelist", False), ("painter", True)])
def test_of_two_trades_neither_is_the_other(second, asked):
    names = [f"{first} {last}" for first in ("Al", "Bo", "Cy") for last in ("Holt", "Lund")]
    corpus = [
        Passage(id=name, title=name, text=f"{name} (born 1950) is a {'writer' if place % 2 else second}.")
        for place, name in enumerate(names)
    ]
    drafts = islice(write_contrasts(Encyclopedia(FactBook(corpus)), random.Random(0)), 200)
    assert any(one.answers == ("no",) for one in drafts) == asked


def test_common_trades_are_asked_for_more_often():
    names = [f"{first} {last}" for first in ("Al", "Bo", "Cy", "Di", "Ed") for last in ("Holt", "Lund", "Moe", "Roe")]
    trades = ["poet"] * 18 + ["cellist"] * 2
    people = zip(names, trades, strict=True)
    corpus = [Passage(id=name, title=name, text=f"{name} (born 1950) is a Danish {trade}.") for name, trade in people]
    drafts = list(islice(write_contrasts(Encyclopedia(FactBook(corpus)), random.Random(0)), 600))
    shared = [one.answers[0] for one in drafts if "profession" in one.text or "occupation" in one.text]
    assert shared.count("poet") > 2 * shared.count("cellist") > 0


def test_one_of_two_is_asked_for_by_what_the_other_lacks(written):
    found = asked(written, "film", "directed by Ada Brandt", "or")
    assert {one.answers[0] for one in found} == {"Tide"}
    assert {one.evidence for one in found} == {"Tide was directed by Ada Brandt. Reef was directed by Eva Lund."}


def test_names_that_several_have_are_written_with_what_tells_them_apart(written):
    for one in written.values():
        if any(title.startswith("Skerry") for title in one.supporting_titles):
            assert "Skerry (" in one.text


def test_yes_and_no_are_both_there_and_all_is_of_two_passages(written):
    answers = [one.answers[0] for one in written.values()]
    assert min(answers.count("yes"), answers.count("no")) > 5
    assert {(one.hops, one.type, one.source) for one in written.values()} == {(2, "contrast", "written")}
    assert all(len(set(one.supporting_ids)) == 2 and "??" not in one.text for one in written.values())


def test_they_are_written_besides_and_leave_the_others_as_they_are():
    book = FactBook(CORPUS)
    plain = [one.text for one in write_questions(book, count=30)]
    more = write_questions(book, count=30, contrasts=12)
    assert [one.text for one in more if one.type != "contrast"] == plain
    assert sum(one.type == "contrast" for one in more) == 12
    assert [one.text for one in write_questions(book, count=30, contrasts=12)] == [one.text for one in more]
    held_out = next(one for one in more if one.type == "contrast")
    again = write_questions(book, count=30, contrasts=12, avoid=[held_out])
    assert all(set(one.supporting_ids) != set(held_out.supporting_ids) for one in again)


def test_a_corpus_with_nothing_to_compare_writes_none():
    assert list(write_contrasts(Encyclopedia(FactBook(CORPUS[:1])), random.Random(0))) == []
    assert list(write_contrasts(Encyclopedia(FactBook([])), random.Random(0))) == []
