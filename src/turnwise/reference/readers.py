"""Which modules read a setting, found in the package's source.

A module reads a field if it names the field's settings and takes an attribute of that name, or takes it through the
section: `config.rollout.group_size`. Estimators and forms of the loss declare what they read.
"""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import BaseModel

from turnwise.config import Config
from turnwise.credit.settings import ESTIMATORS, CreditSettings
from turnwise.losses.settings import FORMS, LossSettings
from turnwise.settings.base import sections_of

_PACKAGE = Path(__file__).parents[1]


def find_readers(cls: type[BaseModel], name: str) -> tuple[str, ...]:
    """The modules that read a field: `find_readers(OptimizerSettings, "lr")` is `("learner/optimizer.py", ...)`."""
    every = (*cls.__mro__, *cls.__subclasses__())
    classes = {one.__name__ for one in every if name in getattr(one, "model_fields", ())}
    chains = {(section, name) for section in _at(cls)}
    found = {
        module
        for module, source in _sources().items()
        if chains & source.chains or (name in source.attributes and classes & source.names)
    }
    if cls is CreditSettings:
        found |= {_file(info.place) for info in ESTIMATORS.values() if name in info.reads}
    if cls is LossSettings:
        found |= {_file(info.place) for info in FORMS.values() if name in info.reads}
    home = _file(cls.__module__)
    checking = {"config.py", *([home] if home.endswith("/settings.py") else [])}  # they look at values, and use none
    # `settings = config.sft`, and later `settings.demonstrations`.
    loosely = {m for m, source in _sources().items() if {name} | _at(cls) <= source.attributes}
    for readers in (found - checking, loosely - checking, found):
        if readers:
            return tuple(sorted(readers))
    # Handed on by a list of the names that a rule takes, where the settings are or where they inherit the field.
    homes = [_file(one.__module__) for one in cls.__mro__ if name in getattr(one, "model_fields", ())]
    return tuple(one for one in homes if name in _sources()[one].names)[:1]


def _file(place: str) -> str:
    """`credit/gae.py` of `turnwise.credit.gae:gae`."""
    return f"{place.partition(':')[0].removeprefix('turnwise.').replace('.', '/')}.py"


@dataclass(frozen=True, slots=True)
class _Source:
    """What a module mentions."""

    names: frozenset[str]
    attributes: frozenset[str]
    chains: frozenset[tuple[str, str]]
    """`("rollout", "group_size")` for `config.rollout.group_size`."""


@cache
def _sources() -> dict[str, _Source]:
    made = {}
    for path in sorted(_PACKAGE.rglob("*.py")):
        if path.parent.name == "reference":
            continue
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        loads = [node for node in nodes if isinstance(node, ast.Attribute)]
        words = {node.id for node in nodes if isinstance(node, ast.Name)}
        words |= {node.name for node in nodes if isinstance(node, ast.ClassDef)}
        words |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        made[path.relative_to(_PACKAGE).as_posix()] = _Source(
            frozenset(words),
            frozenset(node.attr for node in loads),
            frozenset((node.value.attr, node.attr) for node in loads if isinstance(node.value, ast.Attribute)),
        )
    return made


@cache
def _at(cls: type[BaseModel]) -> frozenset[str]:
    """The names of the sections that hold these settings: `{"optimizer"}`."""
    found: set[str] = set()

    def visit(model: type[BaseModel]) -> None:
        for name, field in model.model_fields.items():
            for section in sections_of(field.annotation):
                if section is cls:
                    found.add(name)
                visit(section)

    visit(Config)
    return frozenset(found | ({"config"} if cls is Config else set()))
