"""Evidence for questions of a known answer: both facts are told, and each stands in its passage."""

from collections.abc import Mapping

import pytest

from turnwise.envs.qa.formats import Question
from turnwise.envs.qa.writer.evidence import explain
from turnwise.envs.qa.writer.facts import FactBook
from turnwise.tools.search.retrieval import Passage

TEXTS = {
    "Sea Song": '"Sea Song" is a song by singer Gun Ahlberg from her second album, made in Oslo.',
    "Gun Ahlberg": "Gun Ahlberg (born 12 May 1960) is a Swedish singer. She graduated from Lund University and was "
    "married to Per Holm. Her father was the painter Nils Ahlberg.",
    "Nils Ahlberg": "Nils Ahlberg (born 1930 died 1999) painted the sea. He was buried in Visby, and his own father "
    "was Karl Ahlberg.",
    "Hasan Bey": "Hasan Bey was born in Edirne, in the Ottoman Empire.",
    "Ayse Hatun": "Ayse Hatun was the wife of Hasan Bey, who outlived her.",
    "Night Boat": "Night Boat is a Bollywood film with a score by R. Das. It was shown in 1942. Mehta directed it.",
    "J. Mehta": "J. Mehta, from Pune in India, made films. Born May 5, 1907, he died young on 3 June 1950.",
    "The Lift (1983 film)": "The Lift is a 1983 Dutch film by Dick Maas.",
    "Dick Maas": "Dick Maas, a Dutch film director, was born on 15 April 1951 in Heemstede.",
    "Old Mill": "The Old Mill stands in Lugo, Spain. It was established in 1790 and rebuilt in 1850.",
    "New Mill": "The New Mill in Vigo was built in 1901.",
}


@pytest.fixture(scope="module")
def book() -> FactBook:
    return FactBook([Passage(id=title, title=title, text=text) for title, text in TEXTS.items()])


def ask(text: str, answer: str, *titles: str, kind: str = "compositional", aliases: tuple[str, ...] = ()) -> Question:
    return Question(text=text, answers=(answer, *aliases), supporting_ids=titles, source="2wiki", type=kind)


COMPOSED: Mapping[str, tuple[Question, str]] = {
    "study": (
        ask("Where did the performer of song Sea Song graduate from?", "Lund University", "Sea Song", "Gun Ahlberg"),
        "Sea Song is by Gun Ahlberg. Gun Ahlberg studied at Lund University.",
    ),
    "passages in any order": (
        ask("Who is the spouse of the performer of song Sea Song?", "Per Holm", "Gun Ahlberg", "Sea Song"),
        "Sea Song is by Gun Ahlberg. The spouse of Gun Ahlberg is Per Holm.",
    ),
    "a country by its people": (
        ask("Which country the performer of song Sea Song is from?", "Sweden", "Sea Song", "Gun Ahlberg"),
        "Sea Song is by Gun Ahlberg. Gun Ahlberg is Swedish.",
    ),
    "a country that no list has": (
        ask("What nationality is Ayse Hatun's husband?", "Ottoman Empire", "Ayse Hatun", "Hasan Bey"),
        "The husband of Ayse Hatun is Hasan Bey. Hasan Bey is from Ottoman Empire.",
    ),
    "possessive": (
        ask("Where was the place of burial of Gun Ahlberg's father?", "Visby", "Gun Ahlberg", "Nils Ahlberg"),
        "The father of Gun Ahlberg is Nils Ahlberg. Nils Ahlberg was buried in Visby.",
    ),
    "by the last name": (
        ask("When was the director of film Night Boat born?", "May 5, 1907", "Night Boat", "J. Mehta"),
        "Night Boat was directed by J. Mehta. J. Mehta was born on May 5, 1907.",
    ),
    "kinship": (
        ask("Who is the paternal grandfather of Gun Ahlberg?", "Karl Ahlberg", "Gun Ahlberg", "Nils Ahlberg",
            kind="inference"),
        "The father of Gun Ahlberg is Nils Ahlberg. The father of Nils Ahlberg is Karl Ahlberg.",
    ),
    "an alias that stands there": (
        ask("Where was the director of film Night Boat born?", "Poona", "Night Boat", "J. Mehta", aliases=("Pune",)),
        "Night Boat was directed by J. Mehta. J. Mehta was born in Pune.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", COMPOSED)
def test_both_facts_are_told(case: str, book: FactBook):
    question, evidence = COMPOSED[case]
    assert explain(question, book) == ("explained", evidence)


UNEXPLAINED = {
    "the passage does not state it": ask(
        "Where was the performer of song Sea Song born?", "Malmö", "Sea Song", "Gun Ahlberg"
    ),
    "the person is named nowhere": ask(
        "Where was the performer of song Sea Song born?", "Pune", "Sea Song", "J. Mehta"
    ),
    "the question names neither": ask("Where was the performer of song Hill born?", "Oslo", "Sea Song", "Gun Ahlberg"),
    "another relation": ask("Where was the dog of Gun Ahlberg born?", "Visby", "Gun Ahlberg", "Nils Ahlberg"),
    "another attribute": ask("What did Gun Ahlberg's father eat?", "Visby", "Gun Ahlberg", "Nils Ahlberg"),
    "another kinship": ask(
        "Who is the uncle of Gun Ahlberg?", "Karl Ahlberg", "Gun Ahlberg", "Nils Ahlberg", kind="inference"
    ),
    "a passage is not in the corpus": ask(
        "Where was the performer of song Sea Song born?", "Oslo", "Sea Song", "Other"
    ),
    "nothing is put in order": ask(
        "Which mill was founded in Lugo, Old Mill or New Mill?", "Old Mill", "Old Mill", "New Mill", kind="comparison"
    ),
    "no country is compared": ask(
        "Old Mill and New Mill are in which country?", "no", "Old Mill", "New Mill", kind="comparison"
    ),
    "three passages": ask(
        "Where was the performer of song Sea Song born?", "Lund", "Sea Song", "Gun Ahlberg", "Nils Ahlberg"
    ),
}


@pytest.mark.parametrize("case", UNEXPLAINED)
def test_nothing_is_told_where(case: str, book: FactBook):
    assert explain(UNEXPLAINED[case], book) == ("unknown", "")


def test_films_are_paired_with_their_own_directors(book: FactBook):
    asked = ask(
        "Which film has the director born later, The Lift (1983 Film) or Night Boat?",
        "The Lift",
        *("J. Mehta", "The Lift (1983 film)", "Dick Maas", "Night Boat"),
        kind="bridge_comparison",
    )
    assert explain(asked, book) == (
        "explained",
        "The Lift was directed by Dick Maas, born in 1951. Night Boat was directed by J. Mehta, born in 1907. "
        "1907 is before 1951.",
    )


def test_a_comparison_reads_more_than_questions_are_written_from(book: FactBook):
    lived = ask(
        "Who lived longer, Nils Ahlberg or J. Mehta?", "Nils Ahlberg", "J. Mehta", "Nils Ahlberg", kind="comparison"
    )
    assert explain(lived, book)[1] == "Nils Ahlberg lived 69 years. J. Mehta lived 43 years. 43 is less than 69."
    first = ask(
        "Which was established first, Old Mill or New Mill?", "Old Mill", "New Mill", "Old Mill", kind="comparison"
    )
    assert explain(first, book)[1].endswith("1790 is before 1901.")
    alike = ask(
        "Are Night Boat and Gun Ahlberg from the same country?", "no", "Night Boat", "Gun Ahlberg", kind="comparison"
    )
    told = "Night Boat is Bollywood. Gun Ahlberg is Swedish. Bollywood and Swedish are different."
    assert explain(alike, book) == ("explained", told)


def test_a_comparison_whose_passages_say_otherwise_is_contradicted(book: FactBook):
    asked = ask("Who is older, Gun Ahlberg or J. Mehta?", "Gun Ahlberg", "Gun Ahlberg", "J. Mehta", kind="comparison")
    assert explain(asked, book) == ("contradicted", "")


def test_words_of_a_title_do_not_decide_what_is_asked(book: FactBook):
    texts = {"A Country Fair": "A Country Fair was shown in 1920.", "Later": "Later is a play that opened in 1930."}
    book = FactBook([Passage(id=title, title=title, text=text) for title, text in texts.items()])
    asked = ask("Which came out first, Later or A Country Fair?", "A Country Fair", *texts, kind="comparison")
    assert explain(asked, book)[1] == "Later came out in 1930. A Country Fair came out in 1920. 1920 is before 1930."
