"""One line for each mistake in a recipe: what, where, and what would be right."""

import json
import re
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from turnwise.settings.base import Settings, all_keys, sections_at
from turnwise.settings.data import KeyPath, leaves
from turnwise.spelling import count_slips, nearest


def explain(
    cls: type[Settings],
    data: Mapping[str, object],
    origins: Mapping[KeyPath, str],
    source: str,
    errors: Sequence[ErrorDetails],
) -> str:
    """One line for the mistake that explains most: an unknown key first, since a typo also leaves its key missing."""
    by_path: dict[KeyPath, list[ErrorDetails]] = {}
    for error in sorted(errors, key=lambda error: error["type"] != "extra_forbidden"):
        by_path.setdefault(_key_path(error, data), []).append(error)
    path, here = next(iter(by_path.items()))
    key, origin, kind = ".".join(path), _origin(path, origins, source), here[0]["type"]
    more = f" (and {len(by_path) - 1} more)" if len(by_path) > 1 else ""
    if kind == "extra_forbidden":
        return f"{key}: unknown key in {origin}; {_suggest(cls, path, here[0]['input'], here[0]['loc'])}{more}"
    if kind == "union_tag_invalid":
        tag, tags = str(here[0]["ctx"]["tag"]), re.findall(r"'(.*?)'", str(here[0]["ctx"]["expected_tags"]))
        return f"{key}.kind: unknown kind '{tag}' in {origin}; {_nearest(tag, tags)}{more}"
    if kind == "missing":
        return f"{key}: required, but missing in {origin}{more}"
    if kind in ("value_error", "assertion_error"):
        message = here[0]["msg"].partition(", ")[2]
        return f"{key}: {message} ({origin}){more}" if key else f"{origin}: {message}{more}"
    expected = " or ".join(dict.fromkeys(_expected(error["msg"]) for error in here))
    return f"{key or 'the recipe'}: expected {expected}, got {show_value(here[0]['input'])} in {origin}{more}"


def _key_path(error: ErrorDetails, data: object) -> KeyPath:
    """The error's place as a user wrote it: pydantic's also names members of unions, which no recipe does."""
    path: list[str] = []
    for part in error["loc"]:
        if isinstance(data, dict) and part in data:
            data = data[part]
        elif isinstance(data, list) and part in range(len(data)):
            data = data[int(part)]
        elif error["type"] != "missing" or part is not error["loc"][-1]:
            continue
        path.append(str(part))
    return tuple(path)


def _origin(path: KeyPath, origins: Mapping[KeyPath, str], source: str) -> str:
    """The file that gives the value at `path`, or a part of it; the whole recipe if none does."""
    writers = [origin for known, origin in origins.items() if known[: len(path)] == path[: len(known)]]
    return writers[-1] if path and writers else source


def _suggest(cls: type[Settings], path: KeyPath, value: object, loc: Sequence[str | int]) -> str:
    """The known key that was probably meant; `loc` is pydantic's, which also names the kind of a section."""
    familiar = _find_familiar(cls, path, value)
    if familiar:
        return familiar
    models: list[type[BaseModel]] = [cls]
    for part in path[:-1]:
        # A part that no model knows is an index, or a key of a free-form mapping: the models stay those of its values.
        if any(part in model.model_fields for model in models):
            models = [section for model in models for section in sections_at(model, (part,))]
        models = [model for model in models if _kind(model) in loc] or models
    known = sorted({name for model in models for name in model.model_fields})
    elsewhere = [name for name in all_keys(cls) if name.rpartition(".")[2] == path[-1] and name != ".".join(path)]
    return _nearest(path[-1], known, elsewhere)


def _find_familiar(cls: type[Settings], path: KeyPath, value: object) -> str | None:
    """`num_generations is rollout.group_size here`, for a key of another library, however deep it stands there."""
    beneath = [inner for inner, _ in leaves(value)] if isinstance(value, Mapping) else [()]
    for inner in beneath:
        parts = (*path, *inner)
        for first in range(len(parts)):
            ours = cls.familiar_names.get(".".join(parts[first:]))
            if ours:
                return f"{'.'.join(parts)} is {tell_familiar(ours)}"
    return None


def tell_familiar(ours: str) -> str:
    """`steps here: training steps in place of passes over the tasks`, from `steps; training steps in ...`."""
    key, _, difference = ours.partition("; ")
    return f"{key} here{f': {difference}' if difference else ''}"


def _nearest(given: str, known: Sequence[str], elsewhere: Sequence[str] = ()) -> str:
    near = nearest(given, known)
    if elsewhere and (near is None or count_slips(given, near) > 1):
        near = elsewhere[0]
    return f"did you mean '{near}'?" if near else f"known here: {', '.join(known)}"


def _kind(model: type[BaseModel]) -> object:
    return model.model_fields["kind"].default if "kind" in model.model_fields else None


_WORDS = {
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid string": "text",
    "a valid boolean": "true or false",
    "a valid array": "a list",
    "an object": "a mapping",
    "Unable to extract tag using discriminator kind_of()": "a mapping",
}


def _expected(message: str) -> str:
    wanted = message.removeprefix("Input should be ")
    bound = wanted.startswith(("greater", "less", "a multiple"))
    return _WORDS.get(wanted, f"a value {wanted}" if bound else wanted)


def explain_value(key: str, error: ValidationError) -> str:
    """One line for a value that is not what its annotation says: `env.args.size: expected an integer, got "4"`."""
    details = error.errors(include_url=False)
    expected = " or ".join(dict.fromkeys(_expected(detail["msg"]) for detail in details))
    return f"{key}: expected {expected}, got {show_value(details[0]['input'])}"


def one_line(message: str) -> str:
    """A message with what the user wrote in it, escaped where that would break the line."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in message)


def show_value(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
