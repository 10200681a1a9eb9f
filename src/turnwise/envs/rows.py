"""The rows of a table in a file or a dataset, by number: read once into an index, and then one at a time.

Invariant: a row is a mapping of JSON's types; what cannot be read is one line that names the file and the row.
"""

import csv
import gzip
import io
import json
from array import array
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.errors import EnvError
from turnwise.types import Json

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


class Rows:
    """`rows[3]` is the fourth row; `rows.where(3)` is its place in the file, for an error message."""

    def __init__(self, name: str, count: int, read: Callable[[int], object], where: Callable[[int], str]) -> None:
        self.name = name
        self.where = where
        self._count, self._read = count, read

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> Mapping[str, Json]:
        if not 0 <= place < self._count:
            raise IndexError(place)
        row = self._read(place)
        if not isinstance(row, Mapping):
            raise EnvError(f"{self.where(place)}: a row is a mapping of columns, not {type(row).__name__}")
        return {str(column): self._plain(value, place, str(column)) for column, value in row.items()}

    def _plain(self, value: object, place: int, column: str) -> Json:
        """JSON's types for what Arrow has more of; bytes, such as of images, have no such form."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Mapping):
            return {str(key): self._plain(inner, place, column) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._plain(inner, place, column) for inner in value]
        if isinstance(value, date | datetime | time):
            return value.isoformat()
        if isinstance(value, Decimal):
            return float(value)
        raise EnvError(
            f"{self.where(place)}: the column '{column}' holds {type(value).__name__}, which no task can hold"
        )


def open_rows(source: str, split: str) -> Rows:
    """The rows of a file, of a folder that `datasets` saved, or of a dataset on the hub, there of this split."""
    path = Path(source)
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix in SUFFIXES:
        if not path.is_file():
            near = sorted(one.name for one in path.parent.glob("*")) if path.parent.is_dir() else []
            raise EnvError(f"{source}: there is no such file; the folder has: {', '.join(near[:8]) or 'nothing'}")
        return _OPEN[suffix](path)
    if not path.is_dir() and "/" not in source:
        raise EnvError(
            f"{source}: neither a file that ends in one of {', '.join(SUFFIXES)}, nor a folder of a dataset, nor an id "
            "on the hub (owner/name)"
        )
    return _open_dataset(source, split)


def _open_jsonl(path: Path) -> Rows:
    """Where each line begins; lines are parsed when they are asked for."""
    text = _read_bytes(path) if path.suffix == ".gz" else None
    starts, numbers = array("Q"), array("Q")
    with _open(path, text) as lines:
        place = 0
        for number, line in enumerate(lines, 1):
            if line.strip():
                starts.append(place)
                numbers.append(number)
            place += len(line)

    def where(row: int) -> str:
        return f"{path}:{numbers[row]}"

    def read(row: int) -> object:
        with _open(path, text) as lines:
            lines.seek(starts[row])
            return _parse(lines.readline(), where(row))

    return Rows(str(path), len(starts), read, where)


def _open(path: Path, text: bytes | None) -> io.BufferedIOBase:
    """The file, or its text where it had to be unpacked."""
    try:
        return io.BytesIO(text) if text is not None else path.open("rb")
    except OSError as error:
        raise EnvError(f"{path}: cannot be read: {error.strerror}") from None


def _open_json(path: Path) -> Rows:
    """One list of rows; a file that is lines after all is read as lines."""
    raw = _read_bytes(path)
    if not raw.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        return _open_jsonl(path)
    listed = _parse(raw, str(path))
    assert isinstance(listed, list), "it begins with a bracket"
    return Rows(str(path), len(listed), listed.__getitem__, lambda row: f"{path}:entry {row + 1}")


def _open_csv(path: Path) -> Rows:
    """Every value is text: `007` stays what it is. The first row names the columns."""
    delimiter = "\t" if ".tsv" in path.suffixes else ","
    try:
        text = _read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise EnvError(f"{path}: not UTF-8 text at byte {error.start}: save it as UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        # A row in quotes may have several lines, and is named by its last.
        listed = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise EnvError(f"{path}:{reader.line_num}: not CSV: {error}") from None
    header, rows = listed[0][1] if listed else [], listed[1:]
    if len(set(header)) < len(header):
        raise EnvError(f"{path}:1: two columns have the same name: {', '.join(header)}")
    for line, cells in rows:
        if len(cells) != len(header):
            raise EnvError(f"{path}:{line}: {len(cells)} values, but {len(header)} columns: {', '.join(header)}")
    return Rows(
        str(path),
        len(rows),
        lambda row: dict(zip(header, rows[row][1], strict=True)),
        lambda row: f"{path}:{rows[row][0]}",
    )


def _open_parquet(path: Path) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, memory_map=True)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise EnvError(f"{path}: not a Parquet file that can be read: {' '.join(str(error).split())}") from None
    return Rows(str(path), table.num_rows, lambda row: _row_of(table, row), lambda row: f"{path}:row {row + 1}")


def _row_of(table: "pa.Table", row: int) -> object:
    return table.slice(row, 1).to_pylist()[0]


def _open_dataset(source: str, split: str) -> Rows:
    """A folder that `Dataset.save_to_disk` wrote, or `owner/name[/config][:split]` on the hub."""
    try:
        import datasets
    except ImportError:
        raise EnvError(f"{source}: a dataset needs the package datasets: pip install 'turnwise[datasets]'") from None
    name, _, named = source.partition(":")
    split = named or split
    try:
        if Path(name).is_dir():
            loaded = datasets.load_from_disk(name)
        else:
            owner, title, *config = name.split("/", 2)
            loaded = datasets.load_dataset(f"{owner}/{title}", *config)
    except Exception as error:  # noqa: BLE001 (the library raises whatever its backends do)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EnvError(f"{source}: the dataset cannot be loaded: {reason}") from None
    if isinstance(loaded, datasets.DatasetDict):
        if split not in loaded:
            raise EnvError(f"{source}: it has no split '{split}'; its splits are: {', '.join(loaded)}")
        loaded = loaded[split]
    return Rows(source, len(loaded), loaded.__getitem__, lambda row: f"{source}:row {row + 1}")


def _read_bytes(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError) as error:
        raise EnvError(f"{path}: cannot be read: {error}") from None


def _parse(raw: bytes, where: str) -> object:
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise EnvError(f"{where}: not UTF-8 text: save it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise EnvError(f"{where}: not JSON: {error}") from None


_OPEN: Mapping[str, Callable[[Path], Rows]] = {
    ".jsonl": _open_jsonl,
    ".json": _open_json,
    ".csv": _open_csv,
    ".tsv": _open_csv,
    ".parquet": _open_parquet,
}
