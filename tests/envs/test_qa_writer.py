"""Questions by templates: facts are read as written, answers follow from them, and nothing held out is used."""

import asyncio
from dataclasses import replace

import pytest

from tiny_encyclopedia import CORPUS, TEXTS
from turnwise.envs.qa.env import SearchQA
from turnwise.envs.qa.formats import Question
from turnwise.envs.qa.writer.evidence import explain
from turnwise.envs.qa.writer.facts import FactBook, read_facts, spell_person
from turnwise.envs.qa.writer.held_out import HeldOut
from turnwise.envs.qa.writer.questions import SHARES, write_questions
from turnwise.rewards import exact_match, final_answer
from turnwise.tools.search.retrieval import Passage


@pytest.fixture(scope="module")
def book() -> FactBook:
    return FactBook(CORPUS)


def facts_of(title: str):
    return read_facts(Passage(id="p", title=title, text=TEXTS[title]))


def test_lives_are_read_as_they_are_written():
    gance, stemmle = facts_of("Abel Gance"), facts_of("Robert A. Stemmle")
    assert gance.born.text == "25 October 1889"
    assert gance.died.order == (1981, 11, 10)
    assert gance.birth_place == ("Paris",)
    assert gance.nationality == "French"
    assert (stemmle.birth_place, stemmle.death_place) == (("Magdeburg",), ("Baden-Baden",))
    assert (stemmle.father, stemmle.mother) == ("Otto Stemmle", "Clara Winter")


def test_dates_without_a_dash_between_them_are_told_apart():
    joined = facts_of("Joined Up")
    assert (joined.born.text, joined.died.text) == ("October 16, 1912", "October 20, 2009")


@pytest.mark.parametrize(
    ("text", "born", "died", "birth_place", "death_place"),
    [
        ("(born 8 January 1948, Glasgow) is a Scottish director.", "8 January 1948", None, ("Glasgow",), ()),
        ("(born 1964 Passaic, New Jersey) is an American poet.", "1964", None, ("Passaic", "Passaic, New Jersey"), ()),
        ("(born in Al Khor, Qatar on January 15, 1959) is an Indian poet.", "January 15, 1959", None,
         ("Al Khor", "Al Khor, Qatar"), ()),
        ("(born November 1972) is a Scottish director. Born and raised in Aberdeen, Scotland, he left.", "1972", None,
         ("Aberdeen", "Aberdeen, Scotland"), ()),
        ("(born 4 May 1940) is an English singer. Born in Liverpool, Lund became known.", "4 May 1940", None,
         ("Liverpool",), ()),
        ("(2 March 1956 – 22 January 2014) was an Italian director born in Padua. Lund died in Rome.", "2 March 1956",
         "22 January 2014", ("Padua",), ("Rome",)),
        ("(1870 – 1939) was an American painter. He was born to a poor family in Tulsa, Oklahoma and died in Reno.",
         "1870", "1939", ("Tulsa", "Tulsa, Oklahoma"), ("Reno",)),
        ("(1870 – 1939) was an American painter. Lund died of a heart attack on May 4, 1939 in La Jolla, California.",
         "1870", "1939", (), ("La Jolla", "La Jolla, California")),
        ("(born 14 May 1887 in Vienna; died 27 July 1971 in Salzburg) was an Austrian conductor.", "14 May 1887",
         "27 July 1971", ("Vienna",), ("Salzburg",)),
        # Not plain: where a place ends, whose death it is, which of two days, and whether it is a death.
        ("(1870 – 1939) was an American painter. He was born in Saint- Chef, Isère.", "1870", "1939", (), ()),
        ("(1870 – 1939) was an American painter. His brother Karl died in Oslo.", "1870", "1939", (), ()),
        ("(born 24 July 1897; disappeared 2 July 1937) was an American aviator.", "24 July 1897", None, (), ()),
        ("(9 March 1213 – 27 or 30 October 1272) was a French duke.", None, None, (), ()),
    ],
)  # fmt: skip
def test_places_are_read_beside_dates_and_in_sentences_of_their_own(text, born, died, birth_place, death_place):
    facts = read_facts(Passage(id="p", title="Ada Lund", text=f"Ada Lund {text}"))
    dates = [None if date is None else date.text for date in (facts.born, facts.died)]
    assert (*dates, facts.birth_place, facts.death_place) == (born, died, birth_place, death_place)


def test_works_and_places_are_read():
    film = facts_of("Paris Nights (film)")
    assert (film.kind, film.year, film.director, film.nationality) == ("film", 1937, "Abel Gance", "French")
    assert facts_of("The Lamp").nation == "Germany"
    assert facts_of("Two Roads").director is None, "there are two"
    assert facts_of("Abel Gance").kind == "person", "a film director is no film"
    assert [facts_of(title).country for title in ("Shaneh", "Belprahon", "Weabonga")] == [
        "Iran",
        "Switzerland",
        "Australia",
    ]


PARENTS = {
    "a wife behind him": ("of Karl Holm and his wife Ida Roth.", "Karl Holm", "Ida Roth"),
    "a husband behind her": ("of Ida Roth and her husband Karl Holm.", "Karl Holm", "Ida Roth"),
    "a man's title": ("of Sir Karl Holm and Ida Roth.", "Karl Holm", "Ida Roth"),
    "a queen": ("of Queen Ida II of Norway.", None, "Ida II of Norway"),
    "the child's family": ("of Karl Lund and Ida Roth.", "Karl Lund", "Ida Roth"),
    "both of the child's family": ("of Ida Lund and Karl Lund.", None, None),
    "who may be the mother": ("of Kim Holm and Kit Roth.", None, None),
    "alone, and may be the mother": ("of Vivien Holm.", None, None),
    "told apart": ("of Kim Holm. Her mother was Kim Holm, and her father was Kit Roth.", "Kit Roth", "Kim Holm"),
    "an honorific": ("of The Hon. Karl Lund.", "Karl Lund", None),
    "a king of two titles": ("of HM King Karl Lund and HM Queen Ida Roth.", "Karl Lund", "Ida Roth"),
    "a name that is cut": ("of Prince Karl of Thurn and Taxis and his wife Ida Roth.", None, None),
}


@pytest.mark.parametrize("case", PARENTS)
def test_a_parent_is_the_father_only_where_that_is_told(case):
    of, father, mother = PARENTS[case]
    facts = read_facts(
        Passage(id="p", title="Ada Lund", text=f"Ada Lund (born 1950) is a poet. She is the daughter {of}")
    )
    assert (facts.father, facts.mother) == (father, mother)


@pytest.mark.parametrize("before", ["In 1980 she married Bo Moe, the", "Her grandparents were Eva Moe and Bo Moe,"])
def test_whose_child_a_relative_is_tells_no_parent(before):
    text = f"Ada Lund (born 1950) is a poet. {before} son of Sir Karl Moe and his wife Ida Roth."
    facts = read_facts(Passage(id="p", title="Ada Lund", text=text))
    assert (facts.father, facts.mother) == (None, None)


@pytest.mark.parametrize(
    ("karl", "father"),
    [
        ("(born 1920) is a poet. He lives in Oslo.", "Karl Lund"),
        ("(born 1920) is a poet. She lives in Oslo.", None),
        ("(born 1949) is a poet. He lives in Oslo.", None),
    ],
)
def test_no_woman_is_a_father_and_nobody_is_older_than_a_parent(karl, father):
    texts = {"Ada Lund": "(born 1950) is a poet. She is the daughter of Karl Lund.", "Karl Lund": karl}
    book = FactBook([Passage(id=title, title=title, text=f"{title} {text}") for title, text in texts.items()])
    assert book.by_id["Ada Lund"].father == father


def test_a_name_with_a_rank_may_be_answered_without_it():
    assert spell_person("Prince Karl, Duke of Elm") == ("Prince Karl, Duke of Elm", "Prince Karl", "Karl")
    assert spell_person("Karl Lund, 2nd Baronet") == ("Karl Lund, 2nd Baronet", "Karl Lund")
    assert spell_person("Karl Lund") == ("Karl Lund",)


@pytest.mark.parametrize(
    ("text", "performer"),
    [
        ("is a song written by Al Holt, and recorded by American singer Bo Lund.", "Bo Lund"),
        ("is a song written by Al Holt.", None),
        ("is a song written and recorded by Al Holt.", "Al Holt"),
        ("is a song by Al Holt.", "Al Holt"),
        ("is a song by American musician and Orca vocalist Al Holt.", None),
    ],
)
def test_who_wrote_a_song_does_not_perform_it(text, performer):
    assert read_facts(Passage(id="p", title="Low Sun", text=f'"Low Sun" {text}')).performer == performer


@pytest.mark.parametrize(
    ("text", "nationality"),
    [
        ("is an American football coach.", None),
        ("is a former Canadian football player.", None),
        ("is an American soccer player.", None),
        ("is an American footballer.", "American"),
    ],
)
def test_what_a_game_is_called_is_no_nationality(text, nationality):
    assert read_facts(Passage(id="p", title="Al Holt", text=f"Al Holt (born 1950) {text}")).nationality == nationality


@pytest.mark.parametrize(
    ("title", "text", "name"),
    [
        ("Superman (It's Not Easy)", '"Superman (It\'s Not Easy)" is a song.', "Superman (It's Not Easy)"),
        ("Burn (Usher song)", '"Burn" is a song by Usher.', "Burn"),
        ("Ada Lund (1602–1642)", "Ada Lund (1602–1642) was a nun.", "Ada Lund"),
    ],
)
def test_brackets_that_a_passage_writes_are_of_the_name(title, text, name):
    assert read_facts(Passage(id="p", title=title, text=text)).name == name


def test_only_people_are_asked_for_their_nation():
    texts = {
        "Orca": "Orca is a Danish rock band.", "Vik Institute": "Vik Institute is a Swedish institute of technology.",
        "Al Holt": "Al Holt (born 1950) is a Swedish poet.", "Bo Lund": "Bo Lund is a Danish writer.",
        "Eva Dahl": "Eva Dahl is a Polish singer.",
    }  # fmt: skip
    book = FactBook([Passage(id=title, title=title, text=text) for title, text in texts.items()])
    asked = {title for one in write_questions(book, count=200) for title in one.supporting_titles}
    assert asked == {"Al Holt", "Bo Lund", "Eva Dahl"}


def test_a_name_of_two_people_leads_nowhere():
    twins = [replace(CORPUS[3], id="x"), replace(CORPUS[3], id="y", text=TEXTS["Otto Stemmle"])]
    assert FactBook([*twins]).find("Abel Gance", "person") is None
    same = [replace(CORPUS[3], id="x"), replace(CORPUS[3], id="y")]
    assert FactBook([*same]).find("Abel Gance", "person") is not None


def test_every_kind_is_written_and_every_answer_follows(book):
    questions = write_questions(book, count=400)
    assert {question.type for question in questions} == set(SHARES)
    ended = [one for one in questions if "The Lamp" in one.text and (" die?" in one.text or "of death" in one.text)]
    assert ended
    assert {one.answers for one in ended} <= {("24 February 1974",), ("Baden-Baden",)}
    later = [one for one in questions if "director" in one.text and "later" in one.text and one.hops == 4]
    assert later
    assert {one.answers[0] for one in later} == {"Paris Nights"}, "without what tells it from others"
    assert "Abel Gance, who died in 1981" in later[0].evidence
    assert later[0].evidence.endswith(" 1974 is before 1981."), "the order, whatever is asked for"
    compared = [one for one in questions if one.type in ("comparison", "bridge_comparison")]
    for one in compared:
        end = {"yes": "are the same.", "no": "are different."}.get(one.answers[0])
        ends = (end,) if end else (" is before ", " is less than ")
        assert any(words in one.evidence.split(".", 2)[-1] for words in ends), one.evidence
    for question in questions:
        assert explain(question, book)[0] != "contradicted", question
        assert set(question.supporting_ids) <= book.by_id.keys()
        assert len(set(question.supporting_ids)) == question.hops
        told = [book.by_id[name].passage.title.casefold() for name in question.supporting_ids]
        assert any(title in question.text.casefold() for title in told)


def test_a_grandfather_is_found_through_the_father(book):
    found = [one for one in write_questions(book, count=400) if one.type == "inference" and "grandfather" in one.text]
    assert found
    assert {one.answers for one in found} == {("Karl Stemmle",)}
    assert {one.supporting_titles for one in found} == {("Robert A. Stemmle", "Otto Stemmle")}


def test_yes_and_no_are_as_likely(book):
    lakes = [
        Passage(id=f"v{n}", title=f"Village {n}", text=f"Village {n} is a village in {'Iran' if n % 2 else 'Poland'}.")
        for n in range(60)
    ]
    asked = [one for one in write_questions(FactBook(lakes), count=2000) if one.answers[0] in ("yes", "no")]
    share = sum(one.answers == ("yes",) for one in asked) / len(asked)
    assert len(asked) > 300
    assert 0.4 < share < 0.6


def test_what_is_held_out_is_neither_asked_nor_asked_about(book):
    whole = write_questions(book, count=400)
    held_out = [one for one in whole if one.type == "compositional" and "director" in one.text][:1]
    kept = write_questions(book, count=400, avoid=held_out)
    gold = frozenset(held_out[0].supporting_ids)
    assert any(frozenset(one.supporting_ids) == gold for one in whole)
    assert any(gold < frozenset(one.supporting_ids) for one in whole), "a bridge goes by both of them, too"
    assert not any(gold <= frozenset(one.supporting_ids) for one in kept)
    bridged = next(one for one in whole if one.hops == 4)
    part = frozenset(bridged.supporting_ids[0::2])
    assert any(frozenset(one.supporting_ids) == part for one in whole)
    kept = write_questions(book, count=400, avoid=[replace(bridged, text="?")])
    assert not any(part == frozenset(one.supporting_ids) for one in kept), "nor by one of its two films and director"
    by_text = [Question(text=held_out[0].text.upper(), answers=("x",))]
    assert held_out[0].text not in {one.text for one in write_questions(book, count=400, avoid=by_text)}


def test_what_is_held_out_is_known_by_its_titles_where_a_passage_stands_twice():
    held_out = HeldOut(
        [Question(text="?", answers=("x",), supporting_ids=("a", "b"), supporting_titles=("Elm", "Oak"))]
    )
    assert held_out.overlap(("a", "b"), ("Elm", "Oak"))
    assert held_out.overlap(("c", "d"), ("oak", "Elm")), "siblings"
    assert held_out.overlap(("a", "b", "c"), ("Elm", "Oak", "Ash"))
    assert not held_out.overlap(("a", "c"), ("Elm", "Ash"))
    assert not held_out.overlap(("c",), ("Elm",)), "one passage alone may be shared"


def test_nothing_is_asked_again_in_other_words(book):
    facts = [(frozenset(one.supporting_ids), one.answers[0]) for one in write_questions(book, count=400)]
    assert len(set(facts)) == len(facts)


def test_a_seed_writes_the_same_and_another_something_else(book):
    first, again, other = (write_questions(book, count=60, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert [one.text for one in first] != [one.text for one in other]
    assert len({one.id for one in first}) == len(first)
    assert len({one.text for one in first}) == len(first)


def test_evidence_is_given_only_where_it_comes_to_the_gold_answer(book):
    asked = Question(
        text="When did the director of film The Lamp die?",
        answers=("24 February 1974",),
        supporting_ids=("p1", "p4"),
        source="2wiki",
        type="compositional",
    )
    verdict, evidence = explain(asked, book)
    assert verdict == "explained"
    assert evidence == "The Lamp was directed by Robert A. Stemmle. Robert A. Stemmle died on 24 February 1974."
    assert explain(replace(asked, answers=("1 May 1974",)), book) == ("unknown", "")
    assert explain(replace(asked, text="Where did the director of film The Lamp work?"), book) == ("unknown", "")


def test_the_expert_tells_its_evidence_before_it_answers(book):
    question = next(one for one in write_questions(book, count=400) if one.type == "bridge_comparison")
    env = SearchQA(questions=[question, replace(question, id="other")], corpus=CORPUS, cache="off")

    async def play() -> str:
        await env.reset(env.tasks("train")[0], 0)
        while True:
            message = env.expert()
            if (await env.step(message)).done:
                return message.content

    said = asyncio.run(play())
    assert said.startswith(f"{question.evidence} <answer>")
    assert exact_match(final_answer(said), question.answers)


def test_a_question_explained_by_facts_concludes_as_the_writer_does(book):
    compared = [one for one in write_questions(book, count=400) if one.type in ("comparison", "bridge_comparison")]
    told = [(one.evidence, explain(one, book)) for one in compared if "lived longer" not in one.text]
    assert [evidence for evidence, (verdict, _) in told if verdict == "explained"]
    for evidence, (verdict, explained) in told:
        assert verdict != "explained" or explained == evidence
