"""What is read of one passage, sentence by sentence: its topic, its statements, and the words that lead to a name."""

from collections.abc import Mapping

import pytest

from turnwise.envs.qa.writer.facts import read_facts
from turnwise.envs.qa.writer.leads import Lead, read_lead
from turnwise.envs.qa.writer.links import STATEMENTS
from turnwise.envs.qa.writer.topics import Topic, read_topic
from turnwise.tools.search.retrieval import Passage


def topic_of(title: str, text: str) -> Topic | None:
    return read_topic(read_facts(Passage(id=title, title=title, text=text)))


TOPICS: Mapping[str, tuple[str, str, str]] = {
    "Orca (band)": ("Orca are a Danish rock band formed in Odense.", "band", "Danish rock band"),
    "Skimmer": ("Skimmer is a 1986 computer game published by Holt Soft.", "game", "1986 computer game"),
    "Vik, Norway": ("Vik is a town in Vestland county.", "settlement", "town"),
    "The Post": ("The Post is a weekly newspaper printed in Bergen.", "magazine", "weekly newspaper"),
    "Jo Berg": ("Jo Berg (born 3 May 1950) was the son of Ada Berg.", "person", "person"),
    "Wax": ("Wax is a diverse class of organic compounds.", "other", ""),
    "Vik Church": ('The Vik Church (Norwegian: "Vik kyrkje") is a church from 1877.', "building", "church"),
}


@pytest.mark.parametrize("title", TOPICS)
def test_an_opening_says_what_a_passage_is_about(title: str):
    text, kind, noun = TOPICS[title]
    topic = topic_of(title, text)
    assert topic is not None
    assert (topic.kind, topic.noun) == (kind, noun)


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ("Southern Europe", "The Nazi regime was a dictatorship."),
        ("List of Orca albums", "List of Orca albums is a list of the albums by Orca."),
        ("Orca", "Orca may refer to:"),
        ("Orca", ""),
    ],
)
def test_a_passage_that_does_not_say_what_it_is_about_is_none(title: str, text: str):
    assert topic_of(title, text) is None


def test_only_sentences_about_the_topic_are_statements():
    topic = topic_of(
        "Holt Soft",
        "Holt Soft was a British company (see below) based in Leeds. It was founded in 1980. Its rival was founded in "
        "1979. The company closed in 1990. Holt Soft made games. The game was a success. Later, the building was sold.",
    )
    assert topic is not None
    assert topic.said == (" based in Leeds", "was founded in 1980", "closed in 1990", "made games")
    assert topic.clauses[0] == "was a British company based in Leeds"


NOUNS = {
    "Danish rock band": "Danish rock band",
    "largest city": "city",
    "third studio album": "album",
    "2006 American drama film": "film",
    "Marvel Comics character": "character",
}


@pytest.mark.parametrize("noun", NOUNS)
def test_a_topic_is_known_as_what_tells_little(noun: str):
    topic = topic_of("Orca", f"Orca is a {noun}.")
    assert topic is not None
    assert topic.known_as == NOUNS[noun]


STATED: Mapping[str, tuple[str, str, str]] = {
    "publisher": ("Skimmer", "Skimmer is a 1986 computer game published by Holt Soft.", "Holt Soft"),
    "author": ("The Tide", "The Tide is a novel by the Irish writer Nora Quill, set in Cork.", "Nora Quill"),
    "writer": ("Pilot", "Pilot is an episode written by Nora Quill.", "Nora Quill"),
    "network": ("Hotel Sea", "Hotel Sea is a drama series. It aired on NBC from 1990.", "NBC"),
    "premiere": ("Hotel Sea", "Hotel Sea is a drama series that premiered on NBC on May 3, 1990.", "1990"),
    "creator": ("Hotel Sea", "Hotel Sea is an American sitcom created by Nora Quill.", "Nora Quill"),
    "album": ("Low Sun", 'Low Sun is a song by Orca from their album "Cold Water".', "Cold Water"),
    "label": ("Cold Water", "Cold Water is an album. It was released in 1999 by Reef Records.", "Reef Records"),
    "source": ("Tide", 'Tide is a 1990 film based on the novel "The Tide" by Nora Quill.', "The Tide"),
    "sequel": ("Tide II", 'Tide II is a 1995 film. It is a sequel to the film "Tide".', "Tide"),
    "publication year": ("The Tide", "The Tide is a novel first published in 1934.", "1934"),
    "played by": ("Ed Moss", "Ed Moss is a fictional character played by Jim Holt.", "Jim Holt"),
    "band": ("Ida Roe", "Ida Roe is a Danish singer. She is the guitarist of the band Orca.", "Orca"),
    "education": ("Bo Lund", "Bo Lund is a writer. He graduated from Lund University.", "Lund University"),
    "band formed": ("Orca", "Orca are a rock band formed in Odense in 1991.", "1991"),
    "band's home": ("Orca", "Orca are a rock band from Odense, Denmark.", "Odense, Denmark"),
    "founding year": ("Holt Soft", "Holt Soft is a company. It was founded by Al Holt in 1980.", "1980"),
    "founder": ("Holt Soft", "Holt Soft is a company founded by Al Holt.", "Al Holt"),
    "headquarters": ("Holt Soft", "Holt Soft is a company headquartered in Leeds, England.", "Leeds, England"),
    "owner": ("Reef Records", "Reef Records is a label owned by Holt Group.", "Holt Group"),
    "home ground": ("Vik FC", "Vik FC is a club. They play their home games at Strand Park.", "Strand Park"),
    "location": ("Strand Park", "Strand Park is a stadium located in Vik, Norway.", "Vik, Norway"),
    "county": ("Elm", "Elm is a village in Kent County, Delaware.", "Kent County"),
    "state": ("Elm", "Elm is a village in Kent County, Delaware.", "Delaware"),
    "population": ("Elm", "Elm is a village. At the 2010 census its population was 1,204.", "1,204"),
    "father": ("Jo Berg", "Jo Berg (born 1950) is a poet. He is the son of Nils Berg and Ada Holm.", "Nils Berg"),
}  # fmt: skip


def find(name: str, title: str, text: str) -> str:
    topic = topic_of(title, text)
    assert topic is not None
    (statement,) = (one for one in STATEMENTS if one.name == name)
    value = statement.find(topic)
    return "" if value is None else value.text


@pytest.mark.parametrize("name", STATED)
def test_a_statement_is_read_as_it_is_written(name: str):
    title, text, value = STATED[name]
    assert find(name, title, text) == value


@pytest.mark.parametrize(
    ("text", "spellings"),
    [
        ("located in Reno, Nevada, United States.", ("Reno, Nevada", "Reno")),
        ("located in Reno, Nevada, U.S.", ("Reno, Nevada", "Reno")),
        ("located in Vik, Norway.", ("Vik, Norway", "Vik")),
    ],
)
def test_a_place_is_named_without_the_country_behind_its_state(text: str, spellings: tuple[str, ...]):
    topic = topic_of("Holt Hall", f"Holt Hall is a museum {text}")
    assert topic is not None
    (location,) = (one for one in STATEMENTS if one.name == "location")
    value = location.find(topic)
    assert value is not None
    assert value.spellings == spellings


UNSTATED: Mapping[str, tuple[str, str, str]] = {
    "another's founding": (
        "founding year", "Skim", "Skim is a magazine owned by Holt Group, which was founded in 1950.",
    ),
    "two founders": ("founder", "Holt Soft", "Holt Soft is a company founded by Al Holt and Bo Lund."),
    "a list of authors": ("author", "The Tide", "The Tide is a book by Nora Quill, Al Holt and Bo Lund."),
    "of another kind": ("population", "Orca", "Orca is a band. Its population was 1,204."),
    "two populations": (
        "population", "Elm", "Elm is a village. Its population was 1,204 in 2010. The population was 1,100 in 2000.",
    ),
    "of the area": ("population", "Elm", "Elm is a city. Its metropolitan area has a population of 1,204,000."),
    "a day of the week": ("network", "Hotel Sea", "Hotel Sea is a series. It aired on Mondays."),
    "a wife's father": (
        "father", "Jo Berg", "Jo Berg (born 1950) is a poet. He married Eva, the daughter of Karl Holm.",
    ),
    "a parent alone, who may be the mother": ("father", "Jo Berg", "Jo Berg (born 1950) is the son of Kim Berg."),
    "two marriages": ("spouse", "Jo Berg", "Jo Berg is a poet. He married Eva Holm. He later married Ida Roe."),
    "of the lyrics": ("writer", "Low Sun", "Low Sun is a song with lyrics written by Nora Quill."),
    "of a people": ("performer", "Low Sun", "Low Sun is a song by British-Irish band Orca."),
    "a co-founder's": ("founder", "Holt Soft", "Holt Soft is a company co-founded by Al Holt."),
    "a time": ("location", "Holt Hall", "Holt Hall is a museum founded in September 1990."),
    "a university": ("location", "Holt Hall", "Holt Hall is a museum at Vik University."),
    "a stadium": ("location", "Vik FC", "Vik FC is a football team. It plays in Strand Arena."),
    "described before it is named": ("owner", "Holt Hall", "Holt Hall is a hotel owned by American Holt Group."),
    "described by a continent": ("network", "Hotel Sea", "Hotel Sea is a series. It aired on African Magic."),
    "a word for any": ("creator", "Hotel Sea", "Hotel Sea is a series created by Studio 100."),
    "with an employer": ("creator", "Hotel Sea", "Hotel Sea is a series created by Al Holt of Holt Films."),
    "an owner's": ("founder", "Reef Records", "Reef Records is a label founded by Holt Group's Al Holt."),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSTATED)
def test_what_is_not_plainly_stated_is_left_out(case: str):
    name, title, text = UNSTATED[case]
    assert find(name, title, text) == ""


def test_every_statement_has_words_for_all_that_it_is_used_for():
    for one in STATEMENTS:
        assert one.tell.count("{}") == 2
        assert all(words.count("{}") == 1 for words in (*one.ask, *one.refer)), one.name
        assert not any("{}" in words for words in (*one.relative, one.clause)), one.name
        assert one.described.count("{}") == bool(one.described)
        assert bool(one.to) or not one.refer, one.name
        assert all(words.endswith("?") for words in (*one.ask, *one.relative)), one.name


TARGETS = {
    "Nora Quill": "Nora Quill (born 1950) is an Irish writer and actress.",
    "Al Stone (drummer)": "Al Stone (born 1950) is a British drummer.",
    "Orca (band)": "Orca are a Danish rock band.",
    "Hotel Sea": "Hotel Sea is an American sitcom.",
    "Low Sun (film)": "Low Sun is a 1950 film.",
    "Glory (1989 film)": "Glory is a 1989 American film.",
    "Leeds": "Leeds is a city in England.",
    "France": "France is a country.",
}
LEADS: Mapping[str, tuple[str, str, Lead | None]] = {
    "a role before the name": (
        "Nora Quill", "is a novel by Irish writer Nora Quill.", Lead(words="is a novel by", listed=False),
    ),
    "an article": ("Orca (band)", "is a guitarist for the band Orca.", Lead(words="is a guitarist for", listed=False)),
    "the first of a list": ("Nora Quill", "stars Nora Quill, Al Holt and Bo Lund.", Lead(words="stars", listed=True)),
    "in a list": (
        "Nora Quill", "is a film starring Al Holt, Nora Quill.", Lead(words="is a film starring", listed=True),
    ),
    "quoted": ("Hotel Sea", 'is known for a role in "Hotel Sea".', Lead(words="is known for a role in", listed=False)),
    "a film of a name that others have": (
        "Low Sun (film)", 'is known for the film "Low Sun".', Lead(words="is known for", listed=False),
    ),
    "it may be the book": ("Low Sun (film)", 'is known for "Low Sun".', None),
    "a work that is not quoted": ("Hotel Sea", "stayed for a while in Hotel Sea.", None),
    "the end of a longer name": ("Glory (1989 film)", 'was in the film "Days of Glory".', None),
    "a drummer directs no film": ("Al Stone (drummer)", "is a film directed by Al Stone.", None),
    "another region": ("Leeds", "was born in Leeds, Alabama.", None),
    "a country": ("France", "was shown in France.", None),
    "a possessive": ("Nora Quill", "is based on Nora Quill's book.", None),
    "made by a work": ("Hotel Sea", 'is a song by "Hotel Sea".', None),
    "made by a band of a work's name": ("Hotel Sea", 'is a sitcom by the rock band "Hotel Sea".', None),
    "one of many": (
        "Nora Quill", "works with others including Nora Quill.", Lead(words="works with others including", listed=True),
    ),
    "denied": ("Nora Quill", "was not written by Nora Quill.", None),
    "one of two parents": (
        "Nora Quill", "was a daughter of Nora Quill and her husband Al.",
        Lead(words="was a daughter of", listed=True),
    ),
    "the only parent": ("Nora Quill", "was a daughter of Nora Quill.", Lead(words="was a daughter of", listed=False)),
    "the only marriage": ("Nora Quill", "married Nora Quill in Oslo.", Lead(words="married", listed=False)),
    "one of two marriages": ("Nora Quill", "married Nora Quill before a second marriage.", None),
    "one of two sides": ("Leeds", "lies between Leeds in the north and Hull.", None),
    "a verb in between": ("Nora Quill", "was the first to defeat Nora Quill.", None),
}  # fmt: skip


@pytest.mark.parametrize("case", LEADS)
def test_the_words_up_to_a_name_lead_to_it(case: str):
    title, text, expected = LEADS[case]
    topic = topic_of("The Lamp", f"The Lamp {text}" if text.startswith("is a") else f"The Lamp is a thing. It {text}")
    target = topic_of(title, TARGETS[title])
    assert topic is not None
    assert target is not None
    clause = topic.clauses[-1]
    start = clause.index(target.name)
    assert read_lead(topic, target, clause, start, start + len(target.name)) == expected
