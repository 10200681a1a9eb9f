"""Mutations by hand: which changes a line gets, and what is left alone."""

import ast

import pytest
from mutations import find_mutations


def changes(source):
    """(kind, the changed lines) of every mutation."""
    return [
        (mutation.kind, [line[1:].strip() for line in mutation.diff(source) if line.startswith("+")])
        for mutation in find_mutations(source)
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = a + b", [("arithmetic", "x = (a - b)")]),
        ("x = (a + b) * c", [("arithmetic", "x = ((a + b) / c)"), ("arithmetic", "x = ((a - b)) * c")]),
        ("x = a < b", [("comparison", "x = (a <= b)")]),
        ("x = a and not b", [("logic", "x = (a or not b)"), ("sign", "x = a and (b)")]),
        ("x = f(1, keep=True)", [("constant", "x = f(2, keep=True)"), ("constant", "x = f(1, keep=False)")]),
        ("x = min(a, b)", [("call", "x = max(a, b)")]),
        ("x = a if b else c", [("condition", "x = (c if b else a)")]),
        ("x += y", [("statement", "pass")]),
        ("f(x)", [("statement", "pass")]),
        ("if ready: x = y", [("condition", "if (not ready): x = y")]),
        ("s = '−'; x = -a", [("sign", "s = '−'; x = (a)")]),  # the minus sign in quotes has three bytes
    ],
)
def test_changes_of_a_line(line, expected):
    assert changes(line) == [(kind, [text]) for kind, text in expected]


@pytest.mark.parametrize(
    "line",
    [
        "x: int | None = y",
        "assert a < b",
        "raise ValueError(a + b)",
        "log.warning(a + b)",
        "logger.warning(a + b)",
        "_logger.warning(a + b)",
        "class A(Settings):\n    x: int = Field(default=3, ge=1)\n    y: bool = True",
        "class A(Settings):\n    x: int = 1\nclass B(A, Other):\n    y: int = Field(default=8, ge=1)",
        "_GRACE = 30.0",
        "x = elapsed > limit",
        "x = limit <= time.monotonic()",
        "if TYPE_CHECKING:\n    import x",
        "x = zip(a, b, strict=True)",
        "x = f'{a + b}'",
        "x = 'a word'",
    ],
)
def test_what_no_test_of_behaviour_should_see_is_left_alone(line):
    assert changes(line) == []


@pytest.mark.parametrize("line", ["grace = 30.0", "WHOLE = True", "HALF = 1 / 2", "def f():\n    LIMIT = 3"])
def test_only_a_number_that_a_module_names_is_a_choice(line):
    assert changes(line)


def test_a_mutation_knows_the_function_it_is_in():
    method = "    @property\n    def f(self):\n        def g():\n            return 2\n        return g\n"
    source = f"x = 1\n\n\nclass A:\n{method}"
    module, inner = find_mutations(source)
    assert (module.function, module.first_line, module.line) == ("", 0, 1)
    assert (inner.function, inner.first_line, inner.line) == ("A.f", 5, 8)
    assert all(ast.parse(mutation.source) for mutation in (module, inner))
