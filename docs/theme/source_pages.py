"""A hook of MkDocs: files that the documentation links to outside docs/ become pages of the site, as text.

Invariant: a page reads the same in the repository and on the site; a link to a file that does not exist stays as it
is, so that the strict build reports it.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

FOLDER = "source"
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".toml": "toml"}
OUTSIDE = re.compile(r"\]\((?P<up>(?:\.\./)+)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for every file and folder of the repository that some page links to."""
    root = Path(config.docs_dir).parent
    for path in sorted(set(_linked(files, root))):
        text = _as_page(root / path, path)
        files.append(File.generated(config, f"{FOLDER}/{path}.md", content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links that leave docs/ to the pages made by `on_files`."""
    root = Path(config.docs_dir).parent

    def to_page(link: re.Match[str]) -> str:
        path = _path_of(link, page.file.src_uri, root)
        if path is None:
            return link[0]
        here = posixpath.dirname(page.file.src_uri)
        return f"]({posixpath.relpath(f'{FOLDER}/{path}.md', here or '.')})"

    return OUTSIDE.sub(to_page, markdown)


def _linked(files: Files, root: Path) -> Iterator[str]:
    for file in files.documentation_pages():
        for link in OUTSIDE.finditer(file.content_string):
            path = _path_of(link, file.src_uri, root)
            if path is not None:
                yield path


def _path_of(link: re.Match[str], page: str, root: Path) -> str | None:
    """The link's target from the repository's root; None where it stays in docs/ or does not exist."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link["up"] + link["path"]))
    return path if not path.startswith(("docs/", "..")) and (root / path).exists() else None


def _as_page(file: Path, path: str) -> str:
    hidden = "---\nsearch: {exclude: true}\nhide: [navigation]\n---\n"
    if file.is_dir():
        inside = sorted(child.name for child in file.iterdir() if not child.name.startswith(("_", ".")))
        return f"{hidden}# {path}/\n\n" + "".join(f"- `{name}`\n" for name in inside)
    text = file.read_text(encoding="utf-8")
    fence = "`" * 6
    return f"{hidden}# {path}\n\n{fence}{LANGUAGES.get(file.suffix, 'text')}\n{text}\n{fence}\n"
