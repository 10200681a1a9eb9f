"""`read_corpus`: passages from JSON lines, Parquet, or a folder of one's own text files.

Invariant: every passage has an id that no other has, a title and a text; what cannot be read is an error that names
the file and the line, so that no passage is lost silently.
"""

import gzip
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from turnwise.errors import ToolError
from turnwise.tools.search.retrieval import Passage, read_contents, title_from

_logger = logging.getLogger(__name__)
_TEXT_FILES = (".txt", ".md")
_WORDS = 100
_HEADING = re.compile(r"(#{1,6})\s+(.+?)\s*#*$")
_PARAGRAPHS = re.compile(r"\n\s*\n")
_COLUMNS = ("id", "_id", "title", "text", "contents")


def read_corpus(path: str | Path) -> list[Passage]:
    """The passages of a `.jsonl`, `.jsonl.gz` or `.parquet` file, or of a folder of `.txt` and `.md` files.

    A passage is `{"id": "p7", "title": "Lumen", "text": "Lumen was founded ..."}`, or has its title as the first line
    of `contents` in place of the two. A missing id becomes the line number, a missing title the first words.
    """
    path = Path(path)
    if path.is_dir():
        passages = list(_read_folder(path))
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        passages = _collect(path, "", _read_lines(path))
    elif path.suffix == ".parquet":
        passages = _collect(path, "row ", _read_rows(path))
    elif not path.exists():
        raise ToolError(f"{path}: there is no such corpus; give a .jsonl, .jsonl.gz or .parquet file, or a folder")
    else:
        raise ToolError(f"{path}: a corpus is a .jsonl, .jsonl.gz or .parquet file, or a folder of .txt and .md files")
    if not passages:
        raise ToolError(f"{path}: this corpus is empty; there is nothing to search")
    return passages


def _read_lines(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    opened = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _read_object(path, number, line)
    except FileNotFoundError:
        raise ToolError(f"{path}: there is no such corpus") from None
    except UnicodeDecodeError:
        raise ToolError(f"{path}:{number + 1}: not UTF-8 text from here on; save the corpus as UTF-8") from None
    except (OSError, EOFError) as error:
        raise ToolError(f"{path}:{number + 1}: the corpus cannot be read from here on: {error}") from None


def _read_object(path: Path, number: int, line: str) -> Mapping[str, object]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ToolError(f"{path}:{number}: not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise ToolError(f"{path}:{number}: a passage is an object such as {{'title': ..., 'text': ...}}, on one line")
    return entry


def _read_rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        present = [name for name in _COLUMNS if name in file.schema_arrow.names]
        if not {"text", "contents"} & set(present):
            found = ", ".join(file.schema_arrow.names)
            raise ToolError(f"{path}: no column 'text' or 'contents'; its columns are: {found}")
        rows = (row for batch in file.iter_batches(columns=present) for row in batch.to_pylist())
        yield from enumerate(rows, 1)
    except FileNotFoundError:
        raise ToolError(f"{path}: there is no such corpus") from None
    except ToolError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise ToolError(f"{path}: not a Parquet file that can be read: {' '.join(str(error).split())}") from None


def _collect(path: Path, unit: str, entries: Iterator[tuple[int, Mapping[str, object]]]) -> list[Passage]:
    passages: list[Passage] = []
    lines: dict[str, int] = {}
    untitled = 0
    for number, entry in entries:
        where = f"{path}:{unit}{number}"
        passage, titled = _read_passage(where, number, entry)
        if passage.id in lines:
            first = lines[passage.id]
            raise ToolError(f"{where}: the id '{passage.id}' is taken by {unit or 'line '}{first}; ids must differ")
        lines[passage.id] = number
        passages.append(passage)
        untitled += not titled
    if untitled:
        message = "%s: %d of %d passages have no title; their first words stand in"
        _logger.warning(message, path, untitled, len(passages))
    return passages


def _read_passage(where: str, number: int, entry: Mapping[str, object]) -> tuple[Passage, bool]:
    """The passage, and whether its title is its own."""
    title, text = entry.get("title"), entry.get("text")
    if text is None and isinstance(contents := entry.get("contents"), str):
        first, text = read_contents(contents)
        title = title or first
    if not isinstance(text, str) or not text.strip():
        raise ToolError(f"{where}: this passage has no text; give it a 'text' that is not empty, or remove the line")
    if title is not None and not isinstance(title, str):
        raise ToolError(f"{where}: the title of this passage is not text but {json.dumps(title)[:40]}")
    name = entry.get("id", entry.get("_id"))
    if name is not None and (isinstance(name, bool) or not isinstance(name, str | int)):
        raise ToolError(f"{where}: the id of this passage is neither text nor a whole number")
    own = (title or "").strip()
    passage = Passage(id=str(number if name is None else name), title=own or title_from(text), text=text.strip())
    return passage, bool(own)


def _read_folder(folder: Path) -> Iterator[Passage]:
    """Passages of some 100 words, with file and number as id: `notes/oslo.md#2`."""
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in _TEXT_FILES
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    if not files:
        raise ToolError(f"{folder}: there is no .txt or .md file in this folder, so there is nothing to search")
    for file in files:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise ToolError(f"{file}: not UTF-8 text; save it as UTF-8, or take it out of the corpus") from None
        except OSError as error:
            raise ToolError(f"{file}: cannot be read: {error.strerror}") from None
        name = file.relative_to(folder).as_posix()
        title = file.stem.replace("_", " ").replace("-", " ")
        split = _split_markdown(title, text) if file.suffix.lower() == ".md" else [(title, text)]
        parts = ((heading, part) for heading, section in split for part in _join(section))
        for number, (heading, part) in enumerate(parts, 1):
            yield Passage(id=f"{name}#{number}", title=heading, text=part)


def _split_markdown(title: str, text: str) -> Iterator[tuple[str, str]]:
    """Each section under its title: that of the page, and the heading's where it is not the page's own."""
    page = heading = title
    lines: list[str] = []
    code = False
    for line in text.splitlines():
        code ^= line.lstrip().startswith("```")
        found = None if code else _HEADING.match(line)
        if found is None:
            lines.append(line)
            continue
        yield heading, "\n".join(lines)
        page = found[2] if found[1] == "#" else page
        heading = found[2] if found[1] == "#" else f"{page}: {found[2]}"
        lines = []
    yield heading, "\n".join(lines)


def _join(text: str) -> Iterator[str]:
    """Paragraphs joined while they stay within 100 words, and longer ones cut, at the end of a sentence if they can."""
    joined = ""
    for piece in (piece for paragraph in _PARAGRAPHS.split(text) for piece in _cut(paragraph)):
        if joined and len(joined.split()) + len(piece.split()) > _WORDS:
            yield joined
            joined = ""
        joined = f"{joined}\n{piece}" if joined else piece
    if joined:
        yield joined


def _cut(paragraph: str) -> Iterator[str]:
    words = paragraph.split()
    while len(words) > _WORDS:
        ends = [i for i in range(_WORDS // 2, _WORDS + 1) if words[i - 1].endswith((".", "!", "?"))]
        size = ends[-1] if ends else _WORDS
        yield " ".join(words[:size])
        words = words[size:]
    if words:
        yield " ".join(words)
