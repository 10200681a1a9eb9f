"""How a model plays ALFWorld's rooms, by kind of goal and by how far an episode comes, from a run's stored episodes.

What it did is read from what the engine answered ("You pick up the mug 1 from the shelf 2."), so none is replayed.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from turnwise.evaluation.intervals import wilson_interval

_TASKS = {
    "clean": re.compile(r"(?:put a clean|clean some) (?P<thing>\w+)"),
    "heat": re.compile(r"(?:put a hot|heat some) (?P<thing>\w+)"),
    "cool": re.compile(r"(?:put a cool|cool some) (?P<thing>\w+)"),
    "two": re.compile(r"(?:put|find) two (?P<thing>\w+)"),
    "light": re.compile(r"(?:look at|examine the) (?P<thing>\w+) (?:under|with)"),
    "put": re.compile(r"put (?:a|some) (?P<thing>\w+)"),
}
"""ALFRED's own sentences; the last one fits others, too, so it comes last."""
_TASK = re.compile(r"Your task is to: (.*?)\.")
_COMMAND = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_REFUSED = ("Unknown command", "No <answer>", "The <answer> is empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One episode: what it was about, the commands, and what was answered to each but the last."""

    goal: str
    thing: str
    won: bool
    commands: tuple[str, ...]
    answers: tuple[str, ...]

    @property
    def seen(self) -> bool:
        """Whether a place showed the thing that the task names."""
        return any(re.search(rf"you see .*\b{self.thing} \d", answer) for answer in self.answers) or self.won

    @property
    def taken(self) -> bool:
        return any(f"You pick up the {self.thing} " in answer for answer in self.answers) or self.won


def measure_rooms(*files: Path) -> dict[str, object]:
    """The figures of a run's `trajectories/*.parquet` files, evaluations or training steps."""
    episodes = [_read(row) for file in files for row in pq.read_table(file).to_pylist()]
    commands = sum(len(one.commands) for one in episodes)
    refused = sum(answer.startswith(_REFUSED) for one in episodes for answer in one.answers)
    again = sum(count - 1 for one in episodes for count in Counter(one.commands).values())
    won = [one for one in episodes if one.won]
    return {
        **_success(episodes),
        "by_goal": {goal: _success([one for one in episodes if one.goal == goal]) for goal in _kinds(episodes)},
        "saw_the_thing": _share(sum(one.seen for one in episodes), len(episodes)),
        "took_the_thing": _share(sum(one.taken for one in episodes), len(episodes)),
        "commands_in_won_episodes": _share(sum(len(one.commands) for one in won), len(won)),
        "turns_refused": _share(refused, commands),
        "commands_given_before_in_the_episode": _share(again, commands),
    }


def _read(row: dict[str, object]) -> Played:
    turns: list[dict[str, str]] = row["turns"]  # type: ignore[assignment]  # as `turnwise.runs.store` writes it
    goal, thing = _read_task(turns[0]["context_text"])
    answers = [_strip(turn["context_text"]) for turn in turns[1:]]
    return Played(
        goal=goal,
        thing=thing,
        won=dict(row["metrics"]).get("success") == 1.0,  # type: ignore[call-overload]  # pairs of a Parquet map
        commands=tuple(_read_command(turn["action_text"]) for turn in turns),
        answers=(*answers, *filter(None, [_strip(str(row["tail_text"]))])),
    )


def _read_task(opening: str) -> tuple[str, str]:
    """`Your task is to: put a hot mug in shelf.` is `("heat", "mug")`."""
    sentence = _TASK.search(opening)
    assert sentence is not None, "the opening of an ALFWorld room states its task"
    return next((goal, found["thing"]) for goal, form in _TASKS.items() if (found := form.match(sentence[1])))


def _read_command(reply: str) -> str:
    found = _COMMAND.findall(reply)
    return " ".join(found[-1].split()) if found else ""


def _strip(context: str) -> str:
    """The engine's answer in a rendered context, without the chat's markers and the list of commands."""
    said = context.partition("<|im_start|>user\n")[2] or context
    return said.partition("<|im_end|>")[0].partition("\nCommands: ")[0].strip()


def _kinds(episodes: list[Played]) -> list[str]:
    present = {one.goal for one in episodes}
    return [goal for goal in ("put", "clean", "heat", "cool", "two", "light") if goal in present]


def _success(episodes: list[Played]) -> dict[str, object]:
    won = sum(one.won for one in episodes)
    low, high = wilson_interval(won, len(episodes))
    return {
        "episodes": len(episodes),
        "success": round(won / len(episodes), 4),
        "success_low": round(low, 4),
        "success_high": round(high, 4),
    }


def _share(part: int, whole: int) -> float:
    return round(part / whole, 3) if whole else 0.0
