"""Small changes to source code, each of which a test should notice: a pure function from source to mutations.

Invariant: the same source gives the same mutations in the same order, and each differs from it in one expression or
statement. Left alone is what no test of behaviour should see: annotations, docstrings and other strings, decorators,
asserts, errors raised, log lines, arguments such as `strict`, `dtype` and `device`; and choices, which a test could
only repeat: defaults and bounds of settings, and numbers that a module gives a name in capitals (`_GRACE = 30.0`).
So is whether a limit on a measured time (`elapsed`, `time.monotonic()`) is within itself: no two readings are equal.
"""

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_UNSEEN_ARGUMENTS = frozenset({"strict", "dtype", "device", "non_blocking", "maxsize"})
_UNSEEN_NODES = (ast.Assert, ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One change: `Mutation(kind="arithmetic", line=12, function="normalise", source="...")`."""

    kind: str
    line: int
    function: str
    """The outermost function or method around it, `Class.method`; empty at module level."""
    first_line: int
    """Of that function, decorators included, as its code object has it."""
    source: str
    """All of the mutated file."""

    def diff(self, original: str) -> list[str]:
        lines = difflib.unified_diff(original.splitlines(), self.source.splitlines(), n=0, lineterm="")
        return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def find_mutations(source: str) -> list[Mutation]:
    """All mutations of a file, in the order of their places."""
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    whole = source.encode()
    module = ast.parse(source)
    found = []
    for node, kind, text, function in _walk(_without_choices(module), None, ""):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        if whole[begin:end].decode() == text:
            continue
        found.append(
            Mutation(
                kind=kind,
                line=node.lineno,
                function=function[0] if function else "",
                first_line=function[1] if function else 0,
                source=(whole[:begin] + text.encode() + whole[end:]).decode(),
            )
        )
    return found


def _walk(node: ast.AST, function: tuple[str, int] | None, scope: str) -> Iterator[tuple]:
    """(node, kind, the text in its place, function around it), in the order of places."""
    if isinstance(node, _UNSEEN_NODES) or _is_log(node) or _is_typing(node):
        return
    if isinstance(node, ast.ClassDef):
        scope = f"{node.name}."
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and function is None:
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        function = (f"{scope}{node.name}", first)
    for kind, text in _changes(node):
        yield node, kind, text, function
    if isinstance(node, ast.If | ast.While) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        # Comparisons, logic and negations have mutations of their own.
        yield node.test, "condition", f"(not {ast.unparse(node.test)})", function
    for name, value in ast.iter_fields(node):
        if name in ("decorator_list", "annotation", "returns", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            unseen = isinstance(child, ast.keyword) and child.arg in _UNSEEN_ARGUMENTS
            if isinstance(child, ast.AST) and not unseen:
                yield from _walk(child, function, scope)


def _without_choices(module: ast.Module) -> ast.Module:
    """The module without the fields of its settings models, subclasses of them included, and its named numbers."""
    models = {"Settings"}
    body: list[ast.stmt] = []
    for part in module.body:
        if isinstance(part, ast.ClassDef) and any(
            isinstance(base, ast.Name) and base.id in models for base in part.bases
        ):
            models.add(part.name)
            methods = [one for one in part.body if not isinstance(one, ast.AnnAssign)]
            part = ast.ClassDef(name=part.name, bases=[], keywords=[], body=methods, decorator_list=[])
        if not _names_a_number(part):
            body.append(part)
    return ast.Module(body=body, type_ignores=[])


def _names_a_number(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return False
    is_number = isinstance(node.value, ast.Constant) and type(node.value.value) in (int, float)
    return is_number and node.targets[0].id.isupper()


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.BinOp(op=op) if type(op) in _SWAPS and not _is_type(node):
            yield "arithmetic", _write(ast.BinOp(node.left, _SWAPS[type(op)](), node.right))
        case ast.Compare(ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()]) if _reads_a_clock(node):
            return
        case ast.Compare(ops=[op]):
            yield "comparison", _write(ast.Compare(node.left, [_SWAPS[type(op)]()], node.comparators))
        case ast.BoolOp(op=op):
            yield "logic", _write(ast.BoolOp(_SWAPS[type(op)](), node.values))
        case ast.UnaryOp(op=ast.USub() | ast.Invert() | ast.Not()) if not isinstance(node.operand, ast.Constant):
            yield "sign", _write(node.operand)
        case ast.Constant(value=bool()):
            yield "constant", str(not node.value)
        case ast.Constant(value=int() | float()):
            yield "constant", repr(node.value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            yield "call", ast.unparse(ast.Call(ast.Name(_CALLS[name]), node.args, node.keywords))
        case ast.IfExp():
            yield "condition", _write(ast.IfExp(node.test, node.orelse, node.body))
        case ast.AugAssign() | ast.Expr(value=ast.Call() | ast.Await()):
            yield "statement", "pass"


def _reads_a_clock(node: ast.Compare) -> bool:
    """`time.monotonic() - began >= limit`, or `elapsed > limit`."""
    names = [getattr(one, "attr", None) or getattr(one, "id", None) for one in ast.walk(node)]
    return "monotonic" in names or "elapsed" in names


def _write(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _is_type(node: ast.BinOp) -> bool:
    """`int | None` outside an annotation, such as an argument of `isinstance`."""
    return isinstance(node.op, ast.BitOr) and any(
        isinstance(side, ast.Constant) and side.value is None for side in (node.left, node.right)
    )


def _is_log(node: ast.AST) -> bool:
    called = node.value if isinstance(node, ast.Expr) else None
    return (
        isinstance(called, ast.Call)
        and isinstance(called.func, ast.Attribute)
        and isinstance(called.func.value, ast.Name)
        and called.func.value.id in ("log", "logger", "_logger")
    )


def _is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
