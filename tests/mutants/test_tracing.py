"""What is known of a test once it was traced: the functions and dataclasses it uses, and the time that it takes."""

import json
import subprocess
import sys
from pathlib import Path

SHAPE = """
from dataclasses import dataclass

now = 0.0

@dataclass(frozen=True, slots=True)
class Square:
    side: float = 2.0

def area(side):
    return side * side
"""
TESTS = """
import pytest

import shape
from shape import Square, area

@pytest.fixture(scope="module")
def slow():
    shape.now += 13
    return area(3)

def test_first(slow):
    shape.now += 2
    assert slow == 9

def test_second(slow):
    assert slow == 9

def test_default():
    assert Square().side == 2

def test_fails():
    assert area(2) == 5
"""
TRACE = """
import sys
from pathlib import Path
from types import SimpleNamespace

mutants, folder = sys.argv[1:]
sys.path[:0] = [mutants, f"{folder}/src"]
import pytest
import shape
import tracing

tracing.ROOT = Path(folder)
tracing.time = SimpleNamespace(monotonic=lambda: shape.now)
tracer = tracing.Tracer(Path(folder, "src"))
pytest.main(["-q", "-p", "no:cacheprovider", f"{folder}/test_shape.py"], plugins=[tracer])
tracer.write(Path(folder, "trace.json"))
"""


def test_a_trace_has_the_dataclasses_a_test_makes_and_what_it_waits_for(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/shape.py").write_text(SHAPE)
    (tmp_path / "test_shape.py").write_text(TESTS)
    command = [sys.executable, "-c", TRACE, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert (tmp_path / "trace.json").is_file(), done.stderr
    tests = json.loads((tmp_path / "trace.json").read_text())["tests"]
    found = {name.partition("::test_")[2]: known for name, known in tests.items()}
    assert list(found) == ["first", "second", "default"], "those that pass"
    first, second, default = found.values()
    assert first[:2] == [2.0, 13.0], "though it was the first and so waited for the fixture"
    assert second[:2] == [0.0, 13.0]
    assert default[:2] == [0.0, 0.0]
    assert [one for one in default[2] if one.endswith(":0")] == ["src/shape.py:0"]
    assert not [one for one in second[2] if one.endswith(":0")]
    assert "src/shape.py:10" in second[2], "the fixture's functions are those of all its tests"
