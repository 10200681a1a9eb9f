"""What passages state of films, books, songs, games and series: the patterns, and the phrases to ask and tell it in."""

from turnwise.envs.qa.writer.stated_of_people import read_name
from turnwise.envs.qa.writer.statements import NAME, ROLE, YEAR, Statement
from turnwise.envs.qa.writer.topics import Topic

_PERSON = ("person",)
_SCREEN = ("film", "series", "episode")
_RELEASED = ("film", "series", "album", "song", "game", "book", "magazine")


def _year(topic: Topic) -> tuple[str, ...]:
    year = topic.facts.year
    return () if year is None else (str(year),)


WORKS = (
    Statement(
        name="director",
        of=("film",),
        read=read_name("director"),
        tell="{} was directed by {}.",
        to=_PERSON,
        ask=("Who directed {}?", "Who is the director of {}?"),
        relative=("directed by whom?", "directed by who?"),
        described="directed by {}",
        refer=("the director of {}", "the # who directed {}", "the person who directed {}"),
        clause="directed by",
        active="directed {}",
    ),
    Statement(
        name="composer",
        of=("film",),
        read=read_name("composer"),
        tell="The music of {} is by {}.",
        to=_PERSON,
        ask=("Who composed the music of {}?",),
        relative=("with music by whom?",),
        refer=("the composer of the music of {}", "the person who composed the music for {}"),
        clause="with music by",
        active="composed the music of {}",
    ),
    Statement(
        name="performer",
        of=("song", "album"),
        read=read_name("performer"),
        tell="{} is by {}.",
        to=("person", "band"),
        ask=("Who performed {}?", "What artist released {}?"),
        relative=("by what artist?", "performed by whom?"),
        described="by {}",
        refer=("the performer of {}", "the # who released {}", "the artist who recorded {}"),
        clause="by",
        active="recorded {}",
    ),
    Statement(
        name="author",
        of=("book",),
        before=rf"^ ?(?:[a-z -]+ )?(?:written |authored )?by {ROLE}",
        to=_PERSON,
        tell="{} was written by {}.",
        ask=("Who wrote {}?", "Who is the author of {}?"),
        relative=("written by whom?", "by what author?"),
        described="written by {}",
        refer=("the author of {}", "the # who wrote {}", "the writer of {}"),
        clause="written by",
        active="wrote {}",
    ),
    Statement(
        name="writer",
        of=("film", "episode", "song", "series"),
        before=rf"(?<!narration )(?<!lyrics )(?<!music )(?<!story )written (?:and [a-z]+ )?by {ROLE}",
        to=_PERSON,
        tell="{} was written by {}.",
        ask=("Who wrote {}?",),
        relative=("written by whom?",),
        refer=("the writer of {}", "the # who wrote {}"),
        clause="written by",
        active="wrote {}",
    ),
    Statement(
        name="producer",
        of=("film", "song", "album"),
        before=rf"produced by {ROLE}",
        to=_PERSON,
        tell="{} was produced by {}.",
        ask=("Who produced {}?",),
        relative=("produced by whom?",),
        refer=("the producer of {}", "the # who produced {}"),
        clause="produced by",
        active="produced {}",
    ),
    Statement(
        name="star",
        of=("film", "series"),
        before=rf"(?:starring|stars|starred) {ROLE}",
        to=_PERSON,
        only=False,
        tell="{} stars {}.",
        clause="starring",
        active="stars in {}",
    ),
    Statement(
        name="second star",
        of=("film", "series"),
        to=_PERSON,
        only=False,
        before=rf"(?:starring|stars|starred) (?:in it )?{NAME}(?:, {NAME}){{0,3}},? (?:and|with) ",
        tell="{} stars {}.",
        clause="starring",
        active="stars in {}",
    ),
    Statement(
        name="source",
        of=("film", "series"),
        tell="{} is based on {}.",
        before=r"(?:based (?:up)?on|adapted from|adaptation of) (?:the |a )?(?:[\w'-]+ )*?(?:novel|book|play|story|"
        r"memoir|"
        r"manga|series|game|musical|novella|autobiography|film) (?:entitled |titled |called )?",
        to=("book", "series", "game", "film"),
        refer=("the # on which {} is based", "the # that {} is based on"),
        clause="based on",
        active="is the basis of {}",
    ),
    Statement(
        name="sequel",
        of=("film", "game", "book", "album"),
        tell="{} is a sequel to {}.",
        before=r"(?:sequel to|follow-up to|followup to|sequel of|remake of|spin-off of|spinoff of) (?:the )?"
        r"(?:[\w'-]+ )*?(?:(?:film|game|novel|book|movie|hit|series) )?(?:of the same name )?",
        to=("film", "game", "book", "album", "series"),
        refer=("the # that {} followed", "the # that came before {}"),
        clause="that followed",
    ),
    Statement(
        name="album",
        of=("song",),
        tell="{} is on the album {}.",
        only=False,
        before=r"(?:from|on|off|for) (?:his|her|their|its|the|[A-Z][\w' ]+?'s?)(?: [\w'-]+){0,5}? (?:album|EP|"
        r"mixtape|LP)s?,? "
        r"(?:entitled |titled |called )?",
        to=("album",),
        refer=("the album that includes {}", "the # that features the song {}"),
        clause="from",
    ),
    Statement(
        name="label",
        of=("song", "album"),
        tell="{} was released by {}.",
        before=r"(?:released|issued|recorded)(?: (?:in|on) (?:[A-Z][a-z]+ )?(?:\d{1,2}, )?\d{4})?,? (?:by|through|"
        r"on|via|under|for) (?:the )?",
        value=r"(?:[A-Z0-9][\w&.'-]* )+(?:Records|Recordings|Music|Entertainment)",
        ask=("What record label released {}?", "Which label was responsible for {}?"),
        relative=("released by what record label?",),
        described="released by {}",
        to=("company",),
        refer=("the record label that released {}", "the label of {}"),
        clause="released by",
        active="released {}",
    ),
    Statement(
        name="publisher",
        of=("game", "magazine", "book"),
        tell="{} was published by {}.",
        before=r"published (?:(?:in|on) (?:[A-Z][a-z]+ )?(?:\d{1,2}, )?\d{4} |monthly |weekly |quarterly |"
        r"biannually )?by (?:the )?"
        r"(?:[a-z]+ (?:[a-z]+ )*)?",
        to=("company", "organisation", "university"),
        ask=("Who published {}?", "What company published {}?"),
        relative=("published by whom?",),
        described="published by {}",
        refer=("the publisher of {}", "the # that published {}"),
        clause="published by",
        active="published {}",
    ),
    Statement(
        name="network",
        of=("series",),
        tell="{} aired on {}.",
        before=r"(?:aired|airs|airing|broadcast|premiered|premieres|televised|shown|screened|created for|produced "
        r"for|ran)"
        r"(?: (?:weekly|daily|originally|nationally|live))? (?:on|by|for) (?:the )?(?:[A-Z]?[a-z]+ )*?(?:network "
        r")?(?!\w+days?\b|January|February|"
        r"March|April|May|June|July|August|September|October|November|December)",
        value=r"(?:[A-Z][\w&!+.-]*)(?: (?:[A-Z][\w&!+.-]*|\d+))*",
        ask=("What network did {} air on?", "On what network did {} air?", "What channel broadcast {}?"),
        relative=("that aired on what network?", "broadcast on what channel?"),
        described="that aired on {}",
        to=("channel", "company"),
        refer=("the network that aired {}", "the # that broadcast {}"),
        clause="that aired on",
        active="broadcast {}",
    ),
    Statement(
        name="premiere",
        of=("series",),
        tell="{} premiered in {}.",
        value=YEAR,
        before=r"(?:premiered|debuted|first aired|aired|began|ran|broadcast)(?: (?:on|in|from) (?!\d|[A-Z][a-z]+ "
        r"\d)[^.;]{2,40}?)? (?:on|in|from) "
        r"(?:[A-Z][a-z]+ )?(?:\d{1,2},? )?(?:[A-Z][a-z]+,? )?",
        ask=("In what year did {} premiere?", "What year did {} begin to air?"),
        relative=("that premiered in what year?",),
        described="that premiered in {}",
    ),
    Statement(
        name="release year",
        of=("film", "song", "album", "game"),
        read=_year,
        tell="{} came out in {}.",
        ask=("In what year was {} released?", "What year did {} come out?", "When was {} released?"),
        relative=("released in what year?", "that was released in what year?"),
        described="released in {}",
    ),
    Statement(
        name="publication year",
        of=("book",),
        tell="{} was published in {}.",
        value=YEAR,
        before=r"(?:published|released)(?: by [A-Z][^;.]{2,40}?)? (?:in|on) (?:[A-Z][a-z]+ )?(?:\d{1,2},? "
        r")?(?:[A-Z][a-z]+,? )?",
    ),
)
