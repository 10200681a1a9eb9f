"""What a passage is about, by its opening: its kind, the words for it, and what its sentences state of it.

Invariant: a statement's subject is the topic itself; sentences about anything else are left out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from turnwise.envs.qa.nations import DEMONYMS
from turnwise.envs.qa.writer.facts import Facts, strip_qualifier

KINDS: Mapping[str, str] = {
    "person": "director actor actress player politician footballer singer writer composer artist musician author "
    "producer painter filmmaker journalist screenwriter businessman businesswoman poet officer novelist lawyer "
    "singer-songwriter coach comedian general engineer cricketer boxer scholar driver songwriter soldier historian "
    "professor playwright physicist rapper designer pianist scientist architect photographer racer activist "
    "cinematographer executive model editor philosopher guitarist dancer sprinter cyclist athlete physician diplomat "
    "rower wrestler swimmer vocalist mathematician academic attorney goalkeeper prelate priest sculptor drummer "
    "entrepreneur runner pilot manager bishop judge pitcher defender forward chef botanist educator soprano jumper "
    "economist conductor inventor baseman violinist psychologist clergyman midfielder magnate administrator receiver "
    "anthropologist statesman illustrator cartoonist critic linebacker quarterback outfielder guard tackle skater "
    "skier golfer jockey explorer astronomer astronaut geologist chemist biologist theologian broadcaster host "
    "presenter bassist translator publisher-editor animator dramatist essayist chemist surgeon banker industrialist "
    "philanthropist center cornerback safety catcher fighter kickboxer gymnast saxophonist trumpeter cellist tenor "
    "choreographer nobleman noblewoman peer saint monk nun missionary minister lyricist bandleader organist impresario",
    "film": "film movie documentary featurette",
    "episode": "episode",
    "series": "series sitcom drama show telenovela miniseries serial",
    "song": "song single",
    "album": "album EP mixtape",
    "book": "novel book play story novella memoir trilogy autobiography biography",
    "game": "game videogame",
    "magazine": "magazine newspaper journal tabloid weekly",
    "band": "band group duo trio quartet supergroup",
    "company": "company label manufacturer airline chain publisher corporation firm studio brewery retailer brand "
    "developer conglomerate subsidiary bank imprint",
    "channel": "channel network broadcaster",
    "school": "school academy",
    "university": "university college institution",
    "team": "team club franchise",
    "stadium": "stadium arena ballpark",
    "airport": "airport airfield",
    "station": "station",
    "building": "museum building hotel skyscraper mall church theatre theater library hospital house mansion bridge "
    "cathedral temple castle tower prison",
    "settlement": "village town city community municipality locality suburb commune settlement hamlet neighborhood "
    "neighbourhood borough gmina township capital place unincorporated",
    "region": "county district state province country region",
    "river": "river tributary stream creek",
    "mountain": "mountain peak volcano hill summit",
    "lake": "lake reservoir",
    "island": "island",
    "park": "park",
    "genus": "genus species",
    "league": "league conference",
    "party": "party",
    "organisation": "organization organisation association society union agency foundation institute think-tank",
    "ship": "ship destroyer submarine frigate battleship cruiser",
    "character": "character superhero supervillain",
    "road": "road highway street",
    "car": "car motorcycle automobile",
    "breed": "breed",
    "festival": "festival",
    "war": "war battle",
}
"""The words at the end of an opening's noun phrase, by the kind of topic that they name."""
KIND_OF = {word: kind for kind, words in KINDS.items() for word in words.split()}
_BRACKETS = re.compile(r"\s*\([^()]*(?:\([^()]*\)[^()]*)*\)")
_SENTENCE = re.compile(r"(?<=[a-z0-9]{3})(?<!Mrs)(?<!Inc)(?<!Rev)(?<!Gen)(?<!Ltd)(?<!Bros)\. (?=[A-Z])")
_OPENING = re.compile(r"^(?P<name>.{1,120}?),? (?P<verb>is|was|are|were) (?P<article>an?|the) (?P<rest>.*)")
_NOUN_ENDS = re.compile(
    r"[,;:.]| (?:of|in|by|from|that|which|who|whose|for|with|at|on|to|and|or|based|directed|written|released|located|"
    r"formed|founded|produced|recorded|published|starring|near|about|as|set|born|owned|created|developed|under|"
    r"between|where|serving|situated|held|run|part|featuring|performed|playing|known|named|designed|built|established|"
    r"consisting|operated|broadcast|currently|is|was|best|aired|composed|headquartered|hosted|distributed|originally|"
    r"best-known|co-written|operating|belonging|adapted|sung|made|specializing|active|originating|north|south|east|"
    r"west|within|along|during|first|he|she|it|also|sponsored|commissioned|issued|launched|used|there|whom|among|"
    r"northwest|northeast|southwest|southeast|off|through|flowing|while|then|if|but|since|after|before|affiliated|"
    r"opened|taught|served|working|dedicated|associated|loosely|including|primarily|mainly|both|taken|over|"
    r"co-created|co-produced|co-directed|co-founded|illustrated|edited|marketed|sold|headed|led|managed|controlled|"
    r"wholly|principally|living|residing|around|without|against|shot|filmed|inspired|noted|famous|notable|born)\b"
)
_PLAIN = {word for demonym in DEMONYMS for word in demonym.split()}
_SUPERLATIVE = re.compile(
    r"est\b|\d|\b(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|debut|final|same|last|only|"
    r"former|own|major|main|most|noted|other|next|title|famous|known)\b"
)
_OPENING_CHARS = 400
_ABOUT_MORE = re.compile(r"^(?:List|History|Timeline|Outline) of |discography|bibliography|filmography", re.IGNORECASE)
_ADVERB = r"(?:also |originally |first |later |currently |officially |subsequently |primarily |mainly |now |once )*"
_PRONOUN = re.compile(rf"^(?:It|He|She|They) (?={_ADVERB}[a-z])")
_ABOUT_IT = re.compile(r"^The (?P<noun>[A-Za-z]+) (?=[a-z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """`Topic(kind="band", noun="American rock band", said=(" formed in Oslo in 1993",), ...)`."""

    facts: Facts
    kind: str
    noun: str
    """What the passage calls it: words that can follow an article."""
    said: tuple[str, ...]
    """What is stated of it, each without its subject: what follows the noun in the opening, then other sentences."""
    clauses: tuple[str, ...]
    """The same, the opening from its verb on."""

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def title(self) -> str:
        return self.facts.passage.title

    @property
    def id(self) -> str:
        return self.facts.passage.id

    @property
    def opening(self) -> str:
        return self.facts.passage.text[:_OPENING_CHARS]

    @property
    def known_as(self) -> str:
        """The noun where it is short and tells little: `American rock band`; else its last word."""
        words = self.noun.split()
        tidy = len(words) <= 5 and all(word in _PLAIN or (word[0].islower() and word.isascii()) for word in words)
        return self.noun if tidy and not _SUPERLATIVE.search(self.noun) else words[-1] if words else ""


def read_topic(facts: Facts) -> Topic | None:
    """None where the opening does not say what the passage is about; kind `other` where in words that are unknown."""
    sentences = _split(facts.passage.text)
    if not sentences:
        return None
    opening = _OPENING.match(sentences[0])
    if opening is None or not _is_named(opening["name"], facts.passage.title):
        return None
    rest = opening["rest"]
    kind, noun = _read_noun(rest, facts)
    last = facts.name.split(",")[0].split()[-1]
    about = []
    for sentence in sentences[1:]:
        end = _subject_ends(sentence, kind, facts.name, last)
        if end:
            about.append(sentence[end:])
    return Topic(
        facts=facts,
        kind=kind,
        noun=noun,
        said=(rest.removeprefix(noun) if kind != "other" else "", *about),
        clauses=(f"{opening['verb']} {opening['article']} {rest}", *about),
    )


def _read_noun(rest: str, facts: Facts) -> tuple[str, str]:
    """The kind and the words for it: `("band", "American rock band")`."""
    end = _NOUN_ENDS.search(rest)
    words = (rest[: end.start()] if end else rest.rstrip(".")).split()
    for last in range(len(words), 0, -1):
        head = words[last - 1].lower()
        kind = KIND_OF.get(head) or KIND_OF.get(head.removesuffix("s"))
        if kind is not None and (last == len(words) or words[last].endswith(("ed", "ing", "en"))):
            alike = facts.kind != "film" or kind in ("film", "series", "episode")
            return (kind if alike else "other"), " ".join(words[:last])
    return ("person", "person") if facts.kind == "person" and (facts.born or facts.died) else ("other", "")


def _split(text: str) -> list[str]:
    """Sentences without brackets and quotation marks."""
    plain = _BRACKETS.sub("", text.replace('"', " ").replace("``", " ").replace("''", " "))
    plain = " ".join(plain.split()).replace(" ,", ",").replace(" .", ".").replace(" 's", "'s").replace(" ;", ";")
    return _SENTENCE.split(plain)


def _is_named(written: str, title: str) -> bool:
    """Whether an opening's subject is the topic: it has half of the title's words, and the title is no list."""
    wanted, known = _words(strip_qualifier(title).split(", ")[0]), _words(written)
    return 2 * sum(word in known for word in wanted) >= len(wanted) > 0 and not _ABOUT_MORE.search(title)


def _words(name: str) -> list[str]:
    return [word.casefold() for word in re.findall(r"\w+", name)]


def _subject_ends(sentence: str, kind: str, name: str, last: str) -> int:
    """Where the words for the topic end that a sentence begins with; 0 where it begins with something else."""
    if found := _PRONOUN.match(sentence):
        return found.end()
    found = _ABOUT_IT.match(sentence)
    if found and KIND_OF.get(found["noun"].lower()) == kind:
        return found.end()
    for known in (name, f"The {name}", last):
        end = len(known) + 1
        if (
            len(known) > 3
            and known[0].isupper()
            and sentence.startswith(f"{known} ")
            and sentence[end : end + 1].islower()
        ):
            return end
    return 0
