"""The feed files of a job. They hold the items of committed pages; bytes that other programs wrote are never cut off.

    write           bytes of finished pages wait in memory
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
    from collections.abc import Callable
    from typing import IO

    from scrapy_bloom.job.records import FeedLength

logger = logging.getLogger(__name__)

_NEWLINES = (b"\n\0\0\0", b"\0\0\0\n", b"\n\0", b"\0\n", b"\n")
"""A line feed in UTF-32, UTF-16 and what ASCII is a part of."""


class AppendLog:
    """Which appends have begun and ended, in a file that is not synced: exact after a kill, unknown after a reboot.

    Other jobs may append the same bytes to the same file. Without this, theirs could be taken for ours.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._appends: dict[str, tuple[int, bool]] = {}  # by place of the feed: its items, and whether it has ended
        self.is_known = False
        """Whether the log is of this boot of the machine."""
        with suppress(OSError, ValueError):
            boot, self._appends = json.loads(path.read_bytes().partition(b"\n")[0])
            self.is_known = boot == _boot_id() != ""

    def state(self, feed: FeedLength) -> str:
        """Return "absent", "begun" or "done" for the last append of *feed*; "unknown" if the log cannot tell."""
        items, is_done = self._appends.get(feed.place, (0, True))
        if not self.is_known or items > feed.items:  # a backup of the job was put back
            return "unknown"
        return "absent" if items < feed.items else "done" if is_done else "begun"

    def note(self, feed: FeedLength, *, is_done: bool) -> None:
        """Note that the append of *feed* begins, or is done."""
        self._appends[feed.place] = feed.items, is_done
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
        feed: Name and place of the file.
        compress: Compresses the bytes before they are appended; None: they are appended as they are.
        overwrites: Whether the first items replace the contents of the file.
        keeps: Whether replaced contents are kept under another name, because a finished job wrote them.
        mends: Whether to end a line that another program left unfinished, before the first line of ours.
        may_write: Returns whether bytes that are in no commit may be written when the file is closed.
        log: Notes the beginning and the end of each append.

    """

    def __init__(
        self,
        feed: FeedLength,
        *,
        compress: Callable[[bytes], bytes] | None,
        overwrites: bool,
        keeps: bool,
        mends: bool,
        may_write: Callable[[], bool],
        log: AppendLog,
    ) -> None:
        super().__init__()
        self.feed, self.path = feed, Path(feed.path).absolute()
        self._compress, self._may_write, self.log = compress, may_write, log
        self._overwrites, self._keeps, self._mends = overwrites, keeps, mends
        self._file: io.FileIO | None = None
        self.waiting = bytearray()
        """What the next note will have."""
        self._noted = b""  # in the note whose transaction is being written
        self._unwritten = bytearray()  # in a transaction: the file lacks it
        self._needs_note = True
        self.is_stored = False
        """Whether it is complete."""

    # -- for Scrapy ---------------------------------------------------------------------------------------------------

    def open(self, spider: object) -> IO[bytes]:  # noqa: ARG002 - Scrapy's arguments
        """Return the file."""
        return cast("IO[bytes]", self)

    def store(self, file: object) -> None:  # noqa: ARG002 - Scrapy's arguments
        """Write what is left, and close the file. Raise OSError if that fails."""
        if not self._may_write():  # the pages of what waits are fetched again
            self.waiting.clear()
        elif self._file is None:
            self._open()
        self._unwritten += self._packed()
        self._append()
        if self._file is not None:
            self._file.close()

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

    # -- for commits --------------------------------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        """How many bytes wait in memory."""
        return len(self.waiting) + len(self._noted) + len(self._unwritten)

    def size(self) -> int:
        """Return how long the file is; 0 if its contents are going to be overwritten."""
        if self._file is not None and not self._file.closed:
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
            self.log.note(self.feed, is_done=True)

    def _open(self) -> io.FileIO:
        if self._overwrites:
            self._make_way()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab", buffering=0)
        return self._file

    def _packed(self) -> bytes:
        data = bytes(self.waiting)
        self.waiting.clear()
        if data and self._mends:
            self._mends = False
            newline = newline_of(data)
            data = (newline if newline and not ends_with(self.path, newline) else b"") + data
        return self._compress(data) if self._compress is not None and data else data

    def note(self, items: int, columns: Any) -> FeedLength | None:
        """Return the note of a commit that begins, with what waits; None if there is nothing new.

        Call :meth:`settle` first. The file has *items* by then, under *columns*.
        """
        data = self._packed()
        if not (data or self.feed.data or self._needs_note or self.is_stored):
            return None
        self.feed = self.feed._replace(
            length=self.size(), items=items, columns=columns, data=data, is_finished=self.is_stored
        )
        self._noted, self._needs_note = data, False
        return self.feed

    def committed(self) -> None:
        """Append the bytes of the last note, whose transaction is written. If that fails, the next commit raises."""
        if not self._noted:
            return
        self._unwritten += self._noted
        self._noted = b""
        self.log.note(self.feed, is_done=False)
        with suppress(OSError):
            self._append()


def goes_on(path: Path, feed: FeedLength, shell: tuple[bytes, bytes]) -> bool:
    """Prepare the file at *path* for more items. Return False if the opening part of the feed has to be written.

    *shell* is the opening and the closing part of a feed, such as ``[`` and ``]``. If nothing but our own closing part
    follows our items, it is cut off. Bytes that other programs wrote stay.
    """
    begin, tail = shell
    size, shell_part = size_of(path), tail if feed.items else begin + tail
    if size < feed.length:
        logger.warning(
            "%s has %s fewer than this job has written to it; their items are not written again",
            path,
            counted(feed.length - size, "byte"),
        )
        return size > 0 and not tail and feed.items > 0
    if shell_part and size - feed.length == len(shell_part) and _has_at(path, shell_part, feed.length):
        os.truncate(path, feed.length)
    elif tail and feed.items and size > feed.length:
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


def _has_at(path: Path, data: bytes, start: int) -> bool:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(len(data)) == data


def newline_of(data: bytes | bytearray) -> bytes:
    """Return the line feed that *data* ends with; b"" if it does not end a line."""
    return next((newline for newline in _NEWLINES if data.endswith(newline)), b"")


def ends_with(path: Path, newline: bytes) -> bool:
    """Return whether the file at *path* is empty, missing, or ends with *newline*."""
    size = size_of(path)
    return not size or (size >= len(newline) and _has_at(path, newline, size - len(newline)))


def free_name(path: Path) -> Path:
    """Return *path* with the first number behind its stem that no file has."""
    number = 1
    while (free := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    return free
