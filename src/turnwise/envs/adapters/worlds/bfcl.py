"""BFCL's multi-turn tasks in their child process: its own function documents, its own classes, its own checker.

Invariant: what the model called runs by the benchmark's own `execute_multi_turn_func_call`, which evaluates Python. So
a call reaches it only with a known function, and arguments whose names are identifiers and whose values are literals.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import cast

from bfcl_eval.constants.default_prompts import DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING
from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

from turnwise.types import Json

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


class BfclServer:
    """`BfclServer(categories=["base"])`; an episode is known by a name, under which BFCL keeps its instances."""

    def __init__(self, categories: Sequence[str]) -> None:
        for category in categories:
            if category not in CATEGORIES:
                raise LookupError(f"there is no category '{category}'; there are: {', '.join(CATEGORIES)}")
        self._entries = {entry["id"]: entry for category in categories for entry in _read(f"{category}.json")}
        self._truths = {
            cast(str, one["id"]): cast(list[list[str]], one["ground_truth"])
            for category in categories
            for one in _read(f"{category}.json", "possible_answer")
        }

    def ready(self) -> None:
        """Answers at all: what is wrong with the settings was raised before."""

    def index(self) -> list[dict[str, Json]]:
        """Every task, by its id and the classes whose functions it offers."""
        return [{"id": name, "classes": entry["involved_classes"]} for name, entry in self._entries.items()]

    def describe(self, task: str) -> dict[str, Json]:
        """The user's messages by turn, the functions on offer, and the calls of the ground truth by turn."""
        entry = self._entries[task]
        missed = cast(dict[str, list[str]], entry.get("missed_function", {}))
        documents = self.documents(cast(list[str], entry["involved_classes"]))
        later = {name for names in missed.values() for name in names}
        turns: list[Json] = []
        for number, messages in enumerate(cast(list[list[dict[str, str]]], entry["question"])):
            added = [one for one in documents if one["name"] in missed.get(str(number), ())]
            if added:
                turns.append(DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING.format(functions=json.dumps(added)))
            else:
                turns.append("\n".join(message["content"] for message in messages))
        return {
            "turns": turns,
            "tools": [one for one in documents if one["name"] not in later],
            "all_tools": list(documents),
            "truth": self._truths[task],
        }

    def documents(self, classes: Sequence[str]) -> list[dict[str, Json]]:
        """The functions of these classes, each with a JSON schema of its parameters."""
        return [document for name in classes for document in _documents(name)]

    def execute(self, name: str, task: str, calls: Sequence[tuple[str, Mapping[str, Json]]]) -> list[str]:
        """What the functions return, in BFCL's own words, errors included."""
        entry = self._entries[task]
        results, _ = multi_turn_utils.execute_multi_turn_func_call(
            [write_call(*call) for call in calls],
            entry["initial_config"],
            entry["involved_classes"],
            name,
            task,
            long_context="long_context" in task,
        )
        return list(results)

    def check(self, name: str, task: str, turns: Sequence[Sequence[Sequence[tuple[str, Mapping[str, Json]]]]]) -> int:
        """How many requests of the user BFCL's checker passes before the first that it does not."""
        decoded = [[[write_call(*call) for call in step] for step in turn] for turn in turns]
        passed = range(len(decoded), 0, -1)
        return next((count for count in passed if self._passes(f"{name}_first{count}", task, decoded[:count])), 0)

    def _passes(self, name: str, task: str, decoded: Sequence[Sequence[Sequence[str]]]) -> bool:
        truth = self._truths[task][: len(decoded)]
        verdict = multi_turn_checker(decoded, truth, self._entries[task], task.rsplit("_", 1)[0], name)
        return bool(verdict["valid"])

    def close(self, name: str) -> None:
        """Forgets the instances of an episode, the checker's copies included; BFCL keeps them as globals."""
        for kept in [one for one in vars(multi_turn_utils) if one.startswith(f"{name}_")]:
            delattr(multi_turn_utils, kept)


def write_call(name: str, arguments: Mapping[str, Json]) -> str:
    """`cd(folder='document')`, as BFCL's own decoders write a call; only identifiers and literals."""
    for word in (name, *arguments):
        if not word.isidentifier():
            raise ValueError(f"'{word[:40]}' is no name of a function or of an argument")
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _read(name: str, *folders: str) -> list[dict[str, Json]]:
    file = files("bfcl_eval").joinpath("data", *folders, f"BFCL_v4_multi_turn_{name}")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


@lru_cache(maxsize=32)
def _documents(class_name: str) -> tuple[dict[str, Json], ...]:
    name = MULTI_TURN_FUNC_DOC_FILE_MAPPING[class_name]
    file = files("bfcl_eval").joinpath("data", "multi_turn_func_doc", name)
    listed = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return tuple(
        {
            "name": one["name"],
            "description": re.sub(r"^.*?Tool description: ", "", one["description"]),
            "parameters": _as_json_schema(one["parameters"]),
        }
        for one in listed
    )


def _as_json_schema(schema: Json) -> Json:
    """BFCL's types as JSON Schema has them: `dict` is `object`, `float` is `number`."""
    if isinstance(schema, Mapping):
        plain = {key: _as_json_schema(value) for key, value in schema.items()}
        kind = plain.get("type")
        if isinstance(kind, str):
            plain["type"] = _TYPES.get(kind, kind)
        if kind == "any":
            del plain["type"]
        return plain
    return [_as_json_schema(one) for one in schema] if isinstance(schema, list) else schema
