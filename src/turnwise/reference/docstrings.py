"""A setting's documentation: the text beneath its field, read from the source when it is asked for.

Pydantic can read it when the class is made; then every command would parse every settings class, whatever it does.
"""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


@cache
def field_docs(cls: type[BaseModel]) -> Mapping[str, str]:
    """The text beneath each field that has one, inherited fields included: `field_docs(RolloutSettings)["replay"]`."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            found |= _docs_in(base)
    return found


def _docs_in(cls: type[BaseModel]) -> dict[str, str]:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(body.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
