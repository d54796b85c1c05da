"""The feeds that a database has noted: which file each note is of, and what a kill has left of it.

A fleet's worker that has a job directory notes items of pages until their acknowledgement counts:

    begin        a thread is about to make a call that acknowledges pages: it notes the items of these pages
    end          the server has answered: items of refused pages are dropped, the others go to their feeds
    commit       one transaction holds the bytes for the feed files, and deletes the notes; then the files are written

A kill leaves notes. The next run first asks the server which of the noted calls were carried out.
"""

from __future__ import annotations

import logging
import mmap
import os
import pickle
import sqlite3
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from scrapy_bloom.errors import DamagedError, UnusableError, counted
from scrapy_bloom.frontier.order import PICKLE_PROTOCOL
from scrapy_bloom.frontier.store import Journal
from scrapy_bloom.job.database import Database
from scrapy_bloom.job.feedfile import AppendLog, ends_with, newline_of, size_of
from scrapy_bloom.job.records import Batch

if TYPE_CHECKING:
    import io
    from collections.abc import Collection, Mapping, Sequence

    from scrapy_bloom.job.records import FeedLength, Feeds

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


NAME = "feeds.sqlite"
COMMIT_SECONDS = 1.0
_ADVICE = "Free some space, and start the worker again: it goes on, and no item is lost."


Item = tuple[str, bytes]
"""An item of a page that is not acknowledged yet: the feed, as it stands in ``FEEDS``, and a pickle."""


class FeedJournal(Journal):
    """The journal in *directory*, ``JOBDIR/requests.bloom``. *feeds* are those of the crawl.

    The lease client's thread calls :meth:`begin`, :meth:`end`, :meth:`drop` and :meth:`write`. The crawl's thread calls
    all else, and :meth:`end` and :meth:`drop` before the other thread starts. Raises BloomError if the journal cannot
    be read, or a feed that lacks items cannot be written.
    """

    def __init__(self, directory: Path, feeds: Feeds) -> None:
        self._feeds, self._is_open, self._has_warned = feeds, False, False
        try:
            self._database = Database(directory / NAME)
            self._calls: dict[str, Mapping[int, Sequence[Item]]] = {
                call: pickle.loads(body)  # noqa: S301 - our own file
                for call, body in self._database.notes("call").items()
            }
        except DamagedError as error:
            advice = "Move it away. Items of pages that were done just before the kill may be missing."
            raise UnusableError(directory / NAME, f"is damaged: {error}", advice=advice) from error
        self._state = self._database.state.next_run()
        self.noted = NotedFeeds(self._database, directory / "feeds.appended")
        self._held: list[Item] = []
        self._ended: deque[tuple[str, Sequence[Item]]] = deque()  # calls, and what the server has taken
        self._appended: list[str] = []  # calls whose items the next commit has
        self._batch: Batch | None = None  # a commit that has begun
        self._is_written = False
        self._began = 0.0
        try:
            self._write(Batch(feeds=self.noted.repair(), state=self._state))
        except BaseException:
            self._database.close()
            raise

    def open_feeds(self) -> None:
        """Write to the feeds from now on: they are open."""
        self._is_open = True

    def hold(self, feed: str, item: object) -> bool:
        """Keep *item*, of the page that is being acknowledged; return False if it cannot be pickled."""
        try:
            data = pickle.dumps(item, PICKLE_PROTOCOL)
            pickle.loads(data)  # noqa: S301 - our own
        except Exception as error:  # of the user's class
            if not self._has_warned:
                self._has_warned = True
                message = "Items cannot be pickled (%r): after a kill, such items may come twice. First: %.200r"
                logger.warning(message, error, item)
            return False
        self._held.append((feed, data))
        return True

    def taken(self) -> Sequence[Item]:
        """Return what was held since the last call."""
        held, self._held = self._held, []
        return held

    @property
    def in_doubt(self) -> list[str]:
        """The calls that have begun and not ended."""
        return list(self._calls)

    def begin(self, call: str, pages: Mapping[int, Sequence[Item]]) -> None:
        """Note that *call*, which acknowledges *pages*, is about to be made. Raises UnusableError."""
        if pages and call not in self._calls:  # otherwise it is made again
            self._calls[call] = pages
            self._write(Batch(notes={("call", call): _packed(pages)}, state=self._state))

    def end(self, call: str, refused: Collection[int]) -> None:
        """Note that the server has taken *call*, but for the pages *refused*. Raises UnusableError."""
        pages = self._calls.pop(call, None)
        if pages is None:
            return
        taken = {number: items for number, items in pages.items() if number not in refused}
        if len(taken) < len(pages):  # the server remembers only what its last call refused
            self._write(Batch(notes={("call", call): _packed(taken)}, state=self._state))
        self._ended.append((call, [item for items in taken.values() for item in items]))

    def drop(self, call: str) -> None:
        """Note that the server does not know of *call*: its pages are fetched again."""
        self.end(call, self._calls.get(call, ()))

    def commit(self, *, is_last: bool = False) -> None:
        """Begin a commit if one is due, and end the last one if it is written. Raises UnusableError."""
        if self._is_written:
            self._batch, self._is_written = None, False
            self._feeds.committed()
        if self._batch is None and (is_last or time.monotonic() >= self._began + COMMIT_SECONDS):
            self._began = time.monotonic()
            if self._is_open:
                self._append()
            try:
                batch = Batch(feeds=self._feeds.notes(), state=self._state)
            except OSError as error:
                raise UnusableError("A feed", f"cannot be written: {error}", advice=_ADVICE) from error
            batch.note("call", dict.fromkeys(self._appended, b""))
            self._appended = []
            if not batch.is_empty():
                self._batch = batch

    def write(self) -> None:
        """Write the commit that has begun, if one has. Raises UnusableError."""
        if self._batch is not None and not self._is_written:
            self._write(self._batch)
            self._is_written = True

    def flush(self) -> None:
        """Write what is left. The other thread has ended. Raises UnusableError."""
        self.write()
        self.commit(is_last=True)
        self.write()
        self.commit()

    def close(self, reason: str) -> None:
        """Close the database; *reason* is why the crawl has ended. Raises UnusableError."""
        try:
            self.flush()
            self._write(Batch(state=replace(self._state, clean=True, finish_reason=reason)))
        finally:
            self._database.close()

    def _append(self) -> None:
        """Give the feeds what the server has taken."""
        while self._ended:
            call, items = self._ended.popleft()
            for feed, data in items:
                try:
                    given = pickle.loads(data)  # noqa: S301 - our own file
                except Exception:  # a class was renamed since the last run, say
                    logger.exception("An item of a page that is done cannot be read, and is not in %s", feed)
                else:
                    self._feeds.write(feed, given, is_acknowledged=True)
            self._appended.append(call)

    def _write(self, batch: Batch) -> None:
        try:
            self._database.write(batch)
        except (sqlite3.Error, OSError) as error:
            raise UnusableError(self._database.path, f"cannot be written: {error}", advice=_ADVICE) from error


def _packed(pages: Mapping[int, Sequence[Item]]) -> bytes:
    return pickle.dumps({number: list(items) for number, items in pages.items()}, PICKLE_PROTOCOL)
