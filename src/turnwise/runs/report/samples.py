"""Which of a run's episodes its report shows, read from its trajectories.

Before and after: the best, the median and the worst episode of the first evaluation and of the last. Token by token:
the best, the median and the worst of that group of the last training step whose rewards differ most: it teaches most.

Invariant: a file that cannot be read costs its episodes, never the report.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from turnwise.errors import TurnwiseError
from turnwise.runs.directory import RunDirectory
from turnwise.runs.episodes import EpisodeLine, StoredEpisode, list_episodes, read_episodes, trajectory_files

logger = logging.getLogger(__name__)

Pieces: TypeAlias = Callable[[Sequence[int]], list[str]]
"""The text of each token among its neighbours; together they are the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The episodes shown of one evaluation, with what each is: `best`, `median`, `worst`."""

    title: str
    """`before training`, `after step 40`."""
    episodes: Sequence[tuple[str, StoredEpisode]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """All episodes of a report."""

    evaluated: Sequence[Evaluated] = ()
    trained: Sequence[StoredEpisode] = ()
    pieces: Pieces | None = field(default=None, compare=False)
    """None where the run has no tokenizer yet: then there is no token view."""


def read_samples(run: RunDirectory) -> Samples:
    """The episodes that the report of a run shows."""
    untrained, evaluations, steps = (trajectory_files(run, stage=s) for s in ("untrained", "evaluate", "train"))
    held_out = [*untrained[:1], *evaluations]
    shown = [_evaluated(run, path) for path in ([held_out[0], held_out[-1]] if len(held_out) > 1 else held_out)]
    pieces = _load_pieces(run)
    trained = _most_varied(run, steps[-1]) if steps and pieces is not None else ()
    return Samples(evaluated=[one for one in shown if one.episodes], trained=trained, pieces=pieces)


def _evaluated(run: RunDirectory, path: Path) -> Evaluated:
    lines = _list(path)
    chosen = _spread_of(lines)
    stage, step = (lines[0].stage, lines[0].step) if lines else ("evaluate", 0)
    title = "before any training" if stage == "untrained" else f"after step {step}" if step else "before step 1"
    found = {(one.line.group, one.line.member): one for one in _read(run, [line for _, line in chosen])}
    episodes = [(what, found[line.group, line.member]) for what, line in chosen if (line.group, line.member) in found]
    return Evaluated(title=title, episodes=episodes)


def _most_varied(run: RunDirectory, path: Path) -> list[StoredEpisode]:
    groups: dict[int, list[EpisodeLine]] = {}
    for line in _list(path):
        groups.setdefault(line.group, []).append(line)
    varied = max(groups.values(), key=_variance, default=[])
    return _read(run, [line for _, line in _spread_of(varied)])


def _spread_of(lines: Sequence[EpisodeLine]) -> list[tuple[str, EpisodeLine]]:
    """The best, the median and the worst by reward, as far as there are so many; failed ones have no reward."""
    ranked = sorted((line for line in lines if not line.failed), key=lambda line: -line.reward)
    if len(ranked) < 3:
        return list(zip(("best", "worst"), ranked, strict=False))
    return [("best", ranked[0]), ("median", ranked[len(ranked) // 2]), ("worst", ranked[-1])]


def _variance(lines: Sequence[EpisodeLine]) -> float:
    rewards = [line.reward for line in lines if not line.failed]
    mean = math.fsum(rewards) / len(rewards) if rewards else 0.0
    return math.fsum((reward - mean) ** 2 for reward in rewards)


def _list(path: Path) -> list[EpisodeLine]:
    problems: list[str] = []
    lines = list(list_episodes([path], problems))
    for problem in problems:
        logger.warning("not in the report: %s", problem)
    return lines


def _read(run: RunDirectory, lines: Sequence[EpisodeLine]) -> list[StoredEpisode]:
    """The episodes of these lines, all of one file, in the order of the lines."""
    if not lines:
        return []
    places = [(line.group, line.member) for line in lines]
    try:
        found = read_episodes(run, lines[0].stage, lines[0].step, set(places))
    except (TurnwiseError, pa.ArrowException, OSError) as error:
        logger.warning("not in the report: %s", error)
        return []
    return sorted(found, key=lambda one: places.index((one.line.group, one.line.member)))


def _load_pieces(run: RunDirectory) -> Pieces | None:
    """Decodes with the tokenizer of the newest checkpoint."""
    files = sorted(run.checkpoints.glob("step-*/model/tokenizer.json"))
    return read_pieces(files[-1]) if files else None


def read_pieces(file: Path) -> Pieces | None:
    """Decodes with this tokenizer; None, and a warning, where it cannot be read."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 (its Rust code raises bare exceptions)
        logger.warning("no token view: %s cannot be read: %s", file, error)
        return None
    return lambda ids: split_pieces(ids, lambda some: str(tokenizer.decode(list(some), skip_special_tokens=False)))


def split_pieces(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """The text that each token adds; a character of several tokens stands with the one that completes it."""
    pieces: list[str] = []
    start = read = 0
    for end in range(1, len(ids) + 1):
        known, text = decode(ids[start:read]), decode(ids[start:end])
        if (len(text) > len(known) and not text.endswith("�")) or end == len(ids):
            pieces.append(text[len(known) :])
            start, read = read, end
        else:
            pieces.append("")
    return pieces
