"""Puts a mutation into functions that are already imported, so that a child need not import anything.

Invariant: a child that is patched computes what one that imports the mutated file would, as far as bodies of functions
go; `patch` refuses all else (module level, defaults of arguments). Survivors of patching are tried again by importing.
"""

import gc
import importlib
import types
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mutations import Mutation
from trial import PACKAGE, Tree


class Imported:
    """The package as this process has imported it from a tree: its functions by file and first line."""

    def __init__(self, tree: Tree, paths: Sequence[str]) -> None:
        """Imports the files at these paths of the repository, whether or not a test has."""
        for path in paths:
            importlib.import_module(
                ".".join(Path(path).relative_to("src").with_suffix("").parts).removesuffix(".__init__")
            )
        root = f"{tree.source.parent}/"
        self._functions: Mapping[tuple[str, int], list[types.FunctionType]] = defaultdict(list)
        for one in gc.get_objects():
            # By type: a dead weak proxy among the objects raises when it is asked for its class.
            if type(one) is types.FunctionType and one.__code__.co_filename.startswith(f"{root}{PACKAGE}/"):
                place = (one.__code__.co_filename.removeprefix(root), one.__code__.co_firstlineno)
                self._functions[place].append(one)

    def patch(self, path: str, mutation: Mutation) -> bool:
        """Gives the mutated function its new body; False if that is not all that the mutation changes."""
        functions = self._functions.get((path, mutation.first_line), [])
        if not functions:
            return False
        whole = compile(mutation.source, functions[0].__code__.co_filename, "exec")
        for new in _codes(whole):
            if (new.co_firstlineno, new.co_qualname) == (mutation.first_line, mutation.function):
                break
        else:
            return False
        if any(
            _same(function.__code__, new) or function.__code__.co_freevars != new.co_freevars for function in functions
        ):
            return False
        for function in functions:
            function.__code__ = new
        return True


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _same(one: types.CodeType, other: types.CodeType) -> bool:
    """Whether two codes do the same, wherever their lines are."""
    if (one.co_code, one.co_names, len(one.co_consts)) != (other.co_code, other.co_names, len(other.co_consts)):
        return False
    return all(
        _same(a, b) if isinstance(a, types.CodeType) and isinstance(b, types.CodeType) else repr(a) == repr(b)
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )
