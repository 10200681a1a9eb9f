"""Pages are filled and nothing else of them changes; what does not fit together is one line."""

import importlib.util
import json
import math
from pathlib import Path

import pytest

from benchmarks.harness.report import Picture, Publication, Report, fill, flat_json
from turnwise.errors import RunError
from turnwise.runs import Panel, Series

PAGE = """# Credit

Prose before.
<!-- results: learning -->
an old table
of two lines
<!-- end -->
GRPO reaches <!-- result: grpo/success -->0.11<!-- end --> and gains <!-- result: grpo/gain +.1f -->?<!-- end -->.

<!-- results: moments --><!-- end -->
Prose \\1 after.
"""
PARTS = {"learning": "| a \\g<0> |\n| --- |", "moments": "none"}
RESULTS = {"grpo/success": 0.52, "grpo/gain": 0.25}
FILLED = """# Credit

Prose before.
<!-- results: learning -->
| a \\g<0> |
| --- |
<!-- end -->
GRPO reaches <!-- result: grpo/success -->0.52<!-- end --> and gains <!-- result: grpo/gain +.1f -->+0.2<!-- end -->.

<!-- results: moments -->
none
<!-- end -->
Prose \\1 after.
"""


def test_a_page_is_filled():
    assert fill(PAGE, PARTS, RESULTS, source="page.md") == FILLED


def test_filling_twice_changes_nothing_more():
    assert fill(FILLED, PARTS, RESULTS, source="page.md") == FILLED


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("<!-- results: learning -->x<!-- end -->", "0 places for the results 'moments'"),
        (PAGE + "<!-- results: moments -->x<!-- end -->", "2 places for the results 'moments'"),
        (PAGE + "<!-- results: learnin -->x<!-- end -->", "no results 'learnin' (did you mean 'learning'?)"),
        (PAGE + "<!-- result: grpo/sucess -->x<!-- end -->", "no result 'grpo/sucess' (did you mean 'grpo/success'?)"),
        (PAGE.replace("of two lines\n<!-- end -->", ""), "the marker of 'learning' has no end"),
        (PAGE + "<!-- end -->", "4 markers of results and 5 ends"),
        (PAGE + "<!-- results: moments -->", "5 markers of results and 4 ends"),
        (PAGE + "<!-- results: two words -->x<!-- end -->", "5 markers of results and 5 ends, of which 4 pairs"),
    ],
)
def test_a_page_and_a_report_that_do_not_fit(page, said):
    with pytest.raises(RunError) as error:
        fill(page, PARTS, RESULTS, source="page.md")
    assert said in str(error.value)
    assert str(error.value).startswith("page.md: ")
    assert "\n" not in str(error.value)


def test_results_are_flat_floats_and_words():
    text = flat_json({"b/x": 1 / 3, "a": 2.0}, {"machine": "2 cores", "settings/steps": "16"})
    assert json.loads(text) == {"a": 2.0, "b/x": 0.333333, "about/machine": "2 cores", "about/settings/steps": "16"}
    assert list(json.loads(text)) == ["a", "b/x", "about/machine", "about/settings/steps"]


@pytest.mark.parametrize("value", [math.nan, math.inf, 1, True, "0.5", None])
def test_results_refuse_what_is_no_finite_float(value):
    with pytest.raises(AssertionError, match="x is "):
        flat_json({"x": value}, {})


def test_publishing_writes_page_pictures_and_results(tmp_path: Path):
    panel = Panel(
        title="grpo",
        series=[Series(name="grpo", x=[0, 5], y=[0.2, 0.4], band=([0.1, 0.3], [0.3, 0.5]))],
        behind=[Series(name="rloo", x=[0, 5], y=[0.2, 0.3])],
    )
    picture = Picture(name="learning", title="Learning", panels=[panel] * 6, x_label="step", y_label="success")
    report = Report(results=RESULTS, parts=PARTS, pictures=[picture], about={"seeds": "0, 1"})
    publication = Publication(name="credit", root=tmp_path)
    publication.publish(report, page=PAGE)
    assert publication.read_page() == FILLED
    assert json.loads((tmp_path / "benchmarks/results/credit.json").read_text()) == RESULTS | {"about/seeds": "0, 1"}
    drawn = tmp_path / "docs/img/credit-learning.png"
    assert drawn.is_file() == (importlib.util.find_spec("matplotlib") is not None)
    if drawn.is_file():  # five panels across and a second row for the sixth
        width, height = (int.from_bytes(drawn.read_bytes()[start : start + 4], "big") for start in (16, 20))
        assert (width, height) == (160 * 12.6, 160 * 5)


def test_nothing_is_written_when_the_page_does_not_fit(tmp_path: Path):
    publication = Publication(name="credit", root=tmp_path)
    with pytest.raises(RunError, match="0 places for the results 'learning'"):
        publication.publish(Report(results=RESULTS, parts=PARTS), page="# Credit\n")
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_is_not_there(tmp_path: Path):
    with pytest.raises(RunError, match=r"docs/credit\.md: no such page"):
        Publication(name="credit", root=tmp_path).read_page()
