"""The lock of a directory, which a crawl holds from start to end: one file, with the process that holds it."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.errors import InUseError, UnusableError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_NAME = "lock"


@contextmanager
def lock_directory(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Keep every other process out of *directory*, which is created if missing.

    Raises:
        InUseError: Another process has locked it, or this one has.
        UnusableError: The directory cannot be created or written.

    """
    path = Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
        fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        reason = "it is a file" if path.is_file() else error.strerror
        advice = "Check its path, its owner, its permissions and the space on its disk."
        raise UnusableError(f"The directory {path}", f"cannot be used: {reason}", advice=advice) from error
    try:
        if not _try_lock(fd):
            user = owner(path) or "a process"
            advice = "Two processes cannot share a job directory. Stop the other one, or use another directory."
            if user == _this_process():
                user = f"this process ({os.getpid()}) already"
                advice = "Close the filter or the crawl that uses it first, with its close() or a `with` block."
            raise InUseError(f"The directory {path}", f"is in use by {user}", advice=advice)
        with suppress(OSError):  # on a full disk, the note stays empty
            os.ftruncate(fd, 0)
            os.write(fd, f"{_this_process()}\n".encode())
        yield
    finally:
        os.close(fd)


def _this_process() -> str:
    return f"process {os.getpid()} on {platform.node()}"


def owner(directory: Path) -> str:
    """Return the last process that locked *directory*, in words, or "" if it did not leave a note."""
    path = directory / LOCK_NAME
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else ""


def is_locked(directory: Path) -> bool:
    """Return whether a process has locked *directory*. Tries the lock for a moment, and changes nothing."""
    try:
        fd = os.open(directory / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _try_lock(fd)
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        if sys.platform == "win32":
            os.lseek(fd, 1 << 30, os.SEEK_SET)  # far behind the text, which a locked range would hide
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
            os.lseek(fd, 0, os.SEEK_SET)
        else:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
