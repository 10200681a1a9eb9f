"""The house's limits: small files, functions that fit on a screen, rooms that open with what they are for."""

import ast
from collections.abc import Iterator
from pathlib import Path

import turnwise

SOURCE = Path(turnwise.__file__).parent
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FILES = {
    str(path.relative_to(folder.parent)): path.read_text(encoding="utf-8")
    for folder in (SOURCE, BENCHMARKS)
    for path in sorted(folder.rglob("*.py"))
}
KERNELS = "turnwise/engines/local/kernels/"
"""Triton compiles a kernel as one function, however long."""
LINES_OF_A_FILE = 400
LINES_OF_A_FUNCTION = 60
WORDS_OF_A_DUTY = 5


def functions_of(text: str) -> Iterator[tuple[str, int]]:
    """Every function with its number of lines, from `def` to its last."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def test_files_are_small():
    lines = {name: len(text.splitlines()) for name, text in FILES.items()}
    assert {name: count for name, count in lines.items() if count > LINES_OF_A_FILE} == {}


def test_functions_fit_on_a_screen():
    long = {
        f"{name}:{function}": lines
        for name, text in FILES.items()
        if not name.startswith(KERNELS)
        for function, lines in functions_of(text)
        if lines > LINES_OF_A_FUNCTION
    }
    assert long == {}


def test_a_function_is_as_long_as_it_is():
    assert list(functions_of("x = 1\ndef f():\n    y = 2\n\n    return y\n")) == [("f", 4)]


def test_every_room_and_module_opens_with_its_duty():
    openings = {name: ast.get_docstring(ast.parse(text)) or "" for name, text in FILES.items()}
    assert [name for name, opening in openings.items() if len(opening.split()) < WORDS_OF_A_DUTY] == []


def test_make_test_gpu_runs_every_test_that_needs_a_gpu():
    root = Path(__file__).parents[1]
    (line,) = (line for line in (root / "Makefile").read_text().splitlines() if line.startswith("GPU_TESTS := "))
    covered = tuple(line.removeprefix("GPU_TESTS := ").split())
    marked = [
        str(path.relative_to(root))
        for path in sorted((root / "tests").rglob("test_*.py"))
        if "pytest.mark.gpu" in path.read_text(encoding="utf-8") and path.name != Path(__file__).name
    ]
    assert marked
    assert [path for path in marked if not path.startswith(covered)] == []
