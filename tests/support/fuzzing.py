"""Inputs that are nearly right: samples with odd values in odd places, and bytes that were damaged on the way."""

import copy
import os
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

LONG = os.environ.get("TURNWISE_FAULTS") == "long"

_WORDS = "null ~ no 1e5 0x1f 2001-99-99 1:30 .inf NaN = << &a *a !!python/object:os.system @ ` - ? { [ } \\U00110000 é"
TEXT = st.one_of(
    st.text(max_size=12),
    st.sampled_from(_WORDS.split()),
    st.sampled_from(["", " ", "\n", "\x00", "\ud800", "9" * 5000]),
)
NUMBERS = st.one_of(
    st.integers(-2, 3),
    st.integers(),
    st.floats(),
    st.sampled_from([10**30, -(10**400), 1e308, 5e-324, float("nan"), float("inf"), 2**31, 2**63, True, -0.0]),
)
ODD = st.recursive(
    st.one_of(st.none(), NUMBERS, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)


def fuzz(examples: int) -> Callable[..., object]:
    """Settings of a fuzz test: one of 250 examples in the short form, the same ones every time."""
    return settings(
        max_examples=examples if LONG else max(examples // 250, 10),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def nearly(draw: st.DrawFn, samples: list[object]) -> object:
    """One of the samples, changed in one to three places."""
    root = [copy.deepcopy(draw(st.sampled_from(samples)))]
    for _ in range(draw(st.integers(1, 3))):
        here, key = root, 0
        while isinstance(here[key], dict | list) and here[key] and draw(st.integers(0, 4)):
            here = here[key]
            key = draw(st.sampled_from(list(here) if isinstance(here, dict) else range(len(here))))
        match draw(st.integers(0, 3)):
            case 0 if isinstance(here, dict):
                here[draw(TEXT)] = here.pop(key)
            case 1 if here is not root:
                del here[key]
            case 2 if isinstance(here, dict):
                here[draw(TEXT)] = draw(ODD)
            case _:
                here[key] = draw(ODD)
    return root[0]


@st.composite
def damaged(draw: st.DrawFn, samples: list[bytes]) -> bytes:
    """One of the samples with pieces cut out, doubled, overwritten, or flipped."""
    data = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(1, 3))):
        at, length = draw(st.integers(0, max(len(data) - 1, 0))), draw(st.sampled_from([1, 1, 4, 50]))
        match draw(st.integers(0, 4)):
            case 0:
                data = data[:at]
            case 1:
                data = data[:at] + data[at + length :]
            case 2:
                data = data[:at] + data[at : at + length] + data[at:]
            case 3:
                data = data[:at] + draw(st.binary(max_size=8)) + data[at + length :]
            case _ if data:
                data = data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
    return data
