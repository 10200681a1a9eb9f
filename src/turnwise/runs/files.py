"""Atomic file writes: a temporary sibling is written, synced and renamed over its target.

Invariant: whenever a process is killed or a machine loses power, every file has its old content or its new one.
"""

import errno
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from turnwise.errors import RunError

_OF_THE_DISK = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
    *(errno.ESTALE, errno.ENAMETOOLONG, errno.EMFILE, errno.ENFILE),
)


def describe_disk_error(error: BaseException) -> str:
    """`No space left on device`, if that is why something could not be written or read; empty for all other errors.

    Libraries written in other languages raise errors of their own, with the system's number in the text.
    """
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno in _OF_THE_DISK else ""
    if found := re.search(r"\(os error (\d+)\)", str(error)):
        return os.strerror(int(found[1])) if int(found[1]) in _OF_THE_DISK else ""
    return "a file could not be written in full" if "PytorchStreamWriter failed writing" in str(error) else ""


@contextmanager
def one_line_disk_error(folder: Path) -> Iterator[None]:
    """A disk that is full, read-only or broken ends a run in one line: what it saved before is whole."""
    try:
        yield
    except Exception as error:
        if not (reason := describe_disk_error(error)):
            raise
        line = f"{folder}: cannot go on writing this run: {reason}; what was saved is whole: mend it, then --resume"
        raise RunError(line) from error


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write to; on exit it atomically replaces `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Removes temporary files that killed processes left in a folder and its subfolders."""
    for temporary in folder.rglob(".*.tmp"):
        if temporary.is_file():
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Writes indented JSON atomically; NaN and infinity become null."""
    write_text(path, json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, object]:
    """Reads what `write_json` wrote."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path}: no such file; is this the folder of a run that finished?") from None
    except ValueError as error:
        raise RunError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RunError(f"{path}: expected a JSON object")
    return value


def finite(value: object) -> object:
    """The same value with NaN and infinity replaced by None."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def sync(path: Path) -> None:
    """Flushes a file's content, or a folder's entries, to the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder
    handle = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
