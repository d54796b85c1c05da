"""The feed files of a job. They hold the items of committed pages; bytes that other programs wrote are never cut off.

    write           exporters write items of finished pages; the bytes wait in memory
    note            a commit begins: its transaction holds these bytes, and how long the file is
    committed       the transaction is written: the bytes are appended
    note            the next transaction, which syncs the file first, drops the bytes

After a kill the last note says what may be missing, and :mod:`~scrapy_bloom.job.feeds` appends it.
"""

from __future__ import annotations

import functools
import io
import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from scrapy_bloom.errors import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import IO

    from scrapy_bloom.job.records import FeedLength, FeedState

logger = logging.getLogger(__name__)

_NEWLINES = (b"\n\0\0\0", b"\0\0\0\n", b"\n\0", b"\0\n", b"\n")
"""A line feed in UTF-32, UTF-16 and what ASCII is a part of."""


class AppendLog:
    """Which appends have begun and ended, in a file that is not synced: exact after a kill, unknown after a reboot.

    Other jobs may append the same bytes to the same file. Without this, theirs could be taken for ours.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._appends: dict[str, tuple[int, bool]] = {}  # by key of the file: number of the append, and if it ended
        self.is_known = False
        """Whether the log is of this boot of the machine."""
        with suppress(OSError, ValueError):
            boot, self._appends = json.loads(path.read_bytes().partition(b"\n")[0])
            self.is_known = boot == _boot_id() != ""

    def state(self, feed: FeedLength) -> str:
        """Return "absent", "begun" or "done" for the append of *feed*; "unknown" if the log cannot tell."""
        number, is_done = self._appends.get(feed.key, (0, True))
        if not self.is_known or number > feed.number:  # a backup of the job was put back
            return "unknown"
        return "absent" if number < feed.number else "done" if is_done else "begun"

    def number(self, feed: FeedLength) -> int:
        """Return the number of the last append to the file of *feed*; 0 if there was none."""
        return self._appends.get(feed.key, (0, True))[0]

    def note(self, feed: FeedLength, *, is_done: bool) -> None:
        """Note that the append of *feed* begins, or is done."""
        self._appends[feed.key] = feed.number, is_done
        self.write()

    def write(self) -> None:
        """Write the log, which tells of all appends from now on. If that fails, the file tells less."""
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o666)
            os.write(descriptor, json.dumps([_boot_id(), self._appends]).encode() + b"\n")  # perhaps over a longer line
            os.close(descriptor)


class FileFeedStorage(io.RawIOBase):
    """A storage for Scrapy's feed export that is also its file. Commits append to the file.

    Scrapy's stats contain the name of this class, so do not rename it.

    Args:
        feed: Names the file. An earlier run may have written to it.
        log: Notes the beginning and the end of each append.
        commit: Commits at once what waits, for the end of the file.
        compress: Compresses the bytes before they are appended; None: they are appended as they are.
        overwrites: Whether the first items replace the contents of the file.
        keeps: Whether replaced contents are kept under another name, because this job wrote them.
        mends: Whether to end a line that another program left unfinished, before the first line of ours.

    """

    def __init__(
        self,
        feed: FeedLength,
        log: AppendLog,
        commit: Callable[[], None],
        *,
        compress: Callable[[bytes], bytes] | None,
        overwrites: bool,
        keeps: bool,
        mends: bool,
    ) -> None:
        super().__init__()
        self.path, self._log, self._commit = Path(feed.path).absolute(), log, commit
        self._feed = feed._replace(number=max(feed.number, log.number(feed)))
        self._compress, self._overwrites, self._keeps, self._mends = compress, overwrites, keeps, mends
        self._file: io.FileIO | None = None
        self.waiting = bytearray()
        """What the next note will have."""
        self._end_at: int | None = None  # where in it the end of the file begins
        self._noted = b""  # in the note whose transaction is being written
        self._unwritten = bytearray()  # in a transaction: the file lacks it
        self.is_stored = False
        """Whether it is complete: the next note forgets it."""

    # -- for Scrapy ---------------------------------------------------------------------------------------------------

    def open(self, spider: object) -> IO[bytes]:  # noqa: ARG002 - Scrapy's arguments
        """Return the file."""
        return cast("IO[bytes]", self)

    def store(self, file: object) -> None:  # noqa: ARG002 - Scrapy's arguments
        """Commit what waits, and close the file. Raise OSError if that fails."""
        if self.has_waiting:
            self._commit()
        if self.has_waiting:
            raise OSError(f"{len(self.waiting) + len(self._noted) + len(self._unwritten)} bytes are not written")
        if self._file is None:
            self._open()
        self.close()

    def close(self) -> None:
        """Close the file. It is opened again if there is more to append."""
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return whether the file has a position: encoders write a byte-order mark at 0 alone."""
        return self._compress is None

    def tell(self) -> int:
        """Return how long the file is with what waits."""
        return self.size() + len(self.waiting)

    def write(self, data: Any) -> int:
        """Keep *data* for the next commit."""
        self.waiting += data
        return len(data)

    def ends(self) -> None:
        """Take what is written from now on for the end of the file."""
        self._end_at = len(self.waiting)

    # -- for commits --------------------------------------------------------------------------------------------------

    @property
    def has_waiting(self) -> bool:
        """Whether bytes wait in memory."""
        return bool(self.waiting or self._noted or self._unwritten)

    def size(self) -> int:
        """Return how long the file is; 0 if its contents are going to be overwritten."""
        if self._file is not None:
            return os.fstat(self._file.fileno()).st_size
        return 0 if self._overwrites else size_of(self.path)

    def settle(self) -> None:
        """Write what the last commit left, and make room for what comes first. OSError if that fails."""
        if self._overwrites and self.waiting:
            self._make_way()
        self._append()

    def _make_way(self) -> None:
        if self.path.exists():
            if self._keeps and size_of(self.path):
                kept = free_name(self.path)
                self.path.rename(kept)
                logger.warning("%s is of a job that has ended, and kept as %s: this run overwrites it", self.path, kept)
            else:
                self.path.open("wb").close()
        self._overwrites = False

    def _append(self) -> None:
        if self._unwritten:
            file = self._file or self._open()
            while self._unwritten:
                written = file.write(self._unwritten) or 0
                del self._unwritten[:written]
            self._log.note(self._feed, is_done=True)

    def _open(self) -> io.FileIO:
        if self._overwrites:
            self._make_way()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab", buffering=0)
        return self._file

    def _packed(self, data: bytes) -> bytes:
        if data and self._mends:
            self._mends = False
            newline = newline_of(data)
            data = (newline if newline and not ends_with(self.path, newline) else b"") + data
        return self._compress(data) if self._compress is not None and data else data

    def note(self, feeds: Mapping[str, FeedState]) -> FeedLength | None:
        """Return the note of a commit that begins, with what waits; None if there is nothing new.

        Call :meth:`settle` first. *feeds* write to the file.
        """
        is_changed = self.waiting or self._feed.data or self.is_stored or feeds != self._feed.feeds
        if self._overwrites or not is_changed:  # until it is overwritten, an earlier note tells whose the file is
            return None
        end_at = len(self.waiting) if self._end_at is None else self._end_at
        data, end = self._packed(bytes(self.waiting[:end_at])), self._packed(bytes(self.waiting[end_at:]))
        self.waiting.clear()
        self._end_at = None if self._end_at is None else 0
        self._noted = data + end
        end_before = b"" if self._noted else self._feed.end
        self._feed = self._feed._replace(
            length=self.size() - len(end_before),
            number=self._feed.number + bool(self._noted),
            feeds=feeds,
            data=data,
            end=end or end_before,
            is_finished=self.is_stored,
        )
        return self._feed

    def committed(self) -> None:
        """Append the bytes of the last note, whose transaction is written. If that fails, the next commit raises."""
        if self._noted:
            self._unwritten += self._noted
            self._noted = b""
            self._log.note(self._feed, is_done=False)
            with suppress(OSError):
                self._append()


def goes_on(path: Path, feed: FeedLength) -> bool:
    """Prepare the file at *path* for more items. Return False if the opening part of *feed* has to be written.

    The end that an earlier run wrote is cut off, if nothing follows it. Bytes that other programs wrote stay.
    """
    size, is_enclosed = size_of(path), any(state.is_enclosed for state in feed.feeds.values())
    if size < feed.size:
        logger.warning(
            "%s has %s fewer than this job has written to it; their items are not written again",
            path,
            counted(feed.size - size, "byte"),
        )
        return size > 0 and not is_enclosed and feed.items > 0
    if feed.end and size == feed.size + len(feed.end) and ends_with(path, feed.end):
        os.truncate(path, feed.size)
    elif is_enclosed and feed.items and size > feed.size:
        logger.warning("%s was written to by others behind the items of this job, which begins anew there", path)
        return False
    return feed.items > 0


@functools.cache
def _boot_id() -> str:
    """Return what tells this boot of the machine from others; "" where nothing does."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def size_of(path: Path) -> int:
    """Return the size of the file at *path*; 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def newline_of(data: bytes | bytearray) -> bytes:
    """Return the line feed that *data* ends with; b"" if it does not end a line."""
    return next((newline for newline in _NEWLINES if data.endswith(newline)), b"")


def ends_with(path: Path, data: bytes) -> bool:
    """Return whether the file at *path* is empty, missing, or ends with *data*."""
    if not (size := size_of(path)):
        return True
    with path.open("rb") as file:
        file.seek(max(0, size - len(data)))
        return file.read() == data


def free_name(path: Path) -> Path:
    """Return *path* with the first number behind its stem that no file has."""
    number = 1
    while (free := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    return free
