"""The entries of a file of questions, each with its place: JSON lines, one JSON list, Parquet, here or on the hub.

Invariant: nothing is fetched unless an address of the hub is given, and whatever cannot be read is an error of one line
that names the file and the line.
"""

import fnmatch
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from turnwise.envs.qa.formats import Aliases
from turnwise.errors import EnvError
from turnwise.recipes import packaged_divisions

HUB = "hf://datasets/"
SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet")
_ALIAS_FILE = "id_aliases.json"


def read_entries(source: str | Path) -> Iterator[tuple[str, object, Aliases]]:
    """Every entry of a file, or of the files at an address, with its place and the aliases that lie beside its file."""
    for file in _fetch(str(source)) if str(source).startswith(HUB) else [Path(source)]:
        aliases = _read_aliases(file.parent / _ALIAS_FILE)
        for where, entry in _read_file(file):
            yield where, entry, aliases


def _read_file(path: Path) -> Iterator[tuple[str, object]]:
    if not path.name.endswith(SUFFIXES):
        raise EnvError(f"{path}: a file of questions ends in one of {', '.join(SUFFIXES)}")
    if path.suffix == ".parquet":
        yield from _read_parquet(path)
        return
    opened = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opened(path, "rt", encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if number == 1 and line.lstrip().startswith("["):
                    yield from _read_list(path, line + lines.read())
                    return
                if line.strip():
                    yield f"{path}:{number}", _parse(f"{path}:{number}", line)
    except FileNotFoundError:
        raise EnvError(f"{path}: there is no such file of questions; {_find_help(path)}") from None
    except UnicodeDecodeError:
        raise EnvError(f"{path}:{number + 1}: not UTF-8 text from here on; save the questions as UTF-8") from None
    except (OSError, EOFError) as error:
        raise EnvError(f"{path}:{number + 1}: the questions cannot be read from here on: {error}") from None


def _read_list(path: Path, text: str) -> Iterator[tuple[str, object]]:
    """One JSON list, as HotpotQA and 2WikiMultihopQA are published: its places are counted, since it has no lines."""
    entries = _parse(str(path), text)
    assert isinstance(entries, list), "it begins with a bracket"
    yield from ((f"{path}:entry {number}", entry) for number, entry in enumerate(entries, 1))


def _parse(where: str, text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EnvError(f"{where}: not JSON: {error}") from None


def _read_parquet(path: Path) -> Iterator[tuple[str, object]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = (row for batch in pq.ParquetFile(path).iter_batches() for row in batch.to_pylist())
        yield from ((f"{path}:row {number}", row) for number, row in enumerate(rows, 1))
    except FileNotFoundError:
        raise EnvError(f"{path}: there is no such file of questions; {_find_help(path)}") from None
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise EnvError(f"{path}: not a Parquet file that can be read: {' '.join(str(error).split())}") from None


def _find_help(path: Path) -> str:
    """What to do about a file that is not there: those of a packaged division are written by a command."""
    folder, name = path.parent.parent, path.parent.name
    if name in packaged_divisions():
        return (
            f"write it with: turnwise questions {folder / 'multihop'} {folder} --divide {name} (that folder has "
            "corpus, train and dev of your own: docs/results.md says what is in them)"
        )
    return "name one that is there, in the environment's questions"


def _read_aliases(path: Path) -> Aliases:
    """2WikiMultihopQA's names of answers by id, a line each, where the file lies beside the questions."""
    aliases: dict[str, Sequence[str]] = {}
    if path.is_file():
        for where, entry in _read_file(path):
            if not isinstance(entry, Mapping) or "Q_id" not in entry:
                raise EnvError(f'{where}: not aliases of 2WikiMultihopQA, such as {{"Q_id": "Q42", "aliases": [...]}}')
            names = (entry.get(key) for key in ("aliases", "demonyms"))
            aliases[str(entry["Q_id"])] = [str(name) for group in names if isinstance(group, list) for name in group]
    return aliases


def _fetch(address: str) -> list[Path]:
    """The files behind `hf://datasets/OWNER/NAME[@REVISION]/PATH`, whose path may have `*` in it."""
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HTTPError  # type: ignore[attr-defined] # httpx's, or httpx2's

    parts = address.removeprefix(HUB).split("/", 2)
    if len(parts) < 3 or not all(parts):
        raise EnvError(f"{address}: write {HUB}OWNER/NAME/PATH, with the path of a file in that data set")
    name, _, revision = parts[1].partition("@")
    repository = f"{parts[0]}/{name}"
    try:
        files = [parts[2]]
        if "*" in parts[2]:
            listed = HfApi().list_repo_files(repository, repo_type="dataset", revision=revision or None)
            files = sorted(fnmatch.filter(listed, parts[2]))
        found = [
            Path(hf_hub_download(repository, file, repo_type="dataset", revision=revision or None)) for file in files
        ]
    except (HTTPError, EntryNotFoundError, OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EnvError(f"{address}: the hub does not give it ({reason}); download it and name the file") from error
    if not found:
        raise EnvError(f"{address}: no file of that data set is called so")
    return found
