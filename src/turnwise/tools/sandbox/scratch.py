"""The code's working directory on a disk: measured while the code runs, removed when it is over.

Invariant: nothing in it is followed out of it, however the code nests, links, hides or swaps its files meanwhile. Its
import is part of every call: so it imports next to nothing.
"""

import os
import stat

MAX_FILES = 4096
"""Files and folders that a working directory may hold."""
MAX_DEPTH = 64
"""Folders within folders."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512


class _TooMuchError(Exception):
    """More bytes, files or folders within folders than a working directory may hold."""


def exceeds(workdir: str, max_bytes: int, process: str | None = None) -> bool:
    """Whether the folder holds too much, together with files that are deleted and that `process` keeps open.

    `process` is that process's folder beneath /proc, where there is one. A folder that cannot be looked into counts as
    too much: the code could hide any number of files there.
    """
    free = max_bytes - (_open_but_deleted(process) if process else 0)
    if free < 0:
        return True
    try:
        here = os.open(workdir, _FOLDER)
        try:
            _count(here, 0, MAX_FILES, free)
        finally:
            os.close(here)
    except _TooMuchError:
        return True
    return False


def _count(folder: int, depth: int, files: int, free: int) -> tuple[int, int]:
    """How many files and bytes are left of those allowed, after those of this folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # gone meanwhile
            files, free = files - 1, free - status.st_blocks * _BLOCK
            if files < 0 or free < 0 or depth > MAX_DEPTH:
                raise _TooMuchError
            if stat.S_ISDIR(status.st_mode):
                try:
                    inner = os.open(entry.name, _FOLDER, dir_fd=folder)
                except PermissionError:
                    raise _TooMuchError from None
                except OSError:
                    continue  # gone, or another thing by now: the next look sees it
                try:
                    files, free = _count(inner, depth + 1, files, free)
                finally:
                    os.close(inner)
    return files, free


def remove(workdir: str) -> None:
    """Removes the folder, however deeply it is nested; the code must have ended.

    Folders within folders are first moved up to the top, so that neither the length of a path nor the number of open
    files grows with their depth.
    """
    try:
        os.rmdir(workdir)
        return
    except FileNotFoundError:
        return
    except OSError:
        top = os.open(workdir, _FOLDER)
    moved, aside = 0, os.urandom(8).hex()
    try:
        while names := os.listdir(top):
            for name in names:
                if _unlink(name, top):
                    continue
                os.chmod(name, 0o700, dir_fd=top)
                here = os.open(name, _FOLDER, dir_fd=top)
                for inner in os.listdir(here):
                    if not _unlink(inner, here):
                        os.chmod(inner, 0o700, dir_fd=here)  # moving a folder changes its entry for the parent
                        os.rename(inner, f"{aside}-{moved}", src_dir_fd=here, dst_dir_fd=top)
                        moved += 1
                os.close(here)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(workdir)


def _unlink(name: str, folder: int) -> bool:
    """Removes what is no folder, and folders that are empty."""
    try:
        os.unlink(name, dir_fd=folder)
    except (IsADirectoryError, PermissionError):  # Linux says the one of a folder, macOS the other
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError:
            return False
    return True


def _open_but_deleted(process: str) -> int:
    """Bytes of files without a name that the process keeps open."""
    found = {}
    try:
        names = os.listdir(f"{process}/fd")
    except OSError:
        return 0  # it has ended
    for name in names:
        try:
            status = os.stat(f"{process}/fd/{name}")
        except OSError:
            continue
        if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
            found[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK
    return sum(found.values())
