"""The report's token view: every token of an episode by role, with the numbers that trained it, on hover and as colour.

Invariant: a number shown is the stored one. Colours are shares from 0 to 1 in a token's style, of the largest value in
the episode; which of them paints is chosen on the page, without a script.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turnwise.runs.episodes import StoredEpisode, TurnRecord
from turnwise.runs.report.conversations import Pill, show_rewards
from turnwise.runs.report.samples import Pieces
from turnwise.types import Turn

_MOST_TOKENS = 3000
"""Of one episode on the page."""
_MODES = {
    "role": "blue: sampled by the agent; grey: read",
    "advantage": "green: made likelier; red: made less likely",
    "logprob": "darker: the sampler thought it less likely",
    "entropy": "darker: the learner was less certain what comes here",
    "gap": "darker: sampler and learner disagree more about its probability",
}
"""What a colour can show, and what it means."""
_FAINTEST_GAP, _STRONGEST_GAP = 1e-7, 1e-1


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """`Token(text=" Oslo", note="id 812 · logprob -0.31 · advantage +0.5", style="--l:0.06;--a:1.00", sign="plus")`."""

    text: str
    note: str
    style: str = ""
    """Empty for what was read."""
    sign: str = ""
    """Of its advantage: `plus`, `minus` or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What an agent read, or sampled, in one turn."""

    tokens: Sequence[Token]
    sampled: bool
    turn: int
    breaks: bool
    """A new row begins: the environment rewrote the conversation."""
    rewards: Sequence[Pill] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """One episode, token by token."""

    name: str
    task_id: str
    reward: float
    stretches: Sequence[Stretch]
    left_out: int
    """Tokens beyond those shown."""


def list_modes(episodes: Sequence[StoredEpisode]) -> list[tuple[str, str]]:
    """The modes that these episodes have numbers for, each with its meaning."""
    records = [record for episode in episodes for record in episode.turns]
    has = {
        "role": True,
        "advantage": any(_known(record.advantages) for record in records),
        "logprob": any(turn.logprobs for episode in episodes for turn in episode.trajectory.turns),
        "entropy": any(_known(record.entropies) for record in records),
        "gap": any(_known(record.learner_logprobs) for record in records),
    }
    return [(mode, meaning) for mode, meaning in _MODES.items() if has[mode]]


def show_tokens(episode: StoredEpisode, pieces: Pieces | None) -> TokenView:
    """The tokens of an episode with their numbers."""
    assert pieces is not None, "episodes are chosen where there is a tokenizer"
    every = [one for record in episode.turns for one in _known(record.advantages)]
    largest = max(map(abs, every), default=0.0)
    certain = [one for record in episode.turns for one in _known(record.entropies)]
    widest = max(certain, default=0.0)
    stretches: list[Stretch] = []
    room = _MOST_TOKENS
    for number, (turn, record) in enumerate(zip(episode.trajectory.turns, episode.turns, strict=True)):
        read = [
            Token(text=text, note=f"id {token}")
            for token, text in zip(turn.context_ids, pieces(turn.context_ids), strict=True)
        ]
        sampled = list(_sampled(turn, record, pieces, largest=largest, widest=widest))
        breaks = number > 0 and turn.opens_row
        stretches.append(Stretch(tokens=read[:room], sampled=False, turn=number, breaks=breaks))
        room = max(0, room - len(read))
        paid = show_rewards(turn.rewards)
        stretches.append(Stretch(tokens=sampled[:room], sampled=True, turn=number, breaks=False, rewards=paid))
        room = max(0, room - len(sampled))
    total = sum(len(turn.context_ids) + len(turn.action_ids) for turn in episode.trajectory.turns)
    return TokenView(
        name=episode.line.name,
        task_id=episode.line.task_id,
        reward=episode.line.reward,
        stretches=[stretch for stretch in stretches if stretch.tokens],
        left_out=max(0, total - _MOST_TOKENS),
    )


def _sampled(turn: Turn, record: TurnRecord, pieces: Pieces, *, largest: float, widest: float) -> Iterator[Token]:
    unknown = [None] * len(turn.action_ids)
    for token, text, logprob, version, advantage, own, entropy in zip(
        turn.action_ids,
        pieces(turn.action_ids),
        turn.logprobs,
        turn.token_versions,
        record.advantages or unknown,
        record.learner_logprobs or unknown,
        record.entropies or unknown,
        strict=True,
    ):
        notes = [f"id {token}", f"logprob {logprob:.4g}"]
        shares = {"l": 1 - math.exp(min(logprob, 0.0))}
        if advantage is not None:
            notes.append(f"advantage {advantage:+.4g}")
            shares["a"] = abs(advantage) / largest if largest else 0.0
        if own is not None:
            notes.append(f"learner {own:.4g}, gap {abs(own - logprob):.1e}")
            shares["g"] = _gap_share(abs(own - logprob))
        if entropy is not None:
            notes.append(f"entropy {entropy:.3g}")
            shares["e"] = entropy / widest if widest else 0.0
        notes.append(f"weights of step {version}")
        yield Token(
            text=text,
            note=" · ".join(notes),
            style=";".join(f"--{name}:{share:.2f}" for name, share in shares.items()),
            sign="" if not advantage else "plus" if advantage > 0 else "minus",
        )


def _gap_share(gap: float) -> float:
    """By the logarithm: rounding is faint, a tenth of a nat is full."""
    span = math.log(_STRONGEST_GAP / _FAINTEST_GAP)
    return min(1.0, max(0.0, math.log(max(gap, _FAINTEST_GAP) / _FAINTEST_GAP) / span))


def _known(numbers: Sequence[float | None] | None) -> list[float]:
    return [number for number in numbers or () if number is not None]
