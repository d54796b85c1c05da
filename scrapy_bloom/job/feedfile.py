"""The feed files of a job: written when a commit begins, and cut to their length at the last one after a kill."""

from __future__ import annotations

import io
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_bloom.errors import counted
from scrapy_bloom.job.records import Batch, FeedLength

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy_bloom.job.database import Database

logger = logging.getLogger(__name__)

WRITE_AT = 1 << 20
"""Bytes that wait in memory before they are written between two commits."""


class FeedFile(io.RawIOBase):
    """The file of a feed. What is written waits in memory until :meth:`settle`, also while the disk has no room.

    Args:
        path: The file; its directory is created.
        mode: "ab" to append to it, "wb" to overwrite it.
        begins: Called before it is opened. If that raises OSError, all waits on.

    """

    def __init__(self, path: Path, mode: str, begins: Callable[[], None]) -> None:
        super().__init__()
        self.length = 0
        """Bytes that are in the file, once it is open."""
        self._path, self._mode, self._begins = path, mode, begins
        self._waiting = bytearray()
        self._file: Any = None
        self._is_whole = False

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Take *data* in."""
        self._waiting += data
        if len(self._waiting) >= WRITE_AT:
            with suppress(OSError):  # the next commit says so
                self.settle()
        return len(data)

    def settle(self) -> None:
        """Write what waits. Raise OSError if that fails: what is not written waits on."""
        if self._is_whole:
            return
        if self._file is None:
            self._begins()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._mode == "ab" and not _ends_a_line(self._path):
                self._waiting[:0] = b"\n"
            self._file = self._path.open(self._mode, buffering=0)
        while self._waiting:
            written = self._file.write(self._waiting)
            del self._waiting[:written]
        self.length = self._file.tell()
        if self.closed:
            self._file.close()
            self._is_whole = True

    def close(self) -> None:
        """Let no more be written. The file is closed by the commit that writes the last of it."""
        super().close()
        with suppress(OSError):
            self.settle()


def _ends_a_line(path: Path) -> bool:
    """Return whether the file at *path* is empty, missing or ends a line; one that was cut would tear the next."""
    try:
        with path.open("rb") as file:
            file.seek(-min(4, file.seek(0, os.SEEK_END)), os.SEEK_END)
            return b"\n" in (file.read() or b"\n")  # of UTF-16 or UTF-32, too
    except OSError:
        return True


def cut_feeds(database: Database) -> None:
    """Cut the feed files of a job to their lengths at the last commit; a finished job forgets them."""
    state, feeds = database.state, database.feeds()
    over = [feed._replace(is_finished=True) for feed in feeds] if state.is_finished else _cut(feeds)
    if over:
        database.write(Batch(feeds=over, state=state))


def feed_begun(database: Database, template: str, path: str) -> FeedLength | None:
    """Return the file, if possible *path*, of the feed *template* that an unfinished job was writing."""
    begun = [feed for feed in database.feeds() if feed.template == template]
    return max(begun, key=lambda feed: feed.path == path, default=None)


def _cut(feeds: Sequence[FeedLength]) -> list[FeedLength]:
    """Cut the files of *feeds* to their lengths at the last commit: what comes after is of pages that were not done.

    Return those that nobody goes on with, begun since that commit: others of their feed are not finished. Where nothing
    is left of such a file, it is deleted.
    """
    first: dict[str, int] = {}
    for feed in feeds:
        first[feed.template] = min(feed.batch, first.get(feed.template, feed.batch))
    over = []
    for feed in feeds:
        path = Path(feed.path)
        try:
            length = path.stat().st_size
            if length > feed.length:
                os.truncate(path, feed.length)
        except OSError:
            length = 0
        if length < feed.length:
            logger.warning(
                "%s has %s fewer than this job has written to it; their items are not written again",
                feed.path,
                counted(feed.length - length, "byte"),
            )
        if feed.batch > first[feed.template]:
            over.append(feed._replace(is_finished=True))
            if not feed.length and path.is_file():
                path.unlink()
    return over
