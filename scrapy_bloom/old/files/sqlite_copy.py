"""Reads an SQLite file of a job as it is at one moment, without touching it: :func:`reading`.

A connection to the file itself would write beside it, keep a crawl from tidying up, or be refused. So a file whose log
is not folded in yet, that of a crawl that runs or was killed, is copied together with its log. Knows no tables.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.old.errors import UnusableError

if TYPE_CHECKING:
    from collections.abc import Iterator

GLANCE_BYTES = 1 << 28
"""What somebody who only looks may copy, 256 MiB: a second, and room in any temporary directory."""

_TRIES = 5
_LOG_HEADER_BYTES = 32


@contextmanager
def reading(path: Path, *, most_bytes: int | None = GLANCE_BYTES) -> Iterator[sqlite3.Connection | None]:
    """Give a connection for reading what the file at *path* holds, or None if it takes a copy of over *most_bytes*.

    Raises:
        UnusableError: Whoever is writing to it changes it faster than it can be copied.
        OSError: It cannot be read, or there is no room for the copy.

    """
    log = path.with_name(f"{path.name}-wal")
    if not (log.exists() and log.stat().st_size):
        # immutable: SQLite would otherwise make files beside one in WAL mode.
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            yield connection
        return
    if most_bytes is not None and path.stat().st_size + log.stat().st_size > most_bytes:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="scrapy-bloom-") as directory:
        copy = Path(directory, path.name)
        _copy(path, log, copy)
        with closing(sqlite3.connect(copy)) as connection:
            yield connection


def _copy(path: Path, log: Path, copy: Path) -> None:
    """Copy both files as they were at one moment: while the log is only appended to, the file does not change."""
    for _ in range(_TRIES):
        before = _moment(path, log)
        shutil.copyfile(path, copy)
        if log.exists():
            shutil.copyfile(log, copy.with_name(f"{copy.name}-wal"))
        if _moment(path, log) == before:
            return
    raise UnusableError(path, "changes faster than it can be read", advice="Try again, or wait until the crawl ends.")


def _moment(path: Path, log: Path) -> tuple[int, int, bytes]:
    status = path.stat()
    try:
        with log.open("rb") as file:
            header = file.read(_LOG_HEADER_BYTES)  # another one from each time on that the log begins anew
    except FileNotFoundError:
        header = b""
    return status.st_mtime_ns, status.st_size, header
