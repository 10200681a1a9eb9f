"""One trajectory for the page: the conversation, the tools it had, its boards, and every token with its numbers.

Invariant: a number sent is the stored one, at full precision; text is sent as text and never as markup.
"""

import json
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from turnwise.errors import RunError
from turnwise.runs.conversation import Block, read_conversation
from turnwise.runs.episodes import StoredEpisode, TurnRecord, first_difference, read_episode
from turnwise.runs.report.samples import Pieces, read_pieces
from turnwise.studio.boards import Mark, read_legend, split_boards
from turnwise.studio.library import Run
from turnwise.types import Json, Turn

_TOOLS_TAG: Final = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_SIGNATURE: Final = re.compile(r"^(?:[-*] )?([A-Za-z_]\w*)\(([^)\n]*)\): .+$", re.MULTILINE)
_NAME: Final = re.compile(r"([a-z_]+)-([0-9]+)/[0-9]+/[0-9]+")


class Tokenizers:
    """The tokenizer of a run's newest checkpoint, read once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[int, Pieces | None]] = {}

    def pieces_of(self, run: Run) -> Pieces | None:
        """None where the run has no checkpoint with a tokenizer yet."""
        path = run.directory.path
        files = sorted(run.directory.checkpoints.glob("step-*/model/tokenizer.json"))
        with self._lock:
            try:
                size = run.confined(files[-1]).stat().st_size if files else 0
            except OSError:  # a run that trains removes its older checkpoints
                size = 0
            # All checkpoints of a run have one tokenizer: by its size, it is not read again with every new one.
            if size and self._known.get(path, (0, None))[0] != size:
                self._known[path] = (size, read_pieces(files[-1]))
            return self._known.get(path, (0, None))[1]


def find_episode(run: Run, name: str) -> StoredEpisode:
    """The episode of a name, from a file within the run."""
    match = _NAME.fullmatch(name)
    if match is not None:
        run.confined(run.directory.trajectory_file(match[1], int(match[2])))
    try:
        return read_episode(run.directory, name)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{name} cannot be read: {' '.join(str(error).split())[:200]}") from None


def show_episode(episode: StoredEpisode, pieces: Pieces | None) -> dict[str, Json]:
    """All that the page shows of a trajectory."""
    line, trajectory = episode.line, episode.trajectory
    blocks = read_conversation(episode)
    rules = "\n".join(block.text for block in blocks if block.role in ("system", "context"))
    legend = read_legend(rules)
    return {
        "name": line.name,
        "stage": line.stage,
        "step": line.step,
        "group": line.group,
        "member": line.member,
        "task": {"id": line.task_id, "seed": trajectory.task.seed, "data": dict(trajectory.task.data)},
        "episode_seed": str(trajectory.episode_seed),
        "reward": None if line.failed else line.reward,
        "rewards": dict(line.rewards),
        "metrics": dict(line.metrics),
        "stop": line.stop,
        "failure": line.failure,
        "seconds": line.seconds,
        "blocks": [_block(block, legend) for block in blocks],
        "tools": dict(read_tools(rules)),
        "legend": {mark: {"meaning": one.meaning, "kind": one.kind} for mark, one in legend.items()},
        "turns": [_turn(turn, record, pieces) for turn, record in zip(trajectory.turns, episode.turns, strict=True)],
        "tail": _read(trajectory.tail_ids, pieces),
        "pieces": pieces is not None,
    }


def _block(block: Block, legend: Mapping[str, Mark]) -> Json:
    calls: list[Json] = [
        {"name": call.name, "arguments": call.arguments, "problem": call.problem} for call in block.calls
    ]
    return {
        "role": block.role,
        "parts": split_boards(block.text, legend) if block.text else [],
        "thinking": block.thinking,
        "calls": calls,
        "turn": block.turn,
        "rewards": dict(block.rewards),
        "cut": block.cut,
        "rewritten": block.rewritten,
    }


def _turn(turn: Turn, record: TurnRecord, pieces: Pieces | None) -> Json:
    unknown: list[float | None] = [None] * len(turn.action_ids)
    action: list[Json] = [
        [token, text, logprob, advantage, learner, entropy]
        for (token, text), logprob, advantage, learner, entropy in zip(
            _texts(turn.action_ids, pieces),
            turn.logprobs,
            record.advantages or unknown,
            record.learner_logprobs or unknown,
            record.entropies or unknown,
            strict=True,
        )
    ]
    return {
        "context": _read(turn.context_ids, pieces),
        "action": action,
        "rewards": dict(turn.rewards),
        "version": turn.version,
        "opens_row": turn.opens_row,
        "finish": turn.finish.value,
        "state_key": turn.state_key,
        "seconds": turn.seconds,
        "env_seconds": turn.env_seconds,
    }


def _read(ids: Sequence[int], pieces: Pieces | None) -> list[Json]:
    return [[token, text] for token, text in _texts(ids, pieces)]


def _texts(ids: Sequence[int], pieces: Pieces | None) -> list[tuple[int, str]]:
    """Each token with its text; with its id in brackets where there is no tokenizer."""
    texts = [f"⟨{token}⟩" for token in ids] if pieces is None else pieces(ids)
    return list(zip(ids, texts, strict=True))


def read_tools(rules: str) -> dict[str, str]:
    """The tools by name, each as the agent read it: JSON in `<tools>` tags, or a line `search(query): Searches ...`."""
    found: dict[str, str] = {}
    for inside in _TOOLS_TAG.findall(rules):
        for line in filter(None, (line.strip() for line in inside.splitlines())):
            try:
                spec = json.loads(line)
                function = spec.get("function", spec)
                found[str(function["name"])] = json.dumps(function, ensure_ascii=False, indent=2)
            except (ValueError, KeyError, AttributeError, TypeError):
                continue
    for match in _SIGNATURE.finditer(rules):
        found.setdefault(match[1], match[0])
    return found


def compare_episodes(run: Run, names: Sequence[str], pieces: Pieces | None) -> dict[str, Json]:
    """Several trajectories side by side, and where each parts from the first."""
    if not 1 <= len(names) <= 16:
        raise RunError("compare: name between 1 and 16 trajectories")
    episodes = [find_episode(run, name) for name in names]
    return {
        "trajectories": [show_episode(episode, pieces) for episode in episodes],
        "differs": [show_difference(episodes[0], episode) for episode in episodes],
    }


def show_difference(one: StoredEpisode, other: StoredEpisode) -> dict[str, Json] | None:
    """`{"turn": 1, "part": "sampled", "place": 7}`; None where one begins with the other."""
    differs = first_difference(one, other)
    return None if differs is None else {"turn": differs.turn, "part": differs.part, "place": differs.place}
