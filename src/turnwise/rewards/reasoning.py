"""Rewards for the reasoning of a text game: is it true of the state, does it lead to the answer, is it new?

Invariant: a score is from 0 to 1 and depends on the thought alone; words that nothing can be checked in earn no truth
and no consistency, and a turn without an action earns nothing at all.

    truth        C · max(0, R − W) / (R + W), and 0 where nothing is stated
                 R right and W wrong statements of where things are, each counted once: "the box is at (2, 1)", "the
                 goal is below". C is ½ for the right place of who acts (the first fact) + ½ for that of anything else.
    consistency  LCS(M, A) / max(|M|, |A|), and 0 where no move is named
                 M the moves named by the last sentence that names any, A the actions answered, LCS the length of their
                 longest common subsequence.
    repetition   1 − S / G, and 0 for an empty thought
                 G runs of four words, S of them stale: earlier in the same thought, or by the turn before although
                 the state has changed since. Words of a right statement, the first time, and of a plan that is carried
                 out are what a true thought must repeat: a run that holds one is never stale.

Why guessing does not pay: a statement that is more likely wrong than right lowers the expected truth of what is there
already, and of several places for one thing at most one is right. Directions weigh as statements but are no part of C,
since one in two or three guesses of them is right. Naming every move divides consistency by their number.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeAlias

from turnwise.errors import RewardError
from turnwise.rewards.reasoning_judge import Judge
from turnwise.spelling import suggest

Place: TypeAlias = tuple[int, int]
"""`(row, column)`, both from 0."""

RULES: Final = ("truth", "consistency", "repetition")
CHANNELS: Final = (*RULES, "judge")
_GRAM: Final = 4
_SELF: Final = ("i", "me", "you", "agent", "my position", "your position")
"""What the player may be called beside `player`."""
_MOVES: Final = (
    ("up", "upward", "upwards", "north"),
    ("down", "downward", "downwards", "south"),
    ("left", "leftward", "leftwards", "west"),
    ("right", "rightward", "rightwards", "east"),
)
_DIRECTIONS: Final = {
    word: direction
    for words, direction in zip(_MOVES, ((-1, 0), (1, 0), (0, -1), (0, 1)), strict=True)
    for word in words
} | {"above": (-1, 0), "below": (1, 0)}
_WORD: Final = re.compile(r"\w+")
_SENTENCE: Final = re.compile(r"[^.!?;\n]+")
_ONE_PLACE: Final = r"[(\[]\s*\d{1,3}\s*,\s*\d{1,3}\s*[)\]]"
_NUMBERS: Final = re.compile(r"(\d+)\s*,\s*(\d+)")
_LINK: Final = (
    r"(?:'(?:s|m|re))?"
    r"(?:\s+(?:is|am|are|now|currently|still|at|in|on|located|standing|position|location|cell)\b|\s*[:=])*\s*"
)
_FILLER: Final = (
    r"(?:\s+(?:directly|just|straight|immediately|far|further|somewhere|diagonally|one|two|three|\d|steps?|cells?|rows?"
    r"|columns?|to|on|the|towards?|right(?=\s+(?:above|below)))\b)*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Where a thought says that something is: `Statement(about="goal", says="(3, 2)", fact="goal", span=(26, 46))`."""

    about: str
    says: str
    """A place, or a direction and what it is seen from: `"below player"`."""
    right: bool
    fact: str = ""
    """The fact whose place it gives, and gives rightly."""
    span: tuple[int, int]
    """Where it stands in the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """One turn's reasoning, read: what it states, what it plans, and what it is compared with."""

    text: str
    """In lower case, as it is read."""
    facts: Mapping[str, Place]
    """Where things are in the state that was shown; the one who acts comes first."""
    actions: tuple[str, ...]
    """What was answered."""
    before: str = ""
    """What the turn before thought, if the state has changed since."""
    statements: tuple[Statement, ...] = ()
    plan: tuple[str, ...] = ()
    """The moves named by the last sentence that names any."""
    plan_spans: tuple[tuple[int, int], ...] = ()


def read_thought(
    text: str, *, facts: Mapping[str, Place], actions: Sequence[str], known: Sequence[str], before: str = ""
) -> Thought:
    """Reads a thought by the facts of its state; `known` are all actions of the game, by which moves are recognised."""
    text = text.lower()
    statements = tuple(_read_statements(text, facts)) if facts else ()
    moves = _read_plan(text, statements, tuple(known))
    return Thought(
        text=text,
        facts=facts,
        actions=tuple(actions),
        before=before.lower(),
        statements=statements,
        plan=tuple(action for action, _ in moves),
        plan_spans=tuple(span for _, span in moves),
    )


def truth(thought: Thought) -> float:
    """`"The player is at (1, 2). The goal is at (3, 0)."` scores 1 where both are there, 0 where one is not."""
    verdicts = {(one.about, one.says): one.right for one in thought.statements}
    if not verdicts:
        return 0.0
    right = sum(verdicts.values())
    wrong = len(verdicts) - right
    placed = {one.fact for one in thought.statements if one.fact}
    actor, *others = thought.facts
    seen = [actor in placed, *([any(name in placed for name in others)] if others else [])]
    return sum(seen) / len(seen) * max(0, right - wrong) / (right + wrong)


def consistency(thought: Thought) -> float:
    """`"I go up, then left."` scores 1 with `Up || Left`, ½ with `Up` alone or `Up || Up`, 0 with `Down`."""
    if not thought.plan or not thought.actions:
        return 0.0
    return _common_length(thought.plan, thought.actions) / max(len(thought.plan), len(thought.actions))


def repetition(thought: Thought) -> float:
    """The share of a thought that is not repeated: 1 where nothing is."""
    words = list(_WORD.finditer(thought.text))
    if not words:
        return 0.0
    needed = _needed(thought)
    free = [not needed[word.start()] for word in words]
    grams = _grams([word.group() for word in words])
    said = set(_grams(_WORD.findall(thought.before))) if thought.before else set()
    stale = 0
    for place, gram in enumerate(grams):
        stale += gram in said and all(free[place : place + _GRAM])
        said.add(gram)
    return 1 - stale / len(grams)


_SCORES: Final = dict(zip(RULES, (truth, consistency, repetition), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What an episode's thoughts have scored so far; a new one is made each turn, so that forks never share one."""

    sums: Mapping[str, float] = field(default_factory=dict)
    turns: Mapping[str, int] = field(default_factory=dict)
    silent: int = 0
    """Turns on which the judge was asked and gave no verdict."""

    def add(self, scores: Mapping[str, float | None]) -> "Tally":
        given = {name: score for name, score in scores.items() if score is not None}
        return Tally(
            sums={**self.sums, **{name: self.sums.get(name, 0.0) + score for name, score in given.items()}},
            turns={**self.turns, **{name: self.turns.get(name, 0) + 1 for name in given}},
            silent=self.silent + len(scores) - len(given),
        )

    def means(self) -> dict[str, float]:
        """`{"truth": .8, "repetition": 1.0}`: each over the turns that were scored."""
        return {name: total / self.turns[name] for name, total in self.sums.items()}


class ReasoningRewards:
    """What each channel is worth: `ReasoningRewards({"truth": 0.1, "consistency": 0})`; a weight of 0 only measures."""

    def __init__(self, weights: Mapping[str, float], judge: Judge | None = None) -> None:
        for name, weight in weights.items():
            if name not in CHANNELS:
                known = ", ".join(CHANNELS)
                raise RewardError(f"reasoning has no channel '{name}'{suggest(name, CHANNELS)}; it has: {known}")
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
                raise RewardError(f"reasoning.{name} is {weight}; give a weight of 0 or more")
        if "judge" in weights and judge is None:
            raise RewardError("reasoning pays 'judge', but there is none; add judge={'url': ..., 'model': ...}")
        if "judge" not in weights and judge is not None:
            raise RewardError("a judge is given, but not paid; add reasoning={'judge': 0.1}")
        self.weights = dict(weights)
        self.judge = judge

    async def score(self, thought: Thought, said: str, shown: str) -> dict[str, float | None]:
        """Raw scores by channel, None where the judge was silent; the judge reads `said` and the state `shown`."""
        if not thought.actions:
            return {name: 0.0 for name in RULES if name in self.weights}
        scores: dict[str, float | None] = {name: _SCORES[name](thought) for name in RULES if name in self.weights}
        if self.judge is not None:
            scores["judge"] = await self.judge.score(state=shown, reasoning=said, actions=thought.actions)
        return scores

    def pay(self, scores: Mapping[str, float | None]) -> dict[str, float]:
        """What a turn is paid, weights applied; where there is no verdict there is no payment."""
        return {name: self.weights[name] * score for name, score in scores.items() if score is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grammar:
    """How statements about certain kinds of things are recognised."""

    kinds: Mapping[str, str]
    """The kind that a word means: `{"boxes": "box", "i": "player"}`."""
    places: re.Pattern[str]
    relations: re.Pattern[str]


@lru_cache(maxsize=256)
def _grammar(kinds: tuple[str, ...]) -> _Grammar:
    words = {f"{kind}{ending}": kind for kind in map(str.lower, kinds) for ending in ("", "s", "es")}
    words |= dict.fromkeys(_SELF, "player") if "player" in words else {}
    thing = rf"(?:{_any_of(words)})(?:\s+\d{{1,3}})?\b"
    subject = rf"(?:\b(?:the|a|an)\s+)?\b(?P<subject>{thing})"
    direction = rf"(?:{_any_of(_DIRECTIONS)})\b"
    places = rf"{subject}{_LINK}(?P<places>{_ONE_PLACE}(?:(?:\s*,|\s+and|\s+or)+\s*{_ONE_PLACE})*)"
    relations = (
        rf"{subject}(?:'(?:s|m|re)|\s+(?:is|am|are|lies)\b){_FILLER}\s+(?P<one>{direction})"
        rf"(?:(?:\s*,|\s+and)+(?:\s+(?:to|on|the))*\s+(?P<two>{direction}))?"
        rf"(?:(?:\s+(?:of|from))?(?:\s+(?:the|a|an))?\s+(?P<object>{thing})|(?!\s+(?:of|from|the|a|an)\b))"
    )
    return _Grammar(kinds=words, places=re.compile(places), relations=re.compile(relations))


def _read_statements(text: str, facts: Mapping[str, Place]) -> Iterator[Statement]:
    grammar = _grammar(tuple(dict.fromkeys(_kind(name) for name in facts)))
    for found in grammar.places.finditer(text):
        about, meant = _resolve(found["subject"], grammar, facts)
        for numbers in _NUMBERS.finditer(found["places"]):
            place = (int(numbers[1]), int(numbers[2]))
            fact = next((name for name in meant if facts[name] == place), "")
            yield Statement(about=about, says=str(place), right=bool(fact), fact=fact, span=found.span())
    actor = next(iter(facts))
    for found in grammar.relations.finditer(text):
        about, meant = _resolve(found["subject"], grammar, facts)
        other, seen_from = _resolve(found["object"], grammar, facts) if found["object"] else (actor, [actor])
        if about == other:
            continue
        said = [word for word in (found["one"], found["two"]) if word]
        right = any(_lies(facts[one], facts[two], said) for one in meant for two in seen_from)
        yield Statement(about=about, says=f"{' '.join(said)} {other}", right=right, span=found.span())


def _resolve(words: str, grammar: _Grammar, facts: Mapping[str, Place]) -> tuple[str, list[str]]:
    """What a subject is called and the facts it may mean: `boxes` any box, `box 2` that one, `box 9` none."""
    *head, last = words.split()
    if not last.isdigit():
        kind = grammar.kinds[" ".join((*head, last))]
        return kind, [fact for fact in facts if _kind(fact).lower() == kind]
    kind = grammar.kinds[" ".join(head)]
    names = (f"{kind} {int(last)}", kind if int(last) == 1 else "")
    return names[0], [fact for fact in facts if fact.lower() in names]


def _lies(place: Place, seen_from: Place, directions: Sequence[str]) -> bool:
    rows, columns = place[0] - seen_from[0], place[1] - seen_from[1]
    return all(rows * down + columns * across > 0 for down, across in (_DIRECTIONS[word] for word in directions))


def _read_plan(text: str, statements: Sequence[Statement], known: tuple[str, ...]) -> list[tuple[str, tuple[int, int]]]:
    """The moves of the last sentence that names any, where they stand; directions in which things lie are no moves."""
    if not known:
        return []
    words, pattern = _moves(known)
    lying = bytearray(len(text))
    for one in statements:
        if not one.says.startswith("("):
            _mark(lying, one.span)
    plan: list[tuple[str, tuple[int, int]]] = []
    for sentence in _SENTENCE.finditer(text):
        named = pattern.finditer(text, *sentence.span())
        plan = [(words[found[0]], found.span()) for found in named if not lying[found.start()]] or plan
    return plan


@lru_cache(maxsize=256)
def _moves(known: tuple[str, ...]) -> tuple[dict[str, str], re.Pattern[str]]:
    words: dict[str, str] = {}
    for action in known:
        row = next((row for row in _MOVES if action.lower() in row), ())
        words |= dict.fromkeys((*row, action.lower()), action)
    return words, re.compile(rf"(?<!\w)(?:{_any_of(words)})(?!\w)")


def _needed(thought: Thought) -> bytearray:
    """1 at every letter that a true thought cannot leave out."""
    needed = bytearray(len(thought.text))
    firsts: set[tuple[str, str]] = set()
    for one in thought.statements:
        if one.right and (one.about, one.says) not in firsts:
            firsts.add((one.about, one.says))
            _mark(needed, one.span)
    if thought.plan == thought.actions:
        for span in thought.plan_spans:
            _mark(needed, span)
    return needed


def _mark(letters: bytearray, span: tuple[int, int]) -> None:
    start, end = span
    letters[start:end] = b"\x01" * (end - start)


def _grams(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Runs of four words; a text of fewer is one run."""
    return [tuple(words[place : place + _GRAM]) for place in range(max(1, len(words) - _GRAM + 1))]


def _common_length(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for left in one:
        above = row
        row = [0]
        for place, right in enumerate(other):
            row.append(above[place] + 1 if left == right else max(above[place + 1], row[place]))
    return row[-1]


def _kind(name: str) -> str:
    """`"hole 2"` is a hole."""
    head, _, number = name.rpartition(" ")
    return head if number.isdigit() else name


def _any_of(words: Mapping[str, object]) -> str:
    # The longest first, for an alternation takes the first that fits.
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
