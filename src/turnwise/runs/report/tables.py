"""The report's tables: a run in words, its evaluations, and what it dropped, read from its config and metrics.

Invariant: a value that is missing or null in a record is left out of sums and shown as a dash.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

from turnwise.runs.metrics import Record
from turnwise.runs.retention import Thinned

Cell: TypeAlias = str | float
"""Text, which the template escapes unless it is `Markup`, or a number, which is aligned to the right."""

_STOPS: Mapping[str, str] = {
    "time_up": "the environment's own clock ran out",
    "max_turns": "limit rollout.max_turns",
    "context_full": "the conversation filled the context",
    "token_budget": "limit rollout.episode_tokens",
    "timeout": "limit rollout.seconds",
}
"""By stop reason that truncates an episode."""


_OWN = ("weight", "group_size", "max_turns", "turn_tokens", "reward_scale", "opens_after")
"""What an environment of a mixture may have of its own that a report shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table as the template shows it."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int]
    """Columns aligned to the right."""

    @classmethod
    def of(cls, head: Sequence[str], rows: Sequence[Sequence[Cell]], numbers: Iterable[int] | None = None) -> Self:
        """A table of these cells; `numbers` are by default the columns that hold numbers."""
        if numbers is None:
            numbers = {place for row in rows for place, cell in enumerate(row) if isinstance(cell, int | float)}
        shown = [[_show(cell) for cell in row] for row in rows]
        return cls(head=head, rows=shown, numbers=frozenset(numbers))


def describe_run(config: Mapping[str, object]) -> Table:
    """What a run is, in a few rows: `("environment", "frozen_lake, size=3"), ("model", "small"), ...`."""

    def at(path: str) -> object:
        return look_up(config, path)

    rollout = f"{at('rollout.groups_per_step')} tasks × {at('rollout.group_size')} episodes a step"
    limits = f"up to {at('rollout.max_turns')} turns of {at('rollout.turn_tokens')} tokens"
    lines = [
        *_describe_envs(config),
        ("model", _with_arguments(at("model.name"), at("model.small") if at("model.name") == "small" else None)),
        ("cold start", _describe_cold_start(at("sft"))),
        ("episodes", f"{rollout}, {limits}" if at("rollout.groups_per_step") is not None else ""),
        ("credit", str(at("credit.estimator") or "")),
        ("learning rate", str(at("learner.optimizer.lr") or "")),
        ("stability", str(at("stability.mode") or "")),
        ("seed", "" if at("seed") is None else str(at("seed"))),
    ]
    return Table.of((), [(label, words) for label, words in lines if words])


def _describe_envs(config: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The environment, or a row for each of a mixture with what it has of its own."""
    mixture = look_up(config, "env.mixture")
    if not isinstance(mixture, Mapping):
        yield "environment", _with_arguments(look_up(config, "env.name"), look_up(config, "env.args"))
        return
    for name, entry in mixture.items():
        given = entry if isinstance(entry, Mapping) else {}
        own = {key: value for key, value in given.items() if key in _OWN and value not in (None, {})}
        arguments = given.get("args")
        yield f"environment {name}", _with_arguments(given.get("name"), {**(arguments or {}), **own})
    yield "sampling", str(look_up(config, "env.sampling") or "")


def list_evaluations(records: Sequence[Record]) -> Table:
    """All evaluations: overall, and success for each part of `evaluate.group_by`."""
    found = [record for record in records if isinstance(record.get("evaluate/success"), int | float)]
    names = dict.fromkeys(name for record in found for name in record)
    further = [name for name in names if name.startswith("evaluate/pass@") or _is_part(name)]
    head = ["", "step", "success", "95% interval", "reward", "turns", "episodes", "failed"]
    head += [name.removeprefix("evaluate/").removesuffix("/success") for name in further]
    rows: list[Sequence[Cell]] = []
    for record in found:
        low, high = (number_of(record, f"evaluate/success_{side}") for side in ("low", "high"))
        rows.append(
            (
                "untrained" if record["stage"] == "untrained" else "held out",
                f"{number_of(record, 'step'):.0f}",
                f"{number_of(record, 'evaluate/success'):.3f}",
                f"{low:.3f} – {high:.3f}" if math.isfinite(low + high) else "–",
                *(number_of(record, f"evaluate/{name}") for name in ("reward", "turns", "episodes", "failed")),
                *(number_of(record, name) for name in further),
            )
        )
    return Table.of(head, rows, numbers=range(1, len(head)))


def list_dropped(records: Sequence[Record], thinned: Thinned | None = None) -> Table:
    """What training dropped, or trained on though it was truncated: what, how many, of how many, and why."""
    head = ("", "number", "of", "why")
    train = [record for record in records if record["stage"] == "train"]
    if not train:
        return Table.of(head, [])
    episodes, failed = _sum(train, "rollout/episodes"), _sum(train, "rollout/failed")
    groups = _sum(train, "filter/kept") + _sum(train, "filter/dropped")
    turns = math.fsum(number_of(record, "rollout/turns", 0.0) * _played(record) for record in train)
    cut = math.fsum(
        number_of(record, "rollout/turns_cut", 0.0) * number_of(record, "rollout/turns", 0.0) * _played(record)
        for record in train
    )
    lines: list[Sequence[Cell]] = [
        ("episodes failed", failed, episodes, "environment or tools failed: never scored, never trained on"),
        ("episodes empty", _sum(train, "batch/empty_trajectories"), episodes, "ended before the first turn"),
        *_cut_off(train, episodes),
        ("turns cut", round(cut), round(turns), "limit rollout.turn_tokens; their episodes went on"),
        ("groups filtered", _sum(train, "filter/dropped"), groups, "dropped by stability.filter"),
        (
            "groups with equal rewards",
            _sum(train, "filter/zero_variance"),
            groups,
            "all rewards in the group are equal",
        ),
        (
            "refills",
            _sum(train, "filter/refills"),
            len(train),
            "the filter left too few groups, so more were sampled",
        ),
        ("steps idle", _sum(train, "policy/steps_idle"), _steps(train), "no gradient: all advantages are zero"),
        ("steps skipped", _sum(train, "policy/steps_skipped"), _steps(train), "the gradient was not finite"),
        *_forgotten(thinned, episodes),
    ]
    nothing = [("nothing", "", "", "every episode was complete and trained on")]
    return Table.of(head, [line for line in lines if line[1]] or nothing)


def _forgotten(thinned: Thinned | None, episodes: float) -> Iterator[Sequence[Cell]]:
    if thinned is not None:
        limit = "trained on, and thinned out of trajectories/ since: limit trajectories.max_gigabytes"
        yield "stored episodes dropped", thinned.dropped, episodes, limit
        yield "stored episodes without numbers per token", thinned.without_numbers, episodes, limit


def _cut_off(train: Sequence[Record], episodes: float) -> Iterator[Sequence[Cell]]:
    names = dict.fromkeys(name for record in train for name in record if name.startswith("rollout/stop_"))
    for name in names:
        reason = name.removeprefix("rollout/stop_")
        if reason != "done":
            number = math.fsum(number_of(record, name, 0.0) * _played(record) for record in train)
            words = f"{_STOPS.get(reason, 'a limit')}; trained on as truncated"
            yield f"episodes cut off, {reason.replace('_', ' ')}", round(number), episodes, words


def _played(record: Record) -> float:
    return number_of(record, "rollout/episodes", 0.0) - number_of(record, "rollout/failed", 0.0)


def _steps(train: Sequence[Record]) -> float:
    return math.fsum(_sum(train, f"policy/steps_{outcome}") for outcome in ("taken", "idle", "skipped"))


def _sum(records: Iterable[Record], name: str) -> float:
    return math.fsum(number_of(record, name, 0.0) for record in records)


def number_of(record: Mapping[str, object], name: str, missing: float = math.nan) -> float:
    """A number of a record; `missing` where there is none, or null."""
    value = record.get(name)
    return float(value) if isinstance(value, int | float) else missing


def look_up(config: Mapping[str, object], path: str) -> object:
    """`look_up(config, "rollout.groups_per_step")`; None where a config has no such key."""
    found: object = config
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _describe_cold_start(settings: object) -> str:
    if not isinstance(settings, Mapping):
        return ""
    chats = settings.get("chats")
    return f"chats of {chats}" if chats else f"{settings.get('demonstrations')} demonstrations"


def _with_arguments(name: object, arguments: object) -> str:
    given = arguments.items() if isinstance(arguments, Mapping) else ()
    pairs = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given if value is not None]
    return ", ".join([str(name or ""), *pairs])


def _is_part(name: str) -> bool:
    return name.startswith("evaluate/") and name.endswith("/success") and "=" in name


def _show(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    return show_whole(cell) if not math.isfinite(cell) or cell == round(cell) else f"{cell:,.3f}"


def show_whole(value: float) -> str:
    """`12,345`; a dash where there is no number."""
    return f"{value:,.0f}" if math.isfinite(value) else "–"


def show_share(part: float, whole: float) -> str:
    """`41.2%`; a dash if the whole is zero."""
    return f"{part / whole:.1%}" if whole else "–"
