"""Indexes built once and kept in a folder, under a digest of all that they were made from.

Invariant: what is under a name is whole, and was made from exactly the passages and settings the name stands for. A
folder that cannot be written, or an index that cannot be read, costs time and a warning, never the run.
"""

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from turnwise.tools.search.retrieval import Passage

_logger = logging.getLogger(__name__)
T = TypeVar("T")

_FORMAT = "1"


def cache_folder(where: str | Path) -> Path | None:
    """`auto`: the user's own cache, or $TURNWISE_CACHE where that is set; `off`: none; else the folder itself."""
    if where == "off":
        return None
    if where != "auto":
        return Path(where)
    if chosen := os.environ.get("TURNWISE_CACHE"):
        return Path(chosen) / "indexes"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnwise" / "indexes"


def digest_index(kind: str, passages: Sequence[Passage], *settings: str) -> str:
    """The name of an index: `bm25-6c1b...`; any change of a passage, of their order or of a setting changes it."""
    digest = hashlib.blake2b("\x1f".join((_FORMAT, *settings)).encode(), digest_size=16)
    for passage in passages:
        fields = (passage.id, passage.title, passage.text)
        digest.update("".join(f"\x1e{len(field)}\x1f{field}" for field in fields).encode("utf-8", "surrogatepass"))
    return f"{kind}-{digest.hexdigest()}"


def load_or_build(
    folder: Path | None,
    name: str,
    *,
    load: Callable[[Path], T],
    build: Callable[[], T],
    save: Callable[[T, Path], None],
) -> T:
    """The index kept under this name, or one that is built now and kept for the next time."""
    if folder is None:
        return build()
    kept = folder / name
    if kept.is_dir():
        try:
            return load(kept)
        except (OSError, ValueError, EOFError) as error:
            _logger.warning("%s: this index cannot be read (%s) and is rebuilt", kept, error)
            shutil.rmtree(kept, ignore_errors=True)
    built = build()
    try:
        _keep(kept, lambda temporary: save(built, temporary))
    except OSError as error:
        _logger.warning("%s: the index cannot be kept here (%s), so the next run builds it again", folder, error)
    return built


def _keep(kept: Path, save: Callable[[Path], None]) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{kept.name}-", dir=kept.parent))
    try:
        save(temporary)
        os.replace(temporary, kept)
    except OSError:
        # Another process may have kept the same index a moment ago: then there is nothing left to do.
        if not kept.is_dir():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
