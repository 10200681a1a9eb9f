"""Plain data from YAML and back.

Invariant: YAML is that of version 1.2's core types, a key given twice is an error, and no text makes reading it take
more than its length deserves; what is written reads back to an equal value.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TypeAlias

import yaml

from turnwise.errors import ConfigError
from turnwise.settings.base import Settings

KeyPath: TypeAlias = tuple[str, ...]
RESOLVED = "# Every setting, defaults included, as it was resolved."
"""The first line that `dump_settings` writes: these values were not chosen one by one."""
_MOST_VALUES = 100_000
"""In one recipe; aliases of aliases can make a few lines stand for billions."""
_MOST_DIGITS = 100
"""Of a whole number: Python refuses to show one of thousands in the line that tells of the mistake."""
_MOST_DEPTH = 100
"""Of sections and lists within each other: PyYAML's time grows with its square."""


def load_yaml(text: str, *, source: str) -> object:
    """Plain data from YAML 1.2's core types: `1e-4` is a number, `off` is text, a key given twice is an error."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise ConfigError(f"{place}: not YAML: {' '.join(str(error.problem or error.context).split())}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: PyYAML's scanner, of an escape such as \U00110000
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from None


def find_lines(text: str) -> dict[KeyPath, int]:
    """The line of each key of a recipe that has been read: `{("rollout", "group_size"): 7, ...}`."""
    lines: dict[KeyPath, int] = {}

    def visit(node: yaml.Node | None, path: KeyPath) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            here = (*path, str(key.value))
            lines[here] = key.start_mark.line + 1
            visit(value, here)

    visit(yaml.compose(text, Loader=_Loader), ())
    return lines


def dump_settings(settings: Settings) -> str:
    """YAML that `load_yaml` and `parse_settings` read back to an equal value."""
    data = settings.model_dump(mode="json")
    return f"{RESOLVED}\n{yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)}"


def leaves(data: Mapping[str, object], prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """Every value that is not a section, with its path: `(("rollout", "tasks"), 8)`."""
    for key, value in data.items():
        path = (*prefix, str(key))
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path)
        else:
            yield path, value


def plain_data(data: Mapping[str, object], source: str) -> dict[str, object]:
    """A copy made of JSON's types alone: keys are text, tuples are lists."""
    try:
        copy: dict[str, object] = json.loads(json.dumps(dict(data)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: holds a value that is not plain data ({error})") from None
    return copy


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core schema in place of PyYAML's 1.1, where `1e-4` is text, `off` is false and `010` is 8."""

    _depth = 0
    yaml_implicit_resolvers = {}  # noqa: RUF012 (PyYAML's own way to hold them)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
                raise yaml.MarkedYAMLError(problem=f"key '{key.value}' is given twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return dict(super().construct_mapping(node, deep=deep))

    def get_single_data(self) -> object:
        node = self.get_single_node()
        if node is not None and _count(node, {}) > _MOST_VALUES:
            raise yaml.YAMLError(f"its aliases stand for more than {_MOST_VALUES:,} values: write fewer")
        return None if node is None else self.construct_document(node)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # PyYAML's
            raise yaml.MarkedYAMLError(problem=f"nested more than {_MOST_DEPTH} deep", problem_mark=mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError):
            kind = str(node.tag).rpartition(":")[2]
            raise yaml.MarkedYAMLError(
                problem=f"{str(node.value)[:40]!r} cannot be read as {kind}", problem_mark=node.start_mark
            ) from None

    def construct_number(self, node: yaml.ScalarNode) -> int:
        text = str(self.construct_scalar(node))
        if len(text) > _MOST_DIGITS:
            raise ValueError("a number with more digits than any setting has")
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


def _count(node: yaml.Node, counts: dict[int, int]) -> int:
    """The values under a node, those behind an alias as often as they are named; one that holds itself counts once."""
    if id(node) not in counts:
        counts[id(node)] = 1
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        children = chain.from_iterable(inner) if isinstance(node, yaml.MappingNode) else inner
        counts[id(node)] = 1 + sum(_count(child, counts) for child in children)
    return counts[id(node)]


class _Dumper(yaml.SafeDumper):
    """Quotes text that either YAML 1.1 or 1.2 would take for something else, so that any reader agrees."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # Left to itself, PyYAML writes U+0085 and its kin bare and reads them back as line breaks.
        style = None if text.replace("\n", "").isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_CORE = (
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), "tTfF"),
    ("null", re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    ("int", re.compile(r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+|0o[0-7]+"), "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("merge", re.compile(r"<<"), "<"),
)
for _tag, _pattern, _first in _CORE:
    _whole = re.compile(rf"(?:{_pattern.pattern})\Z")
    for _side in (_Loader, _Dumper):
        _side.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _whole, list(_first))
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_number)
_Dumper.add_representer(str, _Dumper.represent_text)
