"""The documentation site: its navigation has every page not left out by name, and nothing comes from elsewhere."""

from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages_of(navigation: object) -> Iterator[str]:
    """The files that a navigation names, from the first to the last."""
    if isinstance(navigation, str):
        yield navigation
    elif isinstance(navigation, dict):
        for inside in navigation.values():
            yield from pages_of(inside)
    elif isinstance(navigation, list):
        for inside in navigation:
            yield from pages_of(inside)


def test_every_page_is_in_the_navigation_once_or_left_out_by_name():
    """A page of results that is not finished is left out: others link to it."""
    written = sorted(page.name for page in (ROOT / "docs").glob("*.md"))
    left_out = SITE["not_in_nav"].split()
    assert sorted([*pages_of(SITE["nav"]), *left_out]) == written
    texts = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}
    assert [name for name in left_out if not any(f"({name})" in texts[other] for other in texts if other != name)] == []


def test_the_build_is_strict_and_the_site_asks_nothing_from_elsewhere():
    assert SITE["strict"] is True
    assert SITE["theme"]["font"] is False
    assert "extra_javascript" not in SITE
