"""reasoning-gym in its child process: makes questions from seeds, and scores answers by the dataset's own scorer."""

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Final, Protocol, cast

import reasoning_gym
from reasoning_gym.composite import DatasetSpec
from reasoning_gym.factory import DATASETS

from turnwise.spelling import suggest
from turnwise.types import Json

REUSED: Final = frozenset({"arc_agi", "codeio", "figlet_font", "group_anagrams", "spell_backward", "word_ladder"})
"""Datasets that read much when they are made and nothing of their seed: one object makes the questions of all seeds."""
_EXAMPLES: Final = ("example_answer", "example_correct_answer", "possible_answer")
"""Where datasets with many right answers keep one of them."""


class _Dataset(Protocol):
    seed: int

    def __getitem__(self, place: int) -> dict[str, object]: ...

    def score_answer(self, answer: str | None, entry: dict[str, object]) -> float: ...


class ReasoningGymServer:
    """`ReasoningGymServer(dataset="countdown", options={"min_numbers": 3})`."""

    def __init__(self, dataset: str, options: Mapping[str, Json]) -> None:
        if dataset not in DATASETS:
            raise LookupError(f"there is no dataset '{dataset}'{suggest(dataset, DATASETS)}")
        self._name = dataset
        defaults = {field.name: _default(field) for field in dataclasses.fields(DATASETS[dataset][1])}
        self._declared = {name: _as_declared(value, defaults.get(name)) for name, value in options.items()}
        if dataset == "composite" and isinstance(parts := options.get("datasets"), list):
            self._declared["datasets"] = [DatasetSpec(**part) for part in parts]
        self._shared = self._create(0) if dataset in REUSED else None
        self._question = lru_cache(maxsize=4096)(self._make)
        if self._shared is None:
            self._create(0)  # refuses wrong options now

    def ready(self) -> None:
        """Answers at all: what is wrong with the settings was raised before."""

    def question(self, seed: int) -> dict[str, Json]:
        """`{"question": "...", "answer": "42"}`; no answer where the dataset has none to show."""
        _, entry = self._question(seed)
        answer = entry["answer"]
        if answer is None:
            answer = self._example(entry)
        return {"question": str(entry["question"]), "answer": None if answer is None else str(answer)}

    def score(self, seed: int, answer: str) -> float:
        """What the answer to this seed's question is worth, from 0 to 1."""
        dataset, entry = self._question(seed)
        return float(dataset.score_answer(answer=answer, entry=entry))

    def _make(self, seed: int) -> tuple[_Dataset, dict[str, object]]:
        dataset = self._shared or self._create(seed)
        dataset.seed = seed
        return dataset, dataset[0]

    def _create(self, seed: int) -> _Dataset:
        return cast(_Dataset, reasoning_gym.create_dataset(self._name, seed=seed, size=1, **self._declared))

    def _example(self, entry: Mapping[str, object]) -> str | None:
        metadata = cast(Mapping[str, object], entry["metadata"])
        found = next((metadata[name] for name in _EXAMPLES if metadata.get(name) is not None), None)
        return found if isinstance(found, str | None) else json.dumps(found)


def _default(field: "dataclasses.Field[object]") -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _as_declared(value: object, default: object) -> object:
    """An option as JSON has it, in the type of its default: a tuple for a list, an Enum's member for its value."""
    if isinstance(value, list) and isinstance(default, list | tuple):
        members = [_as_declared(one, default[0]) if default else one for one in value]
        return tuple(members) if isinstance(default, tuple) else members
    if isinstance(default, Enum) and not isinstance(value, Enum):
        return type(default)(value)
    return value
