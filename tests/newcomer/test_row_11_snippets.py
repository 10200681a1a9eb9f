"""Every code block of the README and the docs works as printed; what is not run is excused by a rule with a reason."""

import shutil
import sys
from pathlib import Path

import pytest

from snippets import EXCUSED, Session, Snippet, snippets_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PLAYED_ELSEWHERE = {"first-hour.md": "tests/newcomer/whole plays it in a fresh environment, without any size appended"}
ALL = {page: snippets_of(page) for page in PAGES}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if ALL[page] and page.name not in PLAYED_ELSEWHERE], ids=lambda page: page.name
)
def test_a_page_works_from_top_to_bottom(page, tmp_path, monkeypatch):
    """In a folder that has the repository's examples, as a checkout has."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    for name in ("stdin", "argv", "path"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # put back afterwards
    session = Session(ALL[page])
    for snippet in ALL[page]:
        try:
            session.run(snippet)
        except BaseException as error:
            error.add_note(f"in {snippet}")
            raise


def test_every_excuse_is_needed():
    commands = [snippet for page in PAGES for snippet in snippets_of(page)]
    used = {snippet.excuse for snippet in commands}
    assert [why for why in EXCUSED.values() if why not in used] == []


def test_blocks_are_found_as_they_are_written(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Words:\n\n    turnwise check bandit   # does it?\n\nOutput:\n\n    not a command\n\n"
        "`notes/a.txt`\n\n    Ada\n    Brandt\n\nA script:\n\n```python\nprint(1)\n```\n\n"
        "In `mine.py`:\n\n```python\nx = 1\n```\n\n    PYTHONPATH=x turnwise recipes\n\n- a list\n\n    of words\n"
    )
    found = [(one.line, one.kind, one.text, one.file) for one in snippets_of(page)]
    assert found == [
        (3, "shell", "turnwise check bandit", ""),
        (11, "file", "Ada\nBrandt\n", "notes/a.txt"),
        (17, "python", "print(1)", ""),
        (23, "file", "x = 1", "mine.py"),
        (26, "shell", "PYTHONPATH=x turnwise recipes", ""),
    ]


def test_a_command_that_is_not_known_is_not_left_out(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Words:\n\n    turnwise recipes\n    activate it\n")
    with pytest.raises(ValueError, match=r"page.md:3: among commands, 'activate it' is none of"):
        snippets_of(page)


@pytest.mark.parametrize(
    "snippet",
    [
        Snippet(page="x.md", line=1, kind="python", text="import turnwise\nturnwise.Espisode"),
        Snippet(page="x.md", line=1, kind="shell", text="turnwise train encyclopedia-grpo loss.clip_hihg=0.28"),
        Snippet(page="x.md", line=1, kind="shell", text="turnwise check examples/nothing.py:Nothing"),
        Snippet(page="x.md", line=1, kind="shell", text="pytest"),
        Snippet(page="x.md", line=1, kind="yaml", text="rolout: {group_size: 8}"),
    ],
)
def test_a_snippet_that_does_not_work_is_found_out(snippet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=r"Espisode|clip_high|exit code 2|teach it|no such section"):
        Session([snippet]).run(snippet)
