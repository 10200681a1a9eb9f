"""The manifest of a checkpoint: the size and SHA-256 of each of its files, as they were written.

Invariant: a checkpoint that has a manifest is whole exactly when `find_fault` finds none; hidden files do not
count.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from turnwise.runs.files import sync

MANIFEST = "manifest.json"
_THREADS = 4
"""Hashing and waiting for the disk both release Python's lock: the large files of a checkpoint share the time."""


def write_manifest(folder: Path, step: int, known: Mapping[str, str] = MappingProxyType({})) -> None:
    """Flushes all files of a new checkpoint to the disk, and lists them in its manifest.

    Those of which the hash is `known`, by their names, were hashed and flushed by the processes that wrote them.
    """
    names = {file.relative_to(folder).as_posix(): file for file in _files_of(folder)}
    own = [name for name in names if name not in known]
    with ThreadPoolExecutor(_THREADS) as pool:
        hashes = dict(zip(own, pool.map(_flush_and_hash, (names[name] for name in own)), strict=True))
    entries = {
        name: {"bytes": file.stat().st_size, "sha256": known.get(name) or hashes[name]} for name, file in names.items()
    }
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"step": step, "files": entries}, indent=2), encoding="utf-8")
    for path in (manifest, *(path for path in folder.rglob("*") if path.is_dir()), folder):
        sync(path)


def find_fault(folder: Path, step: int) -> str | None:
    """What is wrong with a checkpoint: `model/model.safetensors: content has changed`; None for a whole one.

    The manifest must be there: whether one is due is known to the run's `Checkpoints`.
    """
    try:
        listed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        written_at = listed["step"]
        entries = {str(name): (int(one["bytes"]), str(one["sha256"])) for name, one in listed["files"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return f"{MANIFEST}: missing or unreadable"
    if written_at != step:
        return f"{MANIFEST}: it is of the checkpoint of step {written_at}"
    for name, (size, _) in entries.items():
        file = folder / name
        if not file.is_file():
            return f"{name}: missing"
        if file.stat().st_size != size:
            return f"{name}: {file.stat().st_size:,} bytes, {size:,} were written"
    with ThreadPoolExecutor(_THREADS) as pool:
        hashes = pool.map(_hash_or_none, (folder / name for name in entries))
        for (name, (_, expected)), found in zip(entries.items(), hashes, strict=True):
            if found != expected:
                return f"{name}: content has changed"
    return None


def _files_of(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith(".") and path != folder / MANIFEST:
            yield path


def _flush_and_hash(file: Path) -> str:
    """Hashes what the disk is being given, so the pages are still in memory."""
    with file.open("rb+") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
        os.fsync(handle.fileno())
    return digest


def _hash_or_none(file: Path) -> str | None:
    try:
        with file.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError:  # a bad sector, or removed meanwhile
        return None
