"""The sections of the benchmark's page: one per device, and one per device for a real run there.

Invariant: a section is filled together with a file of results of its own, and all others are left unchanged.
"""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.report import Publication, Report, fill
from turnwise.errors import RunError

PAGE = "speed"
MEASUREMENTS = {
    "Sampling": "sampling",
    "Episodes of several turns": "turns",
    "Update": "update",
    "Growth with turns": "growth",
}
"""The headings of a new section and the results beneath each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section(Publication):
    """One section and its files; it is made where the page has none of its name yet."""

    section: str
    """Its name in the page's markers and of its file of results: `h200`."""
    heading: str
    """Of a new one, which has these `parts` by their headings, after its origin and its setting."""
    parts: tuple[tuple[str, str], ...] = tuple(MEASUREMENTS.items())

    @property
    def results(self) -> Path:
        return self.root / "benchmarks" / "results" / f"{self.name}-{self.section}.json"

    def picture(self, name: str) -> Path:
        return self.root / "docs" / "img" / f"{self.name}-{self.section}-{name}.png"

    def read_page(self) -> str:
        page = Publication.read_page(self)  # a dataclass with slots is not the class that super() knows
        if f"<!-- section: {self.section} -->" in page:
            self._split(page)
            return page
        return page + self._make()

    def fill(self, page: str, report: Report) -> str:
        before, section, after = self._split(page)
        return before + fill(section, report.parts, report.results, source=str(self.page)) + after

    def _make(self) -> str:
        """An empty one, with a place for every result."""
        lines = [f"<!-- section: {self.section} -->", f"## {self.heading}", ""]
        for heading, part in [("", "origin"), ("", "setting"), *self.parts]:
            lines += [f"### {heading}", ""] if heading else []
            lines += [f"<!-- results: {part} -->", "<!-- end -->", ""]
        lines[-1] = f"<!-- end of section: {self.section} -->"
        return "\n" + "\n".join(lines) + "\n"

    def _split(self, page: str) -> tuple[str, str, str]:
        """What is before, within and after this section."""
        start, end = (f"<!-- {mark}: {self.section} -->" for mark in ("section", "end of section"))
        if page.count(start) != 1 or page.count(end) != 1 or page.index(start) > page.index(end):
            raise RunError(f"{self.page}: the section '{self.section}' needs {start} and {end}, each once")
        first, last = page.index(start) + len(start), page.index(end)
        return page[:first], page[first:last], page[last:]
