"""Exact arithmetic over text: the value of an expression of + - * /, and the numbers it uses.

Invariant: nothing is ever evaluated but digits, four operators and parentheses; any other text is no expression.
"""

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

Value: TypeAlias = tuple[int, int]
"""A fraction in lowest terms with a positive denominator: `(7, 2)`."""

MOST_CHARS: Final = 100
_TOKENS: Final = re.compile(r"[0-9]+|[-+*/()]")
_OTHER_SIGNS: Final = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})
_PRECEDENCE: Final = {"+": 1, "-": 1, "*": 2, "/": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """`(3 + 4) * 2`, read: its value is (14, 1), its numbers are 3, 4, 2."""

    text: str
    """As it was written, in one spacing."""
    value: Value | None
    """None where something is divided by zero."""
    numbers: tuple[int, ...]


@lru_cache(maxsize=1024)
def read_expression(text: str) -> Expression | None:
    """Reads an expression; None when the text is not one, or longer than 100 characters."""
    if len(text) > MOST_CHARS:
        return None
    plain = text.translate(_OTHER_SIGNS)
    tokens = _TOKENS.findall(plain)
    if "".join(tokens) != "".join(plain.split()):
        return None
    reader = _Reader(tokens)
    try:
        value = reader.read(0)
    except _NoExpression:
        return None
    if reader.place != len(tokens):
        return None
    written = " ".join(tokens).replace("( ", "(").replace(" )", ")")
    return Expression(text=written, value=value, numbers=tuple(reader.numbers))


def combine(operator: str, left: Value, right: Value) -> Value | None:
    """`combine("+", (1, 2), (1, 3))` is `(5, 6)`; None for a division by zero."""
    (a, b), (c, d) = left, right
    match operator:
        case "+":
            top, bottom = a * d + c * b, b * d
        case "-":
            top, bottom = a * d - c * b, b * d
        case "*":
            top, bottom = a * c, b * d
        case _:
            top, bottom = a * d, b * c
    if bottom == 1:
        return top, 1
    if bottom == 0:
        return None
    shared = math.gcd(top, bottom) if bottom > 0 else -math.gcd(top, bottom)
    return top // shared, bottom // shared


class _NoExpression(Exception):
    """The tokens do not follow each other as they would in an expression."""


class _Reader:
    """Reads tokens by precedence climbing."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self.place = 0
        self.numbers: list[int] = []

    def read(self, least: int) -> Value | None:
        """The value of the operators from here on that bind at least as tightly as `least`."""
        left = self._read_term()
        while (operator := self._next()) and (binding := _PRECEDENCE.get(operator, -1)) >= least:
            self.place += 1
            right = self.read(binding + 1)
            left = None if left is None or right is None else combine(operator, left, right)
        return left

    def _read_term(self) -> Value | None:
        token = self._next()
        self.place += 1
        if token == "(":
            inner = self.read(0)
            if self._next() != ")":
                raise _NoExpression
            self.place += 1
            return inner
        if not token.isdigit():
            raise _NoExpression
        self.numbers.append(int(token))
        return self.numbers[-1], 1

    def _next(self) -> str:
        return self._tokens[self.place] if self.place < len(self._tokens) else ""
