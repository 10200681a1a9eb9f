"""What a benchmark publishes: a page whose results are filled in, pictures, and one flat JSON file.

Invariant: prose is written by hand and numbers by the command. A page and a report that do not name the same results
are an error, so no stale number is left; everything is checked before anything is written.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from turnwise.errors import RunError
from turnwise.runs import Panel, draw_panels
from turnwise.runs.files import write_text
from turnwise.spelling import suggest

_BLOCK = re.compile(r"<!-- results: (?P<name>[\w/-]+) -->(?P<old>.*?)<!-- end -->", re.DOTALL)
_INLINE = re.compile(r"<!-- result: (?P<name>\S+)(?: (?P<format>[+.\w%]+))? -->(?P<old>.*?)<!-- end -->", re.DOTALL)
_OPENING, _END = re.compile(r"<!-- results?:"), "<!-- end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture by the name that the page links: `docs/img/BENCHMARK-NAME.png`."""

    name: str
    title: str
    panels: Sequence[Panel]
    x_label: str
    y_label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a benchmark publishes."""

    results: Mapping[str, float]
    """Flat and finite: `{"frozen_lake/grpo/success": .52, "frozen_lake/grpo/success/low": .44}`."""
    parts: Mapping[str, str]
    """Markdown for every place of the page, by the name in its marker."""
    pictures: Sequence[Picture] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    """Where the results come from: machine, versions, seeds, settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The files of one benchmark beneath a root: the project's own folder, or that of a quick run."""

    name: str
    root: Path

    @property
    def page(self) -> Path:
        return self.root / "docs" / f"{self.name}.md"

    @property
    def results(self) -> Path:
        return self.root / "benchmarks" / "results" / f"{self.name}.json"

    def picture(self, name: str) -> Path:
        return self.root / "docs" / "img" / f"{self.name}-{name}.png"

    def read_page(self) -> str:
        """The page as it is."""
        if not self.page.is_file():
            raise RunError(f"{self.page}: no such page to put results into; run this in the folder that has docs/")
        return self.page.read_text(encoding="utf-8")

    def fill(self, page: str, report: Report) -> str:
        """The page filled with the report's results."""
        return fill(page, report.parts, report.results, source=str(self.page))

    def publish(self, report: Report, *, page: str) -> None:
        """Writes the filled page, the pictures and the results file."""
        filled = self.fill(page, report)
        results = flat_json(report.results, report.about)
        for file in (self.page, self.results, self.picture("any")):
            file.parent.mkdir(parents=True, exist_ok=True)
        for picture in report.pictures:
            draw_panels(
                self.picture(picture.name),
                picture.panels,
                title=picture.title,
                x_label=picture.x_label,
                y_label=picture.y_label,
            )
        write_text(self.results, results)
        write_text(self.page, filled)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPage(Publication):
    """One whose page starts as the template where there is none yet."""

    template: str
    """Empty for a page that must exist."""
    results_name: str
    """Of the results file, which need not be the page's."""

    @property
    def results(self) -> Path:
        return self.root / "benchmarks" / "results" / f"{self.results_name}.json"

    def read_page(self) -> str:
        if self.template and not self.page.is_file():
            return self.template
        return Publication.read_page(self)  # a dataclass with slots is not the class that super() knows


def fill(page: str, parts: Mapping[str, str], results: Mapping[str, float], *, source: str) -> str:
    """Puts Markdown between `<!-- results: NAME -->` and `<!-- end -->`, each on a line of its own, and single numbers
    between `<!-- result: NAME .2f -->` and `<!-- end -->` within a sentence; the rest of the page stays as it is."""
    blocks, inlines = list(_BLOCK.finditer(page)), list(_INLINE.finditer(page))
    _check_markers(page, [*blocks, *inlines], source)
    places = [match["name"] for match in blocks]
    for name in places:
        if name not in parts:
            raise RunError(f"{source}: there are no results '{name}'{suggest(name, parts)}; remove the marker")
    for name in parts:
        if places.count(name) != 1:
            raise RunError(
                f"{source}: {places.count(name)} places for the results '{name}': write <!-- results: {name} --> and "
                "<!-- end --> once, where they belong"
            )
    for match in inlines:
        if match["name"] not in results:
            hint = suggest(match["name"], results)
            raise RunError(f"{source}: there is no result '{match['name']}'{hint}; correct or remove the marker")
    page = _BLOCK.sub(lambda match: f"<!-- results: {match['name']} -->\n{parts[match['name']]}\n{_END}", page)
    return _INLINE.sub(lambda match: _inline(match, results), page)


def flat_json(results: Mapping[str, float], about: Mapping[str, str]) -> str:
    """One JSON object of floats, sorted by name, and of words beneath `about/`; the same results, the same bytes."""
    for name, value in results.items():
        assert isinstance(value, float), f"{name} is a {type(value).__name__}"
        assert math.isfinite(value), f"{name} is {value}, which JSON cannot hold"
    flat: dict[str, float | str] = {name: float(f"{results[name]:.6g}") for name in sorted(results)}
    flat |= {f"about/{name}": words for name, words in about.items()}
    return json.dumps(flat, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _check_markers(page: str, found: Sequence[re.Match[str]], source: str) -> None:
    """A marker without an end would swallow the prose up to the next one's."""
    for match in found:
        if _OPENING.search(match["old"]):
            raise RunError(f"{source}: the marker of '{match['name']}' has no end: write <!-- end --> after it")
    opened, ended = len(_OPENING.findall(page)), page.count(_END)
    if opened != len(found) or ended != len(found):
        raise RunError(
            f"{source}: {opened} markers of results and {ended} ends, of which {len(found)} pairs can be read: write "
            "<!-- results: NAME --> ... <!-- end -->"
        )


def _inline(match: re.Match[str], results: Mapping[str, float]) -> str:
    wish = match["format"]
    value = format(results[match["name"]], wish or ".2f")
    return f"<!-- result: {match['name']}{f' {wish}' if wish else ''} -->{value}{_END}"
