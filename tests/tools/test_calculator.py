"""The calculator computes arithmetic, and nothing else."""

import asyncio
import json
import time

import pytest

from turnwise.tools import calculator


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("-2 ** 2", "-4"),
        ("2 ** -1", "0.5"),
        ("0.1 + 0.2", "0.3"),
        ("6 / 2", "3"),
        ("7 // 2 + 7 % 4", "6"),
        ("sqrt(16) + abs(-3) + max(1, 2) - min(1, 2)", "8"),
        ("round(2.567, 2)", "2.57"),
        (" 2 ** 64 ", "18446744073709551616"),
    ],
)
def test_arithmetic(expression, answer):
    assert calculator(expression) == answer


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("2 ^ 3", "powers are written **"),
        ("9 ** 9 ** 9", "too large"),
        ("(2 ** 4000) * (2 ** 4000)", "too large"),
        ("1e308 * 10", "the result is inf"),
        ("(-8) ** 0.5", "not a real number"),
        ("__import__('os')", "is not arithmetic this tool knows"),
        ("True + 1", "is not arithmetic this tool knows"),
        ("x + 1", "'x' is not arithmetic this tool knows"),
        ("1j * 1j", "is not arithmetic this tool knows"),
        ("'a' * 10", "is not arithmetic this tool knows"),
        ("1 +", "is not an arithmetic expression; write e.g. (3 + 4) * 2"),
        ("", "is not an arithmetic expression"),
        ("(" * 300, "is not an arithmetic expression"),
        ("1" * 1000, "at most 400 are read"),
        ("\x00", "is not an arithmetic expression"),
    ],
)
def test_anything_else_is_refused_in_words_and_at_once(expression, words):
    start = time.perf_counter()
    result = asyncio.run(calculator.call(json.dumps({"expression": expression})))
    assert time.perf_counter() - start < 2
    assert not result.ok
    assert words in result.content
