"""One entry of a question set, in any of the public formats, as a `Question`.

HotpotQA and 2WikiMultihopQA (as their authors publish them, and as the hub's Parquet files hold them), MuSiQue, and the
plain form that anybody can write. Invariant: an entry is known by its own keys; what cannot be read names its place.
"""

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from turnwise.errors import EnvError
from turnwise.rewards.answers import is_answer, normalise_answer, write_answer
from turnwise.tools.search.retrieval import Passage

Entry: TypeAlias = Mapping[str, object]
Aliases: TypeAlias = Mapping[str, Sequence[str]]
"""Other names of an answer, by the id its data set gives it."""

_ANSWER_KEYS = ("answers", "golden_answers", "answer")
_ALIAS_KEYS = ("answer_aliases", "aliases")
_TWO_WIKI_TYPES = ("compositional", "inference", "bridge_comparison")
_HOPS = re.compile(r"(\d)hop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`Question(text="Who founded Lumen?", answers=("Ada Brandt",), supporting_titles=("Lumen",))`."""

    id: str = ""
    """What its source calls it; empty where it has no name."""
    text: str
    answers: tuple[str, ...]
    """The gold one, then its aliases; none vanishes under `normalise_answer`."""
    supporting_titles: tuple[str, ...] = ()
    supporting_ids: tuple[str, ...] = ()
    """Parallel to the titles, where it has both."""
    hops: int | None = None
    source: str = ""
    type: str = ""
    evidence: str = ""
    """The facts that lead to the answer, as a sentence or two; the expert states them before it answers."""
    context: tuple[Passage, ...] = ()
    """The passages that came with it, without ids."""
    gold: tuple[int, ...] = ()
    """Where in `context` the supporting passages are, parallel to their titles; empty unless all are there."""


class LeftOutError(Exception):
    """A question that is well formed and yet cannot be asked, with the reason."""


def read_question(where: str, entry: object, aliases: Aliases) -> Question:
    """The question that stands at `where`; an EnvError names the place when it is none."""
    if not isinstance(entry, Mapping):
        raise EnvError(f'{where}: a question is an object such as {{"question": "...", "answers": ["..."]}}')
    if "paragraphs" in entry:
        return _read_musique(where, entry)
    if "supporting_facts" in entry:
        return _read_wiki(where, entry, aliases)
    return _read_plain(where, entry)


def _read_plain(where: str, entry: Entry) -> Question:
    titles, ids = (_texts(where, entry, key) for key in ("supporting_titles", "supporting_ids"))
    if titles and ids and len(titles) != len(ids):
        raise EnvError(
            f"{where}: {len(titles)} supporting_titles, {len(ids)} supporting_ids; give them in pairs, or one of both"
        )
    hops = entry.get("hops")
    if hops is not None and (isinstance(hops, bool) or not isinstance(hops, int)):
        raise EnvError(f"{where}: hops is {_show(hops)}; give a whole number, or leave it out")
    return Question(
        id=_name(where, entry),
        text=_text(where, entry, "question"),
        answers=_answers(where, entry),
        supporting_titles=titles,
        supporting_ids=ids,
        hops=hops,
        source=str(entry.get("source") or ""),
        type=str(entry.get("type") or ""),
        evidence=str(entry.get("evidence") or ""),
    )


def _read_wiki(where: str, entry: Entry, aliases: Aliases) -> Question:
    """HotpotQA, and 2WikiMultihopQA, which took over its form and added `evidences`."""
    kind = str(entry.get("type") or "")
    two_wiki = "evidences" in entry or kind in _TWO_WIKI_TYPES
    titles = tuple(dict.fromkeys(_clean(title) for title, _ in _titled(where, entry, "supporting_facts")))
    context = tuple(
        Passage(id="", title=_clean(title), text=_clean(" ".join(map(str, sentences))))
        for title, sentences in _titled(where, entry, "context")
        if isinstance(sentences, Sequence)
    )
    places = {passage.title: place for place, passage in reversed(list(enumerate(context)))}
    return Question(
        id=_name(where, entry),
        text=_text(where, entry, "question"),
        answers=_answers(where, entry, aliases.get(str(entry.get("answer_id")), ())),
        supporting_titles=titles,
        hops=len(titles) if two_wiki else 2,
        source="2wiki" if two_wiki else "hotpot",
        type=kind,
        context=context,
        gold=tuple(places[title] for title in titles) if all(title in places for title in titles) else (),
    )


def _read_musique(where: str, entry: Entry) -> Question:
    name = _name(where, entry)
    if entry.get("answerable") is False:
        raise LeftOutError("is marked as unanswerable")
    paragraphs = [item for item in _listed(where, entry, "paragraphs") if isinstance(item, Mapping)]
    context = tuple(
        Passage(id="", title=_clean(_text(where, item, "title")), text=_clean(_text(where, item, "paragraph_text")))
        for item in paragraphs
    )
    steps = [item for item in _listed(where, entry, "question_decomposition") if isinstance(item, Mapping)]
    places = {_index(where, {"idx": place, **item}, "idx"): place for place, item in enumerate(paragraphs)}
    supports = [_index(where, step, "paragraph_support_idx") for step in steps]
    hops = [places[support] for support in supports if support in places]
    # Paragraphs that no step points to come last; all do where the steps are not published.
    others = [place for place, item in enumerate(paragraphs) if item.get("is_supporting")]
    gold = tuple(dict.fromkeys([*hops, *others]))
    shape = name.partition("__")[0]
    counted = _HOPS.match(shape)
    return Question(
        id=name,
        text=_text(where, entry, "question"),
        answers=_answers(where, entry),
        supporting_titles=tuple(context[place].title for place in gold),
        hops=int(counted[1]) if counted else len(steps) or None,
        source="musique",
        type=shape if counted else "",
        context=context,
        gold=gold,
    )


def _index(where: str, item: Entry, key: str) -> str | int | float | None:
    """Which paragraph is meant; None where the data does not say."""
    index = item.get(key)
    if index is None or isinstance(index, str | int | float):
        return index
    raise EnvError(f"{where}: '{key}' is {_show(index)}; give the number of a paragraph, or leave it out")


def _answers(where: str, entry: Entry, aliases: Sequence[str] = ()) -> tuple[str, ...]:
    given = next((entry[key] for key in _ANSWER_KEYS if entry.get(key) not in (None, "", [])), None)
    listed = [*given] if isinstance(given, list | tuple) else [given]
    for key in _ALIAS_KEYS:
        listed += _texts(where, entry, key)
    for answer in listed:
        if isinstance(answer, bool) or not is_answer(answer):
            missing = answer is None or isinstance(answer, float)  # NaN, in a table
            shown = "has no answer" if missing else f"has {_show(answer)} for an answer"
            raise EnvError(f'{where}: this question {shown}; give it "answers": ["...", ...], the gold one first')
    answers = [" ".join(write_answer(answer).split()) for answer in (*listed, *aliases)]
    if not answers[0]:
        raise EnvError(f'{where}: the gold answer of this question is empty; give it "answers": ["...", ...]')
    if not normalise_answer(answers[0]):
        # An empty prediction would match it.
        raise LeftOutError(f"has the answer '{answers[0]}', of which nothing is left to compare")
    return tuple(dict.fromkeys(answer for answer in answers if normalise_answer(answer)))


def _titled(where: str, entry: Entry, key: str) -> list[tuple[str, object]]:
    """Titles, each with what stands beside it: from pairs, from two columns, from objects, or from JSON of any."""
    value = _unpacked(where, key, entry.get(key))
    if isinstance(value, Mapping):
        columns = [list(column) for name, column in value.items() if name != "title" and isinstance(column, Sequence)]
        titles = value.get("title")
        if isinstance(titles, Sequence) and columns and len(columns[0]) == len(titles):
            return [(str(title), beside) for title, beside in zip(titles, columns[0], strict=True)]
    elif isinstance(value, list | tuple):
        pairs = [tuple(item.values()) if isinstance(item, Mapping) else item for item in value]
        if all(isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
            return [(str(title), beside) for title, beside in pairs]
    raise EnvError(f"{where}: '{key}' is not a list of [title, ...] pairs, as HotpotQA and 2WikiMultihopQA have it")


def _unpacked(where: str, key: str, value: object) -> object:
    if value is None:
        return []
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise EnvError(f"{where}: '{key}' is text that is not JSON") from None


def _text(where: str, entry: Entry, key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip():
        fault = "is missing" if value is None else f"is {_show(value)}"
        raise EnvError(f"{where}: '{key}' {fault}; it must be text")
    return value.strip()


def _texts(where: str, entry: Entry, key: str) -> tuple[str, ...]:
    listed = _listed(where, entry, key)
    if not all(isinstance(item, str) for item in listed):
        raise EnvError(f"{where}: '{key}' is {_show(listed)}; give a list of texts")
    return tuple(map(str, listed))


def _listed(where: str, entry: Entry, key: str) -> list[object]:
    value = entry.get(key)
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise EnvError(f"{where}: '{key}' is {_show(value)}; give a list")
    return list(value)


def _name(where: str, entry: Entry) -> str:
    name = entry.get("id", entry.get("_id"))
    if name is not None and (isinstance(name, bool) or not isinstance(name, str | int)):
        raise EnvError(f"{where}: the id is {_show(name)}; give text, a whole number, or none")
    return "" if name is None else str(name)


def _clean(text: str) -> str:
    return " ".join(html.unescape(text).split())


def _show(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:60]
