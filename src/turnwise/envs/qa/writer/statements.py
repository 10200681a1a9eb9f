"""What passages state of their topics, read by patterns: a value, which may name the topic of another passage.

Invariant: a value is what the passage writes; a statement is left out where it is of something else than the topic, or
where several values are joined.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from turnwise.envs.qa.nations import COUNTRIES, DEMONYM, DEMONYMS
from turnwise.envs.qa.writer import patterns
from turnwise.envs.qa.writer.topics import KIND_OF, Topic

_WORD = patterns.CAPITALISED
NAME = rf"{_WORD}(?: (?:(?:of|de|von|van|der|den|la|le|du|di|da|del|and the|of the|for the|the|&|\d+) )?{_WORD})*"
PLACE = rf"{_WORD}(?: (?:(?:of|de|la|upon|on|the|del) )?{_WORD})*(?:, {_WORD}(?: {_WORD})*){{0,2}}"
YEAR = r"(?:1[5-9]|20)\d\d(?![\d–-])"
COUNT = r"(?:\d{1,3}(?:,\d{3})+|\d{3,6})(?!\d|[.,]\d| ?(?:million|billion|%))"
ROLE = (
    rf"(?:the |an? )?(?:(?:{DEMONYM})(?:-born)? )?(?:(?:[a-z]+(?:-[a-z]+)?[ -]){{0,3}}"
    r"(?:author|novelist|writer|journalist|historian|poet|playwright|artist|singer|rapper|band|group|duo|composer|"
    r"architect|musician|producer|director|comedian|actor|actress|businessman|entrepreneur|engineer|songwriter|"
    r"singer-songwriter|filmmaker|scientist|politician|philosopher|company|developer|publisher|studio|label|network|"
    r"channel|series|sitcom|show|magazine|newspaper|university|college|club|team|novel|film|album|city|town|village|"
    r"county|state|province|river|lake) )?(?:Sir |Dr\. |Captain |Colonel |General |Major |President )?"
)
"""What may stand before a name: `the American science fiction author `."""
_OF_OTHERS = re.compile(
    r"\b(?:who|which|whose|where|when|that|after|before|while|until|if|based on|adapted|inspired|adaptation|sequel|"
    r"follow-up|although|not|never|formerly|former|son|daughter|brother|sister|wife|husband|father|mother)\b|"
    r", (?:an?|the|another|one) |;|\. "
)
_JOINED = re.compile(
    r",? (?:and|&|or|along with|together with) (?:the |by |his |her |for |on |in )?[A-Z\"]|, [A-Z]|/| ?[–-] ?\w"
)
_JOINED_PLACE = re.compile(r",? (?:and|&|or) (?:the |in )?[A-Z\"]|/| ?[–-] ?\w")
_NO_PLACE = re.compile(
    rf"^(?:{'|'.join(patterns.MONTHS)})\b|(?<=\w )(?:Stadium|Field|Arena|Center|Centre|Gardens?|Hall|University|"
    r"Studios|School|Museum|Building)$"
)
"""A time, and what is itself somewhere: nobody asks in which stadium a team is."""
_SHORT_COUNTRIES = ("U.S.", "U.S", "US", "UK", "U.K.", "U.K")
_LARGER = re.compile(r"metropolitan|metro area|urban area|combined|county|agglomeration|township")
_NEXT_SENTENCE = re.compile(r"(?<=[a-zA-Z]\.) [A-Z][a-z]+.*|(?<!\b[A-Z]\.[A-Z])\.$")
_NO_NAME = re.compile(rf"^(?:{DEMONYM}|African|European|Asian)\b|\b(?:{DEMONYM})$")
"""What begins or ends with words that describe it: `American Las Vegas Sands`."""
_THAT = re.compile(
    r"^,? ?(?:that|which|who) (?=(?:was|is|are|were|has been|had been|aired|airs|premiered|plays|flows) )"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Something that passages of some kinds state; in phrases, `{}` is the topic, or the words that lead to it."""

    name: str
    of: tuple[str, ...]
    """The kinds of topic."""
    before: str = ""
    """What stands before the value, as a regular expression."""
    value: str = NAME
    read: Callable[[Topic], tuple[str, ...]] | None = None
    """In place of both: the value as written, then shorter or longer; empty if there is none."""
    tell: str
    """`"{} was founded in {}."`: of the topic, the value."""
    ask: tuple[str, ...] = ()
    """`"In what year was {} founded?"`; empty if it only leads on."""
    relative: tuple[str, ...] = ()
    """The same at the end of a sentence: `"founded in what year?"`, after the words for the topic."""
    described: str = ""
    """What tells the topic from others: `"founded in {}"`, of the value."""
    to: tuple[str, ...] = ()
    """The kinds of topic that the value may name; empty if it names none."""
    refer: tuple[str, ...] = ()
    """`"the publisher of {}"`; `#` is what the other passage calls its topic: `"the # that published {}"`."""
    clause: str = ""
    """`"published by"`, behind the words for the first topic and before those for the other."""
    active: str = ""
    """`"published {}"`, behind the words for the other topic."""
    only: bool = True
    """Joined values are no value: of two founders, neither is the founder."""
    place: bool = False
    whole: bool = False
    """Read anywhere in the passage, rather than where something is stated of the topic."""

    def find(self, topic: Topic) -> "Value | None":
        if topic.kind not in self.of:
            return None
        if self.read is not None:
            found = self.read(topic)
            return Value(text=found[0], spellings=found, line="", start=0) if found else None
        return self._match(topic)

    def _match(self, topic: Topic) -> "Value | None":
        pattern = _compile(self.before, self.value)
        for line in [" ".join(topic.facts.passage.text.split())] if self.whole else topic.said:
            text = _THAT.sub("", line.strip())
            found = pattern.search(text)
            if found is None or (not self.whole and _OF_OTHERS.search(text[: found.start()])):
                continue
            joined = _JOINED_PLACE if self.place else _JOINED
            if self.only and joined.match(text, found.end()):
                return None
            if self.whole and pattern.search(text, found.end()):
                return None
            if self.whole and _LARGER.search(text[max(0, found.start() - 90) : found.start()]):
                return None
            written = found["value"].rstrip(", ")
            written = _cut_country(_NEXT_SENTENCE.sub("", written)) if self.place else written.rstrip(".")
            if not self._is_plain(written):
                return None
            first = written.split(",")[0] if self.place else written
            return Value(text=written, spellings=(written, first), line=text, start=found.start("value"))
        return None

    def _is_plain(self, written: str) -> bool:
        """Whether a value is a whole name, or a number, without words of its description."""
        if re.search(r"['’]s\b", written) or written in DEMONYMS or len(written) < 2:
            return False
        if (_NO_PLACE if self.place else _NO_NAME).search(written) or (not self.place and written.lower() in KIND_OF):
            return False
        return self.to != ("person",) or " of " not in written  # "Nick Park of Aardman Animations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    text: str
    spellings: tuple[str, ...]
    """The text, then what may stand for it."""
    line: str
    """The sentence that it stands in; empty if it was read otherwise."""
    start: int
    """Where in the line."""


def _cut_country(place: str) -> str:
    """Without the country behind a state, as places are named: `Providence, Rhode Island`."""
    *parts, last = place.split(", ")
    return ", ".join(parts) if len(parts) > 1 and (last in COUNTRIES or last in _SHORT_COUNTRIES) else place


_COMPILED: dict[tuple[str, str], re.Pattern[str]] = {}


def _compile(before: str, value: str) -> re.Pattern[str]:
    if (before, value) not in _COMPILED:
        _COMPILED[before, value] = re.compile(rf"(?<![\w-])(?:{before})(?P<value>{value})(?!['’&\w])")
    return _COMPILED[before, value]
