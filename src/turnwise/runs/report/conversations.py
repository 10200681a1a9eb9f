"""The report's episodes as conversations: cards that open, calls and results folded, rewards where they were earned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnwise.runs.conversation import Block, first_question, read_conversation
from turnwise.runs.episodes import StoredEpisode
from turnwise.runs.report.samples import Evaluated

_PREVIEW = 72
"""Characters of a folded text that its summary shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pill:
    """A reward: `Pill(name="exact_match", text="+1", kind="plus")`."""

    name: str
    text: str
    kind: str
    """`plus`, `minus` or `zero`: its colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One episode."""

    what: str
    """`best`, `median` or `worst`."""
    name: str
    reward: Pill
    question: str
    ended: str
    """`done after 3 turns`."""
    blocks: Sequence["ShownBlock"]
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownBlock:
    """A message as the page shows it."""

    block: Block
    rewards: Sequence[Pill]
    calls: Sequence[tuple[str, str, str]]
    """Name, arguments, and what was wrong with the call."""
    preview: str
    """Of a folded message."""

    @property
    def folded(self) -> bool:
        """What an agent reads before it is asked, and what tools answer, is folded."""
        return self.block.role in ("system", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """The episodes of one evaluation."""

    title: str
    cards: Sequence[Card]


def show_evaluated(evaluated: Evaluated) -> Cards:
    """The cards of one evaluation."""
    return Cards(title=evaluated.title, cards=[_card(what, episode) for what, episode in evaluated.episodes])


def show_rewards(rewards: Mapping[str, float]) -> list[Pill]:
    """A pill for each channel."""
    return [_pill(name, value) for name, value in rewards.items()]


def _card(what: str, episode: StoredEpisode) -> Card:
    blocks, turns = read_conversation(episode), len(episode.trajectory.turns)
    question = episode.trajectory.task.data.get("question")
    return Card(
        what=what,
        name=episode.line.name,
        reward=_pill("reward", episode.line.reward),
        question=_shorten(question if isinstance(question, str) else first_question(blocks)),
        ended=f"{episode.line.stop.replace('_', ' ')} after {turns} turn{'' if turns == 1 else 's'}",
        blocks=[_show(block) for block in blocks],
        failure=episode.line.failure,
    )


def _show(block: Block) -> ShownBlock:
    return ShownBlock(
        block=block,
        rewards=show_rewards(block.rewards),
        calls=[(call.name or "?", call.arguments, call.problem) for call in block.calls],
        preview=_shorten(" ".join(block.text.split())),
    )


def _pill(name: str, value: float) -> Pill:
    return Pill(name=name, text=f"{value:+.3g}", kind="plus" if value > 0 else "minus" if value < 0 else "zero")


def _shorten(text: str) -> str:
    line = text.strip()
    return line if len(line) <= _PREVIEW else f"{line[: _PREVIEW - 1].rstrip()}…"
