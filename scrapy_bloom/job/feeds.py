"""The feeds that a database has noted: which file each note is of, and what a kill has left of it."""

from __future__ import annotations

import logging
import mmap
import os
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from scrapy_bloom.errors import UnusableError, counted
from scrapy_bloom.job.feedfile import AppendLog, ends_with, newline_of, size_of

if TYPE_CHECKING:
    import io

    from scrapy_bloom.job.database import Database
    from scrapy_bloom.job.records import FeedLength

logger = logging.getLogger(__name__)


class NotedFeeds:
    """The feeds that are part of the commits of *database*. The file *log* tells which appends have begun."""

    def __init__(self, database: Database, log: Path) -> None:
        self._database = database
        self.log = AppendLog(log)
        self.notes: list[FeedLength] = []
        """The notes of all feed files, as the last run left them. Empty before :meth:`repair`."""
        self.cycle = 0
        """:attr:`JobState.cycle` of this run."""
        self.jobdir = database.path.parent.parent.resolve()
        """The directory that a crawl is given."""

    def repair(self) -> list[FeedLength]:
        """Complete the files of a run that was killed, and return the notes of all, without bytes.

        Raises UnusableError if a file lacks items of the last commit, and cannot be written.
        """
        self.cycle = self._database.state.next_run().cycle
        for feed in self._database.feeds():
            path = path_now(feed, self.jobdir)
            try:
                if feed.data or feed.end:
                    _repair(path, feed, self.log)
            except OSError as error:
                raise UnusableError(
                    path,
                    f"cannot be written: {error.strerror}",
                    advice="It lacks items of the job's last commit. Make it writable, and start again.",
                ) from error
            self.notes.append(feed._replace(length=feed.size, data=b""))
        self.log.write()
        return self.notes

    def of_feed(self, template: str, path: str, *, is_batched: bool) -> list[FeedLength]:
        """Return the notes of the feed *template*, whose file is at *path*: those of this cycle last, in order."""
        place = place_of(path, self.jobdir)
        notes = [note for note in self.notes if _is_of(note, template, path, place, is_batched=is_batched)]
        return sorted(notes, key=lambda note: (note.cycle, note.batch))


def place_of(path: str, jobdir: Path) -> str:
    """Return *path* relative to *jobdir*: valid also when both are moved. "" if they are on different drives.

    Without symbolic links in *path*; *jobdir* has none.
    """
    try:
        return Path(os.path.relpath(Path(path).resolve(), jobdir)).as_posix()
    except ValueError:
        return ""


def _is_of(note: FeedLength, template: str, path: str, place: str, *, is_batched: bool) -> bool:
    if not is_batched:
        return Path(note.path).absolute() == Path(path).absolute() or (note.place != "" and note.place == place)
    names, folders = {PurePath(uri).name for uri in (note.template, template)}, {note.place, place}
    return template in note.feeds or (len(names) == 1 == len({PurePath(folder).parent for folder in folders}))


def path_now(feed: FeedLength, jobdir: Path) -> Path:
    """Return where the file of *feed* is: in the same place from *jobdir*, if both were moved or copied."""
    path, moved = Path(feed.path), Path(os.path.normpath(jobdir / feed.place))
    is_moved = moved.is_file() or (moved.parent.is_dir() and not path.is_file())
    return moved if feed.place and moved != Path(os.path.abspath(path)) and is_moved else path  # noqa: PTH100 - no links


def _repair(path: Path, feed: FeedLength, log: AppendLog) -> None:
    """Append to the file at *path* what the last commit noted of *feed*, unless it was appended before the kill."""
    state, data = log.state(feed), feed.data + feed.end
    if state == "done":  # whoever has moved or cut the file since has the items
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as file:
        left = data if state == "absent" else _missing_part(file, size_of(path), feed)
        newline = newline_of(left)
        is_apart = not newline or left.startswith(newline) or ends_with(path, newline)
        if left == data and not is_apart:  # somebody has cut the line before
            left = newline + left
        while left:
            left = left[file.write(left) or 0 :]
    log.note(feed, is_done=True)


def _missing_part(file: io.FileIO, size: int, feed: FeedLength) -> bytes:
    """Return which part of the last append to *file*, of *size* bytes, is not there."""
    data, start = feed.data + feed.end, feed.length if size >= feed.length else 0
    if _has(file, data, start):
        return b""
    file.seek(start)
    there = file.read(len(data)) or b""
    if start == feed.length and data.startswith(there):
        return data[len(there) :]
    if size >= feed.length:
        logger.warning(
            "%s was written to by others when this job was killed: its last %s of items are appended. A line may be "
            "torn behind byte %s.",
            feed.path,
            counted(len(data), "byte"),
            f"{feed.length:,}",
        )
    return data


def _has(file: io.FileIO, data: bytes, start: int) -> bool:
    with suppress(ValueError), mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:  # an empty one
        return whole.find(data, start) >= 0
    return False
