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


class DirectoryLock:
    """The exclusive lock of *directory*, from construction to :meth:`release` or the end of the process.

    Raises:
        InUseError: Another process holds it, or another filter of this one.
        UnusableError: The directory cannot be created or written.

    """

    def __init__(self, directory: Path) -> None:
        self._fd = -1
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        except OSError as error:
            raise UnusableError(
                f"The directory {directory}",
                f"cannot be used: {'it is a file' if directory.is_file() else error.strerror or error}",
                advice="Check its path, its owner, its permissions and the space on its disk.",
            ) from error
        if not _try_lock(self._fd):
            self.release()
            raise InUseError(
                f"The directory {directory}",
                f"is in use by {owner(directory) or 'another process'}",
                advice="Two processes cannot share a job directory. Stop the other one, or use another directory.",
            )
        with suppress(OSError):  # a full disk: nobody can be named then
            os.ftruncate(self._fd, 0)
            os.write(self._fd, f"process {os.getpid()} on {platform.node()}\n".encode())

    def release(self) -> None:
        """Release the lock; twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextmanager
def lock_directory(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Keep crawls out of *directory* while a command works on it. Raises what :class:`DirectoryLock` raises."""
    lock = DirectoryLock(Path(directory))
    try:
        yield
    finally:
        lock.release()


def owner(directory: Path) -> str:
    """Return the last process that locked *directory*, in words, or nothing if it left no note."""
    try:
        return (directory / LOCK_NAME).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def is_locked(directory: Path) -> bool:
    """Return whether a process holds the lock of *directory*. Tries it for a moment, and changes nothing."""
    try:
        fd = os.open(directory / LOCK_NAME, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
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
        else:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    if sys.platform == "win32":
        os.lseek(fd, 0, os.SEEK_SET)
    return True
