"""The feed files of a job: they hold the items of committed pages, and no byte of them is cut that others wrote.

    write           bytes of finished pages wait in memory
    note            a commit begins: its transaction holds these bytes, and how long the file is
    committed       the transaction is written: the bytes are appended
    note            the next transaction, which syncs the file first, drops the bytes

After a kill the last note says what may be missing, and :func:`repair_feeds` appends it.
"""

from __future__ import annotations

import functools
import io
import json
import logging
import mmap
import os
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, cast

from scrapy_bloom.errors import UnusableError, counted

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from scrapy_bloom.job.database import Database
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
    """A storage of Scrapy's with its file, to which commits append. Scrapy's stats have the name, and keep it.

    Args:
        feed: Name and place of the file.
        compress: Makes of what is written what stands in the file; None: that is the same.
        overwrites: Whether what is in the file goes when the first items come.
        keeps: Whether it goes to another name then, because a job that has ended wrote it.
        mends: Whether a line that somebody else left unfinished is ended before the first one of ours.
        may_write: Returns whether what waits at the end, without a commit, may be written.
        log: Is told of each append.

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
                kept = _free_name(self.path)
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
            newline = _newline_of(data)
            data = (newline if newline and not _ends_with(self.path, newline) else b"") + data
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
        """Append what the last note has, whose transaction is written. The next commit tells of it if that fails."""
        if not self._noted:
            return
        self._unwritten += self._noted
        self._noted = b""
        self.log.note(self.feed, is_done=False)
        with suppress(OSError):
            self._append()


# -- which file a note is of -------------------------------------------------------------------------------------------


def place_of(path: str, jobdir: Path) -> str:
    """Return *path* from *jobdir*, which stays the same if both are moved; "" if they are on two drives."""
    try:
        return Path(os.path.relpath(Path(path).absolute(), jobdir)).as_posix()
    except ValueError:
        return ""


def is_of(note: FeedLength, template: str, path: str, jobdir: Path, *, is_batched: bool) -> bool:
    """Return whether *note* is of the feed *template*; of its very file, at *path*, unless it has batches."""
    place = place_of(path, jobdir)
    if not is_batched:
        return Path(note.path).absolute() == Path(path).absolute() or (note.place != "" and note.place == place)
    names, folders = {PurePath(each).name for each in (note.template, template)}, {note.place, place}
    return note.template == template or (len(names) == 1 == len({PurePath(each).parent for each in folders}))


def path_now(feed: FeedLength, jobdir: Path) -> Path:
    """Return where the file of *feed* is: in the same place from *jobdir*, if both were moved or copied."""
    path, moved = Path(feed.path), Path(os.path.normpath(jobdir / feed.place))
    is_moved = moved.is_file() or (moved.parent.is_dir() and not path.is_file())
    return moved if feed.place and moved != Path(os.path.abspath(path)) and is_moved else path  # noqa: PTH100 - no links


# -- after a kill ------------------------------------------------------------------------------------------------------


def repair_feeds(database: Database, jobdir: Path, log: AppendLog) -> list[FeedLength]:
    """Complete the feed files of a job whose last run was killed, and return what is noted of all, without bytes.

    Raises:
        UnusableError: A file lacks items of the last commit, and cannot be written.

    """
    feeds = []
    for feed in database.feeds():
        path = path_now(feed, jobdir)
        try:
            if feed.cycle is None and not database.state.clean:
                _set_beyond_aside(path, feed, jobdir)
            if feed.data:
                _repair(path, feed, log)
        except OSError as error:
            raise UnusableError(
                path,
                f"cannot be written: {error.strerror}",
                advice="It lacks items of the job's last commit. Make it writable, and start again.",
            ) from error
        feeds.append(feed._replace(length=feed.size, data=b""))
    log.write()
    return feeds


def _repair(path: Path, feed: FeedLength, log: AppendLog) -> None:
    """Append to the file at *path* what the last commit noted of *feed*, unless it is there already."""
    size, state = size_of(path), log.state(feed)
    if state != "done" or size < feed.size:  # somebody made it shorter
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+", buffering=0) as file:
            left = feed.data if state == "absent" else _missing_part(file, size, feed)
            newline = _newline_of(left)
            if left == feed.data and newline and not _ends_with(path, newline):
                left = newline + left
            while left:
                left = left[file.write(left) or 0 :]
    log.note(feed, is_done=True)


def _missing_part(file: io.FileIO, size: int, feed: FeedLength) -> bytes:
    """Return which part of the last append to *file*, of *size* bytes, is not there."""
    start = feed.length if size >= feed.length else 0
    if _has(file, feed.data, start):
        return b""
    file.seek(start)
    there = file.read(len(feed.data)) or b""
    if start == feed.length and feed.data.startswith(there):
        return feed.data[len(there) :]
    if size >= feed.length:
        logger.warning(
            "%s was written to by others when this job was killed: its last %s of items are appended. A line may be "
            "torn behind byte %s.",
            feed.path,
            counted(len(feed.data), "byte"),
            f"{feed.length:,}",
        )
    return feed.data


def _set_beyond_aside(path: Path, feed: FeedLength, directory: Path) -> None:
    """Move what is beyond the noted length of *feed*, which format version 1 cut after a kill, to *directory*."""
    if size_of(path) <= feed.length:
        return
    aside = _free_name(directory / f"{path.name}.uncommitted")
    with path.open("rb+") as file:
        file.seek(feed.length)
        aside.write_bytes(file.read())
        file.truncate(feed.length)
    logger.warning(
        "%s has %s of items whose pages an older scrapy-bloom had not committed when it was killed. They are fetched "
        "again; what it had written of them is moved to %s.",
        path,
        counted(aside.stat().st_size, "byte"),
        aside,
    )


def goes_on(path: Path, feed: FeedLength, shell: tuple[bytes, bytes]) -> bool:
    """Prepare the file at *path* to be gone on with, and return whether it has the beginning of the feed.

    What a feed without end has behind its items, the second part of *shell*, is ours if nothing else is there, and is
    cut off. Whatever else others wrote behind our items stays.
    """
    begin, tail = shell
    size, own = size_of(path), tail if feed.items else begin + tail
    if size < feed.length:
        logger.warning(
            "%s has %s fewer than this job has written to it; their items are not written again",
            path,
            counted(feed.length - size, "byte"),
        )
        return size > 0 and not tail and feed.items > 0
    if own and size - feed.length == len(own) and _has_at(path, own, feed.length):
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


def _has(file: io.FileIO, data: bytes, start: int) -> bool:
    with suppress(ValueError), mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:  # an empty one
        return whole.find(data, start) >= 0
    return False


def _has_at(path: Path, data: bytes, start: int) -> bool:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(len(data)) == data


def _newline_of(data: bytes | bytearray) -> bytes:
    """Return the line feed that *data* ends with; b"" if it does not end a line."""
    return next((newline for newline in _NEWLINES if data.endswith(newline)), b"")


def _ends_with(path: Path, newline: bytes) -> bool:
    """Return whether the file at *path* is empty, missing, or ends with *newline*."""
    size = size_of(path)
    return not size or (size >= len(newline) and _has_at(path, newline, size - len(newline)))


def _free_name(path: Path) -> Path:
    """Return *path* with the first number behind its stem that no file has."""
    number = 1
    while (free := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    return free
