"""Names of a package that are imported when they are first used, so that its settings can be read without the rest."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """A package's `__getattr__`: `lazy_names(__name__, {"base": ["Agent"]})` takes `Agent` from `package.base`."""
    modules = {name: f"{package}.{module}" for module, names in homes.items() for name in names}

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value: object = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
