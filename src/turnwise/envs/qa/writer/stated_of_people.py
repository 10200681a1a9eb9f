"""What passages state of people, characters and bands: the patterns, and the phrases to ask and tell it in."""

import re
from collections.abc import Callable

from turnwise.envs.qa.nations import DEMONYMS
from turnwise.envs.qa.writer import patterns
from turnwise.envs.qa.writer.facts import spell_person
from turnwise.envs.qa.writer.statements import NAME, YEAR, Statement
from turnwise.envs.qa.writer.topics import Topic

_PERSON = ("person",)


def _date(which: str, *, year: bool) -> Callable[[Topic], tuple[str, ...]]:
    def read(topic: Topic) -> tuple[str, ...]:
        date = getattr(topic.facts, which)
        if date is None or (not year and date.order[1] == 0):
            return ()
        return (str(date.year),) if year else (date.text,)

    return read


def read_name(which: str) -> Callable[[Topic], tuple[str, ...]]:
    def read(topic: Topic) -> tuple[str, ...]:
        name = getattr(topic.facts, which)
        cut = name is not None and re.search(rf"{re.escape(name)}(?:[\w–/-]|,? (?:Jr|Sr))", topic.facts.passage.text)
        people = name is not None and all(part in DEMONYMS for part in name.split("-"))
        return () if name is None or cut or people else spell_person(name)

    return read


def _father(topic: Topic) -> tuple[str, ...]:
    """The one of whom the topic, rather than a spouse, is said to be the child, before a mother or by a man's title."""
    found = read_name("father")(topic)
    if not found or re.search(rf"father(?: was|,| is) [^.]{{0,40}}{re.escape(found[0])}", topic.facts.passage.text):
        return found
    name = re.escape(found[0])
    child = re.compile(
        rf"(?:(?!married|wife|husband|mother|brother|sister|widow|consort).)*\b(?:son|daughter|child)\b[^.]{{0,30}} of "
        rf"[^.]{{0,40}}{name}(?P<both>[^.]{{0,40}} (?:and|by) )?"
    )
    children = [stated for clause in topic.clauses if (stated := child.match(clause))]
    return found if any(stated["both"] or patterns.MAN.search(found[0]) for stated in children) else ()


def _mother(topic: Topic) -> tuple[str, ...]:
    found = read_name("mother")(topic)
    plain = found and re.search(rf"mother(?: was|,| is) [^.]{{0,40}}{re.escape(found[0])}", topic.facts.passage.text)
    return found if plain or _father(topic) else ()


def _spouse(topic: Topic) -> tuple[str, ...]:
    """The only one."""
    return read_name("spouse")(topic) if len(patterns.MARRIAGE.findall(topic.facts.passage.text)) < 2 else ()


def _place(which: str) -> Callable[[Topic], tuple[str, ...]]:
    def read(topic: Topic) -> tuple[str, ...]:
        return tuple(reversed(getattr(topic.facts, which)))

    return read


def _nationality(topic: Topic) -> tuple[str, ...]:
    nationality, nation = topic.facts.nationality, topic.facts.nation
    return () if nationality is None or nation is None else (nationality, nation)


PEOPLE = (
    Statement(
        name="birth year",
        of=_PERSON,
        read=_date("born", year=True),
        tell="{} was born in {}.",
        ask=("In what year was {} born?", "What year was {} born?"),
        relative=("born in what year?", "who was born in what year?"),
        described="born in {}",
    ),
    Statement(
        name="birth date",
        of=_PERSON,
        read=_date("born", year=False),
        tell="{} was born on {}.",
        ask=("When was {} born?", "What is the date of birth of {}?", "On what date was {} born?"),
        relative=("born on what date?", "who was born on which date?"),
        described="born on {}",
    ),
    Statement(
        name="death year",
        of=_PERSON,
        read=_date("died", year=True),
        tell="{} died in {}.",
        ask=("In what year did {} die?", "What year did {} pass away?"),
        relative=("who died in what year?",),
        described="who died in {}",
    ),
    Statement(
        name="death date",
        of=_PERSON,
        read=_date("died", year=False),
        tell="{} died on {}.",
        ask=("When did {} die?", "What is the date of death of {}?"),
        relative=("who died on what date?",),
    ),
    Statement(
        name="birthplace",
        of=_PERSON,
        read=_place("birth_place"),
        tell="{} was born in {}.",
        place=True,
        ask=("Where was {} born?", "What is the birthplace of {}?"),
        relative=("born where?", "who was born where?"),
        described="born in {}",
        to=("settlement", "region"),
        refer=("the # where {} was born", "the birthplace of {}", "the place of birth of {}"),
        clause="born in",
    ),
    Statement(
        name="death place",
        of=_PERSON,
        read=_place("death_place"),
        tell="{} died in {}.",
        place=True,
        ask=("Where did {} die?", "What is the place of death of {}?"),
        relative=("who died where?",),
        to=("settlement", "region"),
        refer=("the # where {} died", "the place of death of {}"),
        clause="who died in",
    ),
    Statement(
        name="nationality",
        of=_PERSON,
        read=_nationality,
        tell="{} is {}.",
        ask=("What is the nationality of {}?", "What nationality is {}?"),
        relative=("of what nationality?",),
    ),
    Statement(
        name="father",
        of=_PERSON,
        read=_father,
        tell="The father of {} is {}.",
        to=_PERSON,
        ask=("Who is the father of {}?",),
        relative=("whose father is who?",),
        refer=("the father of {}",),
        clause="whose father is",
    ),
    Statement(
        name="mother",
        of=_PERSON,
        read=_mother,
        tell="The mother of {} is {}.",
        to=_PERSON,
        ask=("Who is the mother of {}?",),
        relative=("whose mother is who?",),
        refer=("the mother of {}",),
        clause="whose mother is",
    ),
    Statement(
        name="spouse",
        of=_PERSON,
        read=_spouse,
        tell="The spouse of {} is {}.",
        to=_PERSON,
        ask=("Who is the spouse of {}?", "Who is {} married to?"),
        relative=("married to whom?",),
        refer=("the spouse of {}", "the person whom {} married"),
        clause="married to",
        active="married {}",
    ),
    Statement(
        name="education",
        of=_PERSON,
        tell="{} studied at {}.",
        before=r"(?:graduated (?:\w+ \w+ \w+ )?(?:from|at)|(?:was )?educated at|attended|studied (?:[a-z]+ (?:and "
        r"[a-z]+ )?)?at|"
        r"alumn(?:us|a) of|graduate of) (?:the )?",
        value=r"(?:[A-Z][\w.'&-]+ (?:(?:of|the|for|and|at|in) )*)*(?:University|College|School|Academy|Institute|"
        r"Conservatory|Seminary|Conservatoire)(?: (?:of|for|in) (?:the )?[A-Z][\w.'-]+(?: (?:and |of "
        r")?[A-Z][\w.'-]+)*)?",
        ask=("Where did {} study?", "What school did {} attend?", "Where was {} educated?"),
        relative=("who studied where?", "who attended what school?"),
        to=("school", "university"),
        refer=("the # that {} attended", "the # where {} studied"),
        clause="who studied at",
    ),
    Statement(
        name="band",
        of=_PERSON,
        tell="{} is of the band {}.",
        before=r"(?:member|singer|vocalist|guitarist|drummer|bassist|frontman|frontwoman|keyboardist|keyboard player|"
        r"bass player|leader|founder|songwriter|violinist|rapper) (?:of|for|in|with) (?:the )?"
        r"(?:[A-Z]?[a-z]+(?:[- ][a-z]+)* )?",
        to=("band",),
        refer=("the band of {}", "the band of which {} is a member", "the # that {} is a member of"),
        clause="who is a member of",
    ),
    Statement(
        name="famous role",
        of=_PERSON,
        tell="{} is known for a role in {}.",
        only=False,
        before=r"known (?:for|as)(?: (?:his|her|the|playing|portraying|starring|role|roles|work|performance|portrayal|"
        r"appearance|supporting|lead|leading|recurring|of|as|on|in|main|character|breakout|regular|title|a|television|"
        rf"role as|role of))* (?:(?:{NAME}) (?:in|on)|in|on) (?:the )?(?:\d{{4}} )?"
        r"(?:[A-Z][\w/&-]+ )?(?:[a-z-]+ )*",
        to=("film", "series"),
        refer=("the # that {} is best known for", "the # in which {} is known to have played"),
        clause="known for a role in",
    ),
)

CHARACTERS = (
    Statement(
        name="creator",
        of=("character", "series"),
        tell="{} was created by {}.",
        before=r"created by (?:the )?(?:[a-z]+(?: [a-z]+)* )?",
        to=_PERSON,
        ask=("Who created {}?", "Who is the creator of {}?"),
        relative=("created by whom?", "created by who?"),
        described="created by {}",
        refer=("the creator of {}", "the person who created {}"),
        clause="created by",
        active="created {}",
    ),
    Statement(
        name="played by",
        of=("character",),
        tell="{} is played by {}.",
        before=r"(?:played|portrayed|voiced) (?:[a-z ]+ )?by (?:the )?(?:[a-z]+(?: [a-z]+)* )?",
        to=_PERSON,
        ask=("Who plays {}?", "Who portrayed {}?"),
        relative=("played by whom?",),
        refer=("the actor who plays {}", "the performer who portrays {}"),
        clause="played by",
        active="plays {}",
    ),
)

BANDS = (
    Statement(
        name="band formed",
        of=("band",),
        tell="{} formed in {}.",
        value=YEAR,
        before=r"(?:formed|founded|started|established|originated|created|assembled)(?: (?:in|by) [A-Z][^;.]{2,40}?)? "
        r"in (?:the )?(?:[a-z]+ )?(?:[A-Z][a-z]+ )?",
        ask=("In what year was {} formed?", "What year did {} form?", "When was {} formed?"),
        relative=("formed in what year?", "that was formed in what year?"),
        described="formed in {}",
    ),
    Statement(
        name="band's home",
        of=("band",),
        tell="{} is from {}.",
        place=True,
        before=r"(?:formed (?:in \d{4} )?in|from|based in|originating from|hailing from|founded in|originally from) "
        r"(?!the )",
        value=r"[A-Z][\w'.-]+(?: (?:[A-Z][\w'.-]+|del?|la|upon))*(?:, [A-Z][\w'.-]+(?: [A-Z][\w'.-]+)*){0,2}",
        ask=("Where is {} from?", "Where was {} formed?", "Where does {} come from?"),
        relative=("from where?", "that comes from where?"),
        described="from {}",
        to=("settlement",),
        refer=("the # where {} was formed", "the # that {} comes from"),
        clause="from",
    ),
)
