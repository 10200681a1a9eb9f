"""A cache of converted GGUF files: the same weights as a folder of safetensors, named by a digest of the file.

Invariant: a folder under its name is complete, and was made from exactly that file in exactly that dtype. A cache that
cannot be written costs a warning, never the run. Reading a GGUF takes most of a minute, a folder a second or two.
"""

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

_FORMAT = "1"
"""Raised when the same file would be converted to something else."""


def converted_folder(file: Path, dtype: str) -> Path:
    """Where a file's conversion is kept: `~/.cache/turnwise/models/tiny-float32-6c1b...`, or in $TURNWISE_CACHE."""
    chosen = os.environ.get("TURNWISE_CACHE")
    root = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnwise"
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, lambda: hashlib.blake2b(_FORMAT.encode(), digest_size=16))
    return root / "models" / f"{file.stem}-{dtype}-{digest.hexdigest()}"


def is_converted(folder: Path) -> bool:
    """Whether the conversion exists; it gets its name last, when it is complete."""
    return (folder / "config.json").is_file()


def keep_conversion(folder: Path, write: Callable[[Path], None]) -> None:
    """Writes a conversion under a temporary name, then renames it, unless another process was first."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
        try:
            write(temporary)
            if not folder.exists():
                temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        logger.warning("the converted model is not kept (%s): set TURNWISE_CACHE to a folder with room for it", error)
