"""The page's own files: complete, without outside requests, and without a way for text to become markup."""

import re
from importlib.resources import files

import pytest

STATIC = files("turnwise.studio") / "static"
FILES = {path.name: path.read_text(encoding="utf-8") for path in STATIC.iterdir()}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}


def test_the_files_are_served(client):
    for name, kind in (("main.js", "javascript"), ("base.css", "text/css"), ("icon.svg", "image/svg+xml")):
        status, headers, body = client.ask(f"/static/{name}")
        assert (status, kind in headers["Content-Type"], body.decode()) == (200, True, FILES[name])
    status, headers, body = client.ask("/")
    assert (status, body.decode()) == (200, FILES["index.html"])


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_fetched_from_elsewhere(name):
    addresses = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", FILES[name]))
    assert addresses <= {"http://www.w3.org"}, "the namespace of SVG, which is a name"


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_import_what_is_there(name):
    for path in re.findall(r'from "\./([^"]+)"', SCRIPTS[name]):
        assert path in FILES
    imported = re.findall(r'import \{([^}]+)\} from "\./([^"]+)"', SCRIPTS[name])
    for names, path in imported:
        for one in names.split(","):
            assert re.search(
                rf"export (?:async )?(?:function|const|let) {one.strip()}\b|export \{{[^}}]*\b{one.strip()}\b",
                FILES[path],
            ), one


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_never_write_markup(name):
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "srcdoc",
        "DOMParser",
    ):
        assert way not in SCRIPTS[name]


def test_the_page_has_no_inline_script_or_style():
    page = FILES["index.html"]
    assert re.findall(r"<script(?![^>]*src=)", page) == []
    assert "<style" not in page
    assert "style=" not in page
    assert not re.search(r"\son\w+=", page)
