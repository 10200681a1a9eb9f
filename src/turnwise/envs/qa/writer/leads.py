"""The words of a passage that lead from its topic to a name: `is a 1983 computer game published by`.

Invariant: with another name behind them, or "a company", they are still a sentence about the topic; and the name is
that of the other passage, as far as its kind, its qualifier and the words before the name tell.
"""

import re
from dataclasses import dataclass

from turnwise.envs.qa.nations import DEMONYM, DEMONYMS
from turnwise.envs.qa.writer import patterns
from turnwise.envs.qa.writer.facts import may_be_child
from turnwise.envs.qa.writer.topics import KIND_OF, Topic

REGION = re.compile(r", (?:[A-Z][\w.'-]+)(?: [A-Z][\w.'-]+)*")
"""Behind the name of a place: `, New South Wales`."""
_MOST_WORDS = 18
_SHORT = 3
_SHOWN_LATER = 5
"""Years after a death in which a work may still come out."""
_NEAR = 60
"""Characters before a name that tell what it is the name of."""
_WORKS = ("film", "series", "episode", "song", "album", "book", "game", "magazine")
_PREPOSITIONS = "by|of|in|for|with|at|on|to|from|under|against|into|near|as|opposite|alongside|about|like"
_VERBS = (
    "starring|directed|directing|wrote|married|joined|attended|played|plays|playing|released|recorded|includes|including|"
    "include|stars|starred|features|featuring|featured|represented|represents|defeated|defeating|succeeded|replaced|"
    "founded|created|produced|hosted|hosts|portrayed|portrays|portraying|owns|owned|published|remake|followed|managed|"
    "coached|coaches|left|entered|signed|composed|designed|developed|operates|serves|borders|covers|voiced|voices|"
    "supported|accompanied"
)
_TITLES = "President|King|Queen|Emperor|Sir|Captain|General|Colonel|Prince|Pope|Dr\\.|Lord|Lady|Senator|Governor|Saint"
_ADJECTIVE = (
    rf"(?! (?:{_PREPOSITIONS}|and|or|that|which|who|the|a|an|is|was|are|were|within|across|over|underneath|beyond|"
    r"through|during|around|above|below|along|[a-z]+ed|[a-z]+ing)\b)"
    rf" (?:[a-z][\w'-]*|{DEMONYM}|{_TITLES}|\d{{4}}|BBC|NBC|HBO|ABC|CBS|MTV|R&B|TV)"
)
_LEAD = re.compile(
    rf"^(?P<lead>(?:.* )?(?:{_PREPOSITIONS}|{_VERBS}))"
    rf"(?: (?:the|an?|his|her|its|their|fellow|one of the)(?:{_ADJECTIVE}){{0,6}}|"
    rf"(?:(?<! to)|(?<=married to))(?:{_ADJECTIVE}){{0,6}}) $"
)
_LISTED = re.compile(
    r"^(?P<lead>(?:.* )?(?:starring|stars|starred|starred in|featuring|features|including|include|includes|such as|"
    r"appeared in|roles in|known for|for playing|worked with))(?: (?:the|films?|an?|series|television|[a-z]+)){0,4} "
    r"(?:[A-Z0-9][\w.'-]*(?: (?:[A-Z0-9][\w.'-]*|of|the|de|von|van|in|a|to))*(?: in| as [A-Z][\w ]+)?,? (?:and )?)+$"
)
_ENDS = re.compile(
    r"$|[.]|, (?![A-Z])| (?:in|on|at|by|from|for|with|as|to|who|which|that|during|until|after|before|where|when|"
    r"since|while|under|through|starring|directed|released|is|was|has|and (?!his\b|her\b|their\b)[a-z]+)\b"
)
"""Behind a name that stands alone: whoever is joined to it, a parent's wife say, is led to as well."""
_CHILD = re.compile(r"\b(?:son|daughter|child) (?:and heir )?of(?: the)?[^.]{0,40}$|(?:father|mother) is $")
_MARRIED = re.compile(r"\bmarried|\b(?:wife|husband|spouse|consort|widow) of$")
_LIST_ENDS = re.compile(r"$|[.,]| and\b| or\b| in\b| as\b| with\b")
_UNSAID = re.compile(
    r"[;:?–—]|\b(?:when|not|never|no|although|but|while|because|if|whether|unlike|may|might|instead|than|it|this)\b|"
    r"\w\w\. [A-Z]|, [A-Z]\w+ (?:was|is|\w+ed) "
)
_PART = re.compile(r"[A-Z]\w* (?:of|of the|and|in|in the) $")
"""Before the last words of a longer name: `Days of Glory`."""
_MAKER = re.compile(
    r"(?<!followed )(?<!preceded )(?<!succeeded )(?<!replaced )\b(?:by|playing|portraying|played) (?:the )?$"
)
"""Before whoever made or is played in something, which no work is."""
_OF_MANY = re.compile(r"(?:such as|like|includ(?:e|es|ing))$")
_PART_IN = re.compile(r"\b(?:direct|starring|stars|starred|produced|recorded|performed|sung)[a-z]*[^,]{0,30}$")
_TITLE_GOES_ON = re.compile(r" (?:the|of|and|for|in|to|an?|on|at|with|from) [A-Z]")
_ON_STAGE = "actor|actress|singer|comedian|model|dancer|rapper|musician|entertainer|television|presenter"
_ROLES = {
    r"direct": r"director|film|filmmaker|actor|actress|screenwriter|producer|cinematographer|animator|theatr",
    r"written|wrote|writ|author|novel|book|play by|story by|memoir": (
        rf"[\w-]*writer|novelist|author|playwright|director|poet|lyricist|journalist|historian|producer|film|philosopher|"
        rf"essayist|[\w-]*scientist|physicist|professor|scholar|activist|cartoonist|manga|composer|artist|band|{_ON_STAGE}"
    ),
    r"starring|stars|starred|featuring|portrayed|played|voiced|cast": rf"acting|wrestler|{_ON_STAGE}",
    r"album|song|single|record|perform|EP|band|duet|composed|music|score": (
        r"singer|music|band|rapper|DJ|song|artist|group|guitar|pianist|producer|compos|vocal|drummer|bass|duo|conductor|"
        r"violin|orchestra|jazz"
    ),
}
"""What the opening of a person's passage says, by the words before the name: a drummer directs no film."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    words: str
    listed: bool
    """The name is one of several that the words lead to."""


def read_lead(topic: Topic, target: Topic, clause: str, start: int, end: int) -> Lead | None:
    """From a clause of the topic's passage, where the target's name stands from `start` to `end`."""
    before, behind = clause[:start], clause[end:]
    if not (_is_whole(target, clause[start:end], before) and is_meant(topic, target, before, behind)):
        return None
    if target.kind == "settlement" and (region := REGION.match(behind)):
        behind = behind[region.end() :]
    alone = _LEAD.match(before)
    listed = not (alone and _ENDS.match(behind))
    found = (alone or _LISTED.match(before)) if not listed or _LIST_ENDS.match(behind) else None
    if found is None:
        return None
    words = found["lead"]
    if target.kind in _WORKS and _MAKER.search(f"{words} "):
        return None
    if _MARRIED.search(words) and len(patterns.MARRIAGE.findall(topic.facts.passage.text)) > 1:
        return None  # it may be another marriage
    plain = len(words.split()) <= _MOST_WORDS and words.count(",") <= 1 and not _UNSAID.search(words)
    return Lead(words=words, listed=listed or bool(_OF_MANY.search(words))) if plain else None


def _is_whole(target: Topic, name: str, before: str) -> bool:
    """Whether the name is no part of a longer one, and long enough to be known by."""
    last = before.split()[-1] if before.split() else ""
    if last[:1].isupper() and not last.endswith(",") and last not in _TITLES.split("|") and last not in DEMONYMS:
        return False
    if target.kind in _WORKS:
        return len(name) > _SHORT
    if target.kind == "person":
        return (" " in name or name == target.title) and not re.search(r"\b(?:as|in|at|into)(?: the| an?)? $", before)
    known = " " in name or name == target.title or _says_kind(target, before)
    return target.kind != "region" and known and not _PART.search(before)


def is_meant(topic: Topic, target: Topic, before: str, behind: str) -> bool:
    """Whether a name between these words is the target's, as far as they and its qualifier tell."""
    qualifier, text = target.title[len(target.name) :], topic.facts.passage.text
    if target.kind in _WORKS:
        quoted = re.search(rf"[\"`]\s*{re.escape(target.name)}\s*[.,?!]?\s*[\"']", text)
        if _MAKER.search(before):
            return False
        called = KIND_OF.get(before.split()[-1].strip(",").lower()) if before.split() else None
        if called in _WORKS and called != target.kind:
            return False
        said = _says_kind(target, before) and not _PART.search(before) and not _TITLE_GOES_ON.match(behind)
        plain = re.fullmatch(r" \([a-z ]+\)", qualifier)
        agrees = _agrees(qualifier, f"{before[-_NEAR:]} {behind[:_NEAR]}", text)
        return agrees and bool(said or (quoted and not plain))
    if target.kind in ("settlement", "region") and (region := REGION.match(behind)):
        return region[0][2:] in target.opening
    if _CHILD.search(before) and not may_be_child(topic.facts, target.facts):
        return False
    if topic.name in target.facts.passage.text:
        return True
    if target.kind == "person" and not _lived(target, topic, before):
        return False
    for called, roles in _ROLES.items():
        if target.kind == "person" and re.search(rf"\b(?:{called})", before[-_NEAR:]):
            return bool(re.search(rf"\b(?:{roles})", f"{qualifier} {target.opening}"))
    return not qualifier or any(word in text.lower() for word in re.findall(r"[a-z]{4,}", qualifier.lower()))


def _lived(person: Topic, work: Topic, before: str) -> bool:
    """Whether a person may have had a part in a work of its year."""
    year, born, died = work.facts.year, person.facts.born, person.facts.died
    if work.kind not in _WORKS or year is None or not _PART_IN.search(before):
        return True
    return not (born and born.year > year) and not (died and died.year + _SHOWN_LATER < year)


def _says_kind(target: Topic, before: str) -> bool:
    noun = target.noun.split()[-1] if target.noun else target.kind
    return bool(re.search(rf"\b(?:{target.kind}|{re.escape(noun)})s?\b", before[-_NEAR:]))


def _agrees(qualifier: str, near: str, text: str) -> bool:
    """Whether a work's qualifier is not at odds: its year stands near the name, its other words in the passage."""
    years = re.findall(r"\d{4}", qualifier)
    words = [word for word in re.findall(r"[A-Za-z]{3,}", qualifier) if word.lower() not in _WORKS]
    if years and not any(year in near for year in years):
        return False
    return all(word in text for word in words if word[0].isupper())
