"""Regular expressions for the phrases in which encyclopedic passages state facts.

Patterns are narrow: a fact that is missed costs a question, and one that is read wrongly makes a wrong question.
"""

import re
from collections.abc import Mapping

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
    r"(?:\d+(?:st|nd|rd|th) )?(?:Duke|Earl|Count|King|Baron|Baronet|Lord|Marquess|Marquis|Margrave|Landgrave|Viscount|"
)
_RANK += r"Prince|Duchess|Countess|Queen|Princess|Elector|Lady|Electress|Marchioness)"
CAPITALISED = _WORD
FULL_NAME = re.compile(rf"({_NAME}(?:, {_RANK}(?: (?:{_JOIN} )*{_WORD})*)?)")

DEMONYMS: Mapping[str, str] = {
    "American": "United States", "British": "United Kingdom", "English": "United Kingdom", "Scottish": "United Kingdom",
    "Welsh": "United Kingdom", "French": "France", "German": "Germany", "West German": "Germany", "Italian": "Italy",
    "Spanish": "Spain", "Portuguese": "Portugal", "Dutch": "Netherlands", "Belgian": "Belgium", "Swiss": "Switzerland",
    "Austrian": "Austria", "Hungarian": "Hungary", "Polish": "Poland", "Czech": "Czech Republic", "Russian": "Russia",
    "Ukrainian": "Ukraine", "Swedish": "Sweden", "Norwegian": "Norway", "Danish": "Denmark", "Finnish": "Finland",
    "Icelandic": "Iceland", "Irish": "Ireland", "Greek": "Greece", "Turkish": "Turkey", "Romanian": "Romania",
    "Bulgarian": "Bulgaria", "Serbian": "Serbia", "Croatian": "Croatia", "Slovenian": "Slovenia", "Slovak": "Slovakia",
    "Estonian": "Estonia", "Latvian": "Latvia", "Lithuanian": "Lithuania", "Canadian": "Canada", "Mexican": "Mexico",
    "Brazilian": "Brazil", "Argentine": "Argentina", "Chilean": "Chile", "Peruvian": "Peru", "Colombian": "Colombia",
    "Venezuelan": "Venezuela", "Cuban": "Cuba", "Indian": "India", "Pakistani": "Pakistan", "Chinese": "China",
    "Bangladeshi": "Bangladesh", "Sri Lankan": "Sri Lanka", "Japanese": "Japan", "South Korean": "South Korea",
    "Filipino": "Philippines", "Thai": "Thailand", "Vietnamese": "Vietnam", "Indonesian": "Indonesia",
    "Malaysian": "Malaysia", "Iranian": "Iran", "Israeli": "Israel", "Egyptian": "Egypt", "Lebanese": "Lebanon",
    "Nigerian": "Nigeria", "South African": "South Africa", "Kenyan": "Kenya", "Australian": "Australia",
    "New Zealand": "New Zealand", "Hong Kong": "Hong Kong", "Taiwanese": "Taiwan", "Albanian": "Albania",
    "Armenian": "Armenia", "Georgian": "Georgia", "Jamaican": "Jamaica", "Uruguayan": "Uruguay", "Bolivian": "Bolivia",
    "Ecuadorian": "Ecuador", "Moroccan": "Morocco", "Tunisian": "Tunisia", "Algerian": "Algeria", "Ghanaian": "Ghana",
    "Singaporean": "Singapore", "Nepalese": "Nepal", "Kazakhstani": "Kazakhstan", "Paraguayan": "Paraguay",
}  # fmt: skip
"""The country of each nationality."""
DEMONYM = _DEMONYM = "|".join(sorted(DEMONYMS, key=len, reverse=True))
COUNTRIES = {
    *DEMONYMS.values(), "England", "Scotland", "Wales", "Northern Ireland", "Syria", "Iraq", "Afghanistan", "Yemen",
    "Madagascar", "Tanzania", "Uganda", "Ethiopia", "Mali", "Burkina Faso", "Benin", "Togo", "Cameroon", "Cyprus",
    "Malta", "Belarus", "Moldova", "Azerbaijan", "Bosnia and Herzegovina", "Kosovo", "Montenegro", "North Macedonia",
    "Luxembourg", "Oman", "Qatar", "Kuwait", "Jordan", "Saudi Arabia", "Myanmar", "Laos", "Cambodia", "Mongolia",
    "North Korea", "Sudan", "Somalia", "Angola", "Zambia", "Zimbabwe", "Mozambique", "Namibia", "Botswana", "Senegal",
    "Guinea", "Ivory Coast", "Honduras", "Guatemala", "El Salvador", "Nicaragua", "Costa Rica", "Panama", "Haiti",
    "Dominican Republic", "USA",
}  # fmt: skip
SAME_COUNTRY = {"England": "United Kingdom", "Scotland": "United Kingdom", "Wales": "United Kingdom",
                 "Northern Ireland": "United Kingdom", "USA": "United States"}  # fmt: skip
COUNTRY = re.compile(rf"\b(?:in|of|,) (?:the )?({'|'.join(sorted(COUNTRIES, key=len, reverse=True))})\b")
PLACE = re.compile(
    r" is an? (?:[\w-]+ ){0,3}?(village|town|river|mountain|lake|municipality|commune|high school|university|school|"
    r"hamlet|railway station|stream|district|rural district|county|island|city)\b"
)
PERSON = re.compile(
    rf"\b(?:is|was) (?:an?|the) (?:former |retired |noted |award-winning )?({_DEMONYM})(?:-born)? ([a-z])"
)
FILM = re.compile(
    rf"\b(?:is|was) an? (\d{{4}}) (?:({_DEMONYM}) )?(?:[\w-]+(?: [\w-]+){{0,5}} )?(?:film|movie|documentary|western)\b"
)
FILM_NO_YEAR = re.compile(
    rf"\b(?:is|was) an? ({_DEMONYM}) (?:[\w-]+ ){{0,4}}(?:film|movie)\b(?! ?(?:and|,|"
    rf"[a-z]+(?:er|or|ress|ic|ist|ian|man|phy)\b))"
)
RELEASED = re.compile(
    r"\b(?:released|film from) (?:on |in )?(?:[A-Z][a-z]+ \d{1,2}, |\d{1,2} [A-Z][a-z]+ |[A-Z][a-z]+ )?(\d{4})"
)
SONG = re.compile(r"\b(?:is|was) (?:an?|the) [^.]{0,60}?\b(song|single|album)\b")
MAGAZINE = re.compile(rf"\b(?:is|was) an? (?:{_DEMONYM})? ?[^.]{{0,40}}?\b(magazine|journal|newspaper)\b")
FOUNDED = re.compile(r"\b(?:founded|established|launched|started)(?: by [^.]{3,40}?)? in (?:[A-Z][a-z]+ )?(\d{4})")
DIRECTED = re.compile(r"\bdirected (?:and (?:co-)?(?:written|produced|edited) )?by ")
WRITTEN_DIRECTED = re.compile(r"\b(?:written|produced),? (?:and|&) directed by ")
MUSIC = re.compile(r"\b(?:[Mm]usic (?:was |is )?(?:composed )?by|[Ss]core(?:d| was composed)? by|composed by) ")
_ARTIST_WORDS = (
    r"(?:(?:singer|singer-songwriter|rapper|musician|band|group|duo|DJ|artist|songwriter|producer|recording|pop|rock|"
    r"country|hip hop|R&B|electronic|music|and|indie|soul|alternative|heavy|metal|punk|girl|boy|folk|jazz|dance|record|"
    r"vocalist|composer|recording artist|entertainer|actress|actor|the)[ -])*"
)
PERFORMED = re.compile(
    rf"\b(?:(?:song|single|album|recorded|performed|sung)"
    rf"(?: (?:recorded|performed|written|released|sung)(?: and \w+)?)?) by "
    rf"(?:(?:{_DEMONYM}) )?{_ARTIST_WORDS}"
)
CHILD = re.compile(
    r"\b(?:the |an? |his |her )?(?:\w+ )?(?:surviving |legitimate |illegitimate |natural )?"
    r"(?:son|daughter|child) (?:and heir )?of (?:the )?"
    r"(?:(?:politician|actor|actress|director|film director|composer|writer|painter|businessman|banker|architect|"
    r"singer|Governor|Senator|folk singer-composer|novelist|poet|General|Lieutenant-General|Sir|King|late) )*"
)
FATHER = re.compile(r"\b(?:[Hh]is|[Hh]er) father(?: was|,| is) (?:the )?")
MOTHER = re.compile(r"\b(?:[Hh]is|[Hh]er) mother(?: was|,| is) (?:the )?")
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
SHE = re.compile(r"\b(?:[Ss]he|[Hh]er)\b")
HE = re.compile(r"\b(?:[Hh]e|[Hh]is)\b")
RANK_BEFORE = re.compile(r"^(?:(?:Sir|King|Queen|Emperor|Prince|Princess|Duke|Count|Lord|General|Dr\.?|Governor) )+")
QUALIFIER = re.compile(r"\s*\([^()]*\)$")
PLACE_PART = re.compile(rf"{_NAME}(?:, {_NAME})?")
