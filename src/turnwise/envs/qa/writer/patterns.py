"""Regular expressions for the phrases in which encyclopedic passages state facts.

Patterns are narrow: a fact that is missed costs a question, and one that is read wrongly makes a wrong question.
"""

import re

from turnwise.envs.qa.nations import COUNTRIES, DEMONYM

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_MONTH = "|".join(MONTHS)
DATE = rf"(?:\d{{1,2}} (?:{_MONTH}),? \d{{4}}|(?:{_MONTH}) \d{{1,2}}, ?\d{{4}}|\d{{4}})"
DATES = re.compile(DATE)
SEPARATOR = re.compile(r"[–—]| - |- | -|-(?=\d)|†")
_DAY = rf"(?:(?:{_MONTH}) (?=\d{{4}}))?({DATE})"
_AT = r"(?:in|at)(?: the (?:city|town|village) of)? (?!the )([A-Z][^.;()]*)"
BORN = re.compile(
    rf"\b(?:born|b\.)(?: on)?:? {_DAY}(?:(?:,? (?:in|at) |,? (?=[A-Z]))([^;()\d]+?))?(?=[;)]| –|, died|$)"
)
BORN_THERE = re.compile(rf"\b(?:born|b\.) (?:in|at) ([A-Z][^;()\d]+?),? (?:on |in )?{_DAY}")
"""In brackets, with the place before the date."""
BORN_LATER = re.compile(
    rf"\bwas born(?: and (?:raised|brought up))?(?: (?:to|into) [^.,;()]{{3,60}}?)?"
    rf"(?: on ({DATE}),?| in \d{{4}})? {_AT}"
)
BORN_FIRST = re.compile(r"(?:^|(?<=[.\]\"”] ))Born(?: and (?:raised|brought up))? in (?!the )([A-Z][^.;()]*)")
"""Opens a sentence, whose subject may follow the place: "Born in Liverpool, Lennon became involved"."""
BORN_THIS = re.compile(r"[^.()]*\([^()]*\)[^.()]* (?:is|was) an? [^.()]*[a-z],? born in (?!the )([A-Z][^.;()]*)")
"""Closes the first sentence: "(2 March 1956) was an Italian film director born in Padua"."""
DIED_LATER = re.compile(
    rf"(?:\b([Hh]e|[Ss]he|[A-Z][\w'’-]+)|\bborn [^.;]{{3,90}} and) died(?: (?:of|from) [^.,;()]{{3,40}}?)?"
    rf"(?: on ({DATE}),?| in \d{{4}})?(?: at the age of \d+)? {_AT}"
)
DIED_THEN = re.compile(rf"\bdied (?:in [A-Z][\w ]+,? )?on ({DATE})")

_LETTERS = r"[^\W\d_]"
_WORD = rf"(?:(?:[A-ZÀ-ÖØ-ÞĀ-Ž]|d'|al-|Al-)(?:{_LETTERS}|['’.\-]+(?={_LETTERS})|(?<=\b{_LETTERS})\.|(?<=[JS]r)\.)*)"
_JOIN = r"(?:of|de|von|van|der|den|la|le|du|di|da|del|della|dos|bin|ibn|zu|the|y|af|ter|ten|II|III|IV|VI*|I?X)"
_NAME = rf"{_WORD}(?: (?:{_JOIN} )*{_WORD}| (?:II|III|IV|VI*|IX|I)\b)*"
_RANK = (
    r"(?:\d+(?:st|nd|rd|th) )?(?:Duke|Earl|Count|King|Baronet|Baron|Lord|Marquess|Marquis|Margrave|Landgrave|Viscount|"
    r"Princess|Prince|Duchess|Countess|Queen|Electress|Elector|Lady|Marchioness|Palatine)\b"
)
CAPITALISED = _WORD
FULL_NAME = re.compile(rf"({_NAME}(?:, {_RANK}(?: (?:{_JOIN} )*{_WORD})*)?)")

COUNTRY = re.compile(rf"\b(?:in|of|,) (?:the )?({'|'.join(sorted(COUNTRIES, key=len, reverse=True))})\b")
PLACE = re.compile(
    r" is an? (?:[\w-]+ ){0,3}?(village|town|river|mountain|lake|municipality|commune|high school|university|school|"
    r"hamlet|railway station|stream|district|rural district|county|island|city)\b"
)
_GAME = (
    r"(?:(?:American|Canadian|Gaelic) football|American soccer|Australian rules|French horn|"
    r"English (?:language|literature))\b"
)
"""Named after a nation, whatever that of those who play it."""
PERSON = re.compile(
    rf"\b(?:is|was) (?:an?|the) (?:former |retired |noted |award-winning )?(?!{_GAME})({DEMONYM})(?:-born)? ([a-z])"
)
FILM = re.compile(
    rf"\b(?:is|was) an? (\d{{4}}) (?:({DEMONYM}) )?(?:[\w-]+(?: [\w-]+){{0,5}} )?(?:film|movie|documentary|western)\b"
)
FILM_NO_YEAR = re.compile(
    rf"\b(?:is|was) an? ({DEMONYM}) (?:[\w-]+ ){{0,4}}(?:film|movie)\b(?! ?(?:and|,|"
    rf"[a-z]+(?:er|or|ress|ic|ist|ian|man|phy)\b))"
)
RELEASED = re.compile(
    r"\b(?:released|film from) (?:on |in )?(?:[A-Z][a-z]+ \d{1,2}, |\d{1,2} [A-Z][a-z]+ |[A-Z][a-z]+ )?(\d{4})"
)
SONG = re.compile(r"\b(?:is|was) (?:an?|the) [^.]{0,60}?\b(song|single|album)\b")
MAGAZINE = re.compile(rf"\b(?:is|was) an? (?:{DEMONYM})? ?[^.]{{0,40}}?\b(magazine|journal|newspaper)\b")
FOUNDED = re.compile(r"\b(?:founded|established|launched|started)(?: by [^.]{3,40}?)? in (?:[A-Z][a-z]+ )?(\d{4})")
DIRECTED = re.compile(r"\bdirected (?:and (?:co-)?(?:written|produced|edited) )?by ")
WRITTEN_DIRECTED = re.compile(r"\b(?:written|produced),? (?:and|&) directed by ")
NOT_ALONE = re.compile(
    r",? (?:and|&|with) [A-Z]|, [A-Z][\w.]+ [A-Z][\w.]+(?:,| and)|"
    r" (?:co-)?(?:[a-z]+ )?(?:vocalist|singer|guitarist|drummer|bassist|keyboardist|frontman|member|leader|founder)\b"
)
"""Behind a name that another is joined to, or that belongs to another: of a band's singer, the band's."""
MUSIC = re.compile(r"\b(?:[Mm]usic (?:was |is )?(?:composed )?by|[Ss]core(?:d| was composed)? by|composed by) ")
_ARTIST_WORDS = (
    r"(?:(?:singer|singer-songwriter|rapper|musician|band|group|duo|DJ|artist|songwriter|producer|recording|pop|rock|"
    r"country|hip hop|R&B|electronic|music|and|indie|soul|alternative|heavy|metal|punk|girl|boy|folk|jazz|dance|record|"
    r"vocalist|composer|recording artist|entertainer|actress|actor|the)[ -])*"
)
PERFORMED = re.compile(
    rf"\b(?:(?:song|single|album|recorded|performed|sung)"
    rf"(?: (?:recorded|performed|released|sung)(?: and \w+)?)?) by "
    rf"(?:(?:{DEMONYM}) )?{_ARTIST_WORDS}"
)
CHILD = re.compile(
    r"\b(?:the |an? |his |her )?(?:\w+ )?(?:surviving |legitimate |illegitimate |natural )?"
    r"(?:son|daughter|child) (?:and heir )?of (?:the )?"
    r"(?:(?:politician|actor|actress|director|film director|composer|writer|painter|businessman|banker|architect|"
    r"singer|Governor|Senator|folk singer-composer|novelist|poet|General|Lieutenant-General|Sir|King|late) )*"
)
FATHER = re.compile(r"\b(?:[Hh]is|[Hh]er) father(?: was|,| is) (?:the )?")
MOTHER = re.compile(r"\b(?:[Hh]is|[Hh]er) mother(?: was|,| is) (?:the )?")
MAN = re.compile(
    r"\b(?:Sir|King|Duke|Earl|Prince|Archduke|Count|Baron|Baronet|Marquess|Marquis|Emperor|Lord|Viscount|Margrave|Landgrave|"
    r"Elector|I|II|III|IV|V|VI)\b"
)
"""A title or number that men have, and women seldom."""
WOMAN = re.compile(r"\b(?:Queen|Empress|Princess|Duchess|Countess|Baroness|Infanta|Lady|Dame|actress)\b")
HONORIFICS = re.compile(
    r"(?:(?:(?:The |the )?(?:Rt\.? |Right )?Hon(?:ou?rable\b|\.)?|Sir|Dr\.?|Rev\.?|Reverend|H[MRIS]H?|First Lady|"
    r"President|Captain|Colonel|Major|General|Lieutenant|Admiral|Governor|Senator|Professor|Chief|King|Queen|Emperor|Empress|"
    r"Count|Countess|Lord|Lady|Baron|Baroness|Don|Doña|Old|Crown|Hereditary) )+(?=[A-Z])"
)
"""Before a name, which is known without them."""
RANK_BEHIND = re.compile(rf",? {_RANK}(?: (?:{_JOIN} )*{_WORD})*$|, {_RANK}.*$")
ANOTHERS = re.compile(
    r"\b(?:marri\w+|betrothed|wife|wives|husband|(?:grand)?parents?|mother|brothers?|sisters?|widow|consort|saved)\b[^.;]*$"
)
"""Before `daughter of`, in the same sentence: of whom it is said is not plain."""
WIFE_NAMED = re.compile(r"\b(?:wife|mistress|consort)\b|^[^A-Z]*\bby ")
AND_FATHER = re.compile(r"^(?: \([^)]*\))?,? (?:and|by) her (?:(?:first|second|third|late) )?husband,? ")
CUT = re.compile(r"^[^|]*\|[\w–/-]|^[^|]*\b(?:Mr|Mrs|Ms|Dr|St|Sgt|Lt)\|\. [A-Z]")
"""A name and, behind the bar, the rest of one that is longer: `George Sackville|- West`, `Goodbye Mr|. Mackenzie`."""
GOES_ON = re.compile(r" and [A-Z][\w-]+(?:[,.;]| (?:and|by|was|is)\b| ?\(|$)")
"""Behind a name that is cut: `Prince of Thurn`, of Thurn and Taxis."""
AND_MOTHER = re.compile(
    r"^(?: \([^)]*\))?,? (?:and|by) "
    r"(?:(?:of )?(?:his|the) (?:(?:first|second|third|fourth) )?(?:wife|mistress|consort),? )?(?:the )?"
)
SPOUSE = re.compile(
    r"\b(?:[Hh]e|[Ss]he|[Hh]is wife|[Hh]er husband) "
    r"(?:was |is |had been |has been |also |later |first )*married(?: to)?"
    r"(?: (?:actor|actress|director|film director|singer|writer|fellow \w+|producer|"
    r"the (?:actor|actress|director|singer)))? "
)
WIFE_OF = re.compile(
    r"\b(?:was|is) (?:the )?(?:(?:first|second|third|former) )?(?:wife|spouse|consort|widow) of "
    r"(?:the )?(?:\w+ (?=[A-Z]))?"
)
HUSBAND_OF = re.compile(
    r"\b(?:was|is) (?:the )?(?:(?:first|second|third|former) )?husband of (?:the )?(?:\w+ (?=[A-Z]))?"
)
MARRIAGE = re.compile(r"\bmarri(?:ed|age)|\b(?:wife|husband|wives|spouse)\b")
SHE = re.compile(r"\b(?:[Ss]he|[Hh]er)\b")
HE = re.compile(r"\b(?:[Hh]e|[Hh]is)\b")
RANK_BEFORE = re.compile(
    r"^(?:(?:Sir|King|Queen|Emperor|Prince|Princess|Archduke|Archduchess|Grand|Duke|Duchess|Count|Lord|General|Dr\.?|Governor|"
    r"Infanta|Infante|Landgravine|Margravine) )+"
)
QUALIFIER = re.compile(r"\s*\([^()]*\)$")
PLACE_PART = re.compile(rf"{_NAME}(?:, {_NAME})?")
