"""`calculator`: arithmetic over Python's own syntax tree; nothing but numbers and operators is ever evaluated."""

import ast
import math
import operator
from collections.abc import Callable

from turnwise.tools.tool import tool

_MAX_CHARS = 400
_MAX_BITS = 4096

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "abs": abs,
    "max": max,
    "min": min,
    "round": round,
    "sqrt": math.sqrt,
}


@tool(quick=True)
def calculator(expression: str) -> str:
    """Computes an arithmetic expression, such as `(3 + 4) * 2 ** 5 / sqrt(16)`.

    Args:
        expression: Numbers, + - * / // % **, parentheses, and abs, max, min, round, sqrt.
    """
    if len(expression) > _MAX_CHARS:
        raise ValueError(f"the expression has {len(expression)} characters; at most {_MAX_CHARS} are read")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError(f"'{expression}' is not an arithmetic expression; write e.g. (3 + 4) * 2") from None
    value = _evaluate(tree.body)
    if isinstance(value, int):
        return str(value)
    return format(value, ".12g")


def _evaluate(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _bounded(_power(_evaluate(left), _evaluate(right)))
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _BINARY:
            return _bounded(_BINARY[type(operation)](_evaluate(left), _evaluate(right)))
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_evaluate(operand))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*map(_evaluate, arguments)))
        case _:
            hint = "; powers are written **" if "^" in (words := ast.unparse(node)) else ""
            raise ValueError(f"'{words}' is not arithmetic this tool knows{hint}")


def _power(base: float, exponent: float) -> float:
    # An integer power is computed exactly, so its size must be known before it is tried.
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _MAX_BITS:
        raise ValueError(f"{base} ** {exponent} is too large")
    if base < 0 and not float(exponent).is_integer():
        raise ValueError(f"{base} ** {exponent} is not a real number")
    power: float = base**exponent
    return power


def _bounded(value: float) -> float:
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise ValueError("the result is too large")
    elif not math.isfinite(value):
        raise ValueError(f"the result is {value}")
    return value
