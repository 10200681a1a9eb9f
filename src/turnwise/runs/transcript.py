"""A stored episode on the terminal: the conversation, what each turn was paid, and what its tokens were credited.

Invariant: what a model wrote cannot steer the terminal: markup is text, and control characters are shown as dots.
"""

import math
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from turnwise.runs.conversation import Block, read_conversation
from turnwise.runs.episodes import StoredEpisode, TurnRecord
from turnwise.runs.picture import visible
from turnwise.runs.store import Known
from turnwise.types import Turn

_STYLES = {"system": "dim", "user": "blue", "assistant": "green", "tool": "magenta", "context": "dim"}


def print_transcript(console: Console, episode: StoredEpisode) -> None:
    """The whole episode, from its task to why it ended."""
    line, trajectory = episode.line, episode.trajectory
    header = Text(f"{line.name}  task {visible(line.task_id)}", style="bold")
    console.print(header, soft_wrap=True)
    for key, value in trajectory.task.data.items():
        console.print(Text(visible(f"  {key}: {value}"), style="dim"), soft_wrap=True)
    for block in read_conversation(episode):
        if block.rewritten:
            console.print(Text("⟲ the environment rewrote the conversation", style="italic magenta"))
        console.print(_panel(block, episode))
    paid = ", ".join(f"{name} {value:+g}" for name, value in line.rewards.items())
    console.print(Text(f"ended: {line.stop}, reward {line.reward:+g}" + (f" ({paid})" if paid else ""), style="bold"))
    if line.failure:
        console.print(Text(visible(line.failure), style="red"))
    measured = ", ".join(f"{name} {value:g}" for name, value in line.metrics.items())
    console.print(Text(f"{measured}{', ' if measured else ''}{line.seconds:.2f} s", style="dim"))


def _panel(block: Block, episode: StoredEpisode) -> RenderableType:
    style = _STYLES.get(block.role, "dim")
    parts: list[RenderableType] = []
    if block.thinking:
        parts.append(Text(visible(block.thinking), style="italic dim"))
    if block.text:
        parts.append(Text(visible(block.text)))
    for call in block.calls:
        parts.append(Text(visible(f"{call.name or '?'} {call.arguments}"), style="cyan"))
        if call.problem:
            parts.append(Text(visible(call.problem), style="red"))
    if block.cut:
        parts.append(Text("cut off by the turn's limit of tokens", style="yellow"))
    title = block.role
    if block.turn is not None:
        title = f"{block.role}, turn {block.turn + 1}"
        facts = describe_turn(episode.trajectory.turns[block.turn], episode.turns[block.turn])
        parts.append(Text(" · ".join(facts), style="yellow"))
    return Panel(Group(*parts), title=title, title_align="left", border_style=style)


def describe_turn(turn: Turn, record: TurnRecord) -> list[str]:
    """`["exact_match +1", "advantage +0.72", "12 tokens at -0.31", "gap 2e-07", "weights of step 8"]`."""
    return [
        *(f"{name} {value:+g}" for name, value in turn.rewards.items()),
        *_advantages(record.advantages),
        *([f"{len(turn.action_ids)} tokens, mean logprob {_mean(turn.logprobs):.2f}"] if turn.action_ids else []),
        *_gap(turn, record.learner_logprobs),
        *([f"weights of step {' and '.join(str(version) for _, version in turn.versions)}"] if turn.action_ids else []),
    ]


def _advantages(advantages: Known | None) -> Iterator[str]:
    """One number where a turn's tokens share it, else its ends."""
    known = [one for one in advantages or () if one is not None]
    if known:
        low, high = min(known), max(known)
        yield f"advantage {low:+.3g}" if low == high else f"advantage {low:+.3g} to {high:+.3g}"


def _gap(turn: Turn, learner: Known | None) -> Iterator[str]:
    """The largest difference between the sampler's logprob of a token and the learner's."""
    gaps = [abs(own - sampled) for own, sampled in zip(learner or (), turn.logprobs, strict=False) if own is not None]
    if gaps:
        yield f"sampler gap {max(gaps):.1e}"


def _mean(values: tuple[float, ...]) -> float:
    return math.fsum(values) / len(values)
