"""The file of pending requests: one SQLite database, its tables and its transactions.

It knows rows: an id, a lane and some bytes. It does not know what a request is, in which order rows are wanted, when to
write, or that Scrapy exists. The format is described in ``docs/frontier.md``.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from scrapy_bloom.errors import DamagedError, InUseError, UnknownFormatError, UnusableError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

APPLICATION_ID = 0x53624672
"""The four bytes ``SbFr`` in SQLite's header, by which a file is known as ours (``PRAGMA application_id``)."""

FORMAT_VERSION = 1
"""Version of the tables below (``PRAGMA user_version``). Files of a later one are refused."""

IMPORTED_FIRST_ID = -(2**62)
"""Ids from here on up are given to rows that must come out before all others of a first-in-first-out lane."""

_HEADER_SIZE = 100
_CHECKPOINT_PAGES = 4000  # 16 MiB of log; 1000, the default, made bulk pushes 20 % slower here
_CACHE_KIB = 8 * 1024
_PAGE = 1000  # rows per read where a whole lane or the whole table is walked through

_TABLES = f"""
BEGIN EXCLUSIVE;
CREATE TABLE state (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE lanes (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE);
CREATE TABLE requests (id INTEGER PRIMARY KEY, lane INTEGER NOT NULL, body BLOB NOT NULL);
CREATE INDEX requests_by_lane ON requests (lane);
INSERT INTO state VALUES ('clean', 1), ('in_flight', '[]'), ('importing', 0), ('spider', '');
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
COMMIT;
"""  # noqa: S608 - only our own constants


class Row(NamedTuple):
    """One pending request: rows of a lane are older the smaller their id is."""

    id: int
    lane: int
    body: bytes


class StoredLane(NamedTuple):
    """A lane with at least one row when the file was opened."""

    id: int
    key: str
    rows: int


@dataclass(frozen=True)
class Previous:
    """What the file says about the run before this one.

    clean      it ended by closing the file; otherwise it was killed, or the machine lost power.
    in_flight  how many requests it had handed out and not finished at its last commit.
    """

    clean: bool
    in_flight: int


class Database:
    """The open file, held exclusively by this process until :meth:`close` (SQLite's lock goes with the process).

    Every method may raise ``sqlite3.Error``; :meth:`open` turns it into an error with advice.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def open(cls, path: Path) -> Database:
        """Open *path*, or create it.

        Raises:
            DamagedError: The file contradicts itself, or is no database.
            UnknownFormatError: It was written by a newer version.
            InUseError: Another process has it open.
            UnusableError: It cannot be written, or is another program's.

        """
        size = path.stat().st_size if path.exists() else 0
        if 0 < size < _HEADER_SIZE:  # SQLite takes some of these for a new file
            raise damaged(path, f"it has {size} bytes, less than the header of a database")
        try:
            connection = sqlite3.connect(path, timeout=1.0, isolation_level=None)
        except sqlite3.Error as error:
            raise _cannot_write(path, error) from error
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
        return cls(path, connection)

    @property
    def spider(self) -> str:
        """The name given to the first :meth:`begin_run`, or an empty string before that."""
        return str(self._state("spider"))

    def begin_run(self, spider: str) -> Previous:
        """Say how the previous run ended and mark this one, of *spider*, as running, durably."""
        previous = Previous(clean=bool(self._state("clean")), in_flight=len(json.loads(str(self._state("in_flight")))))
        with self._transaction():
            self._set_state("clean", 0)
            self._set_state("spider", spider)
        return previous

    def lanes(self) -> list[StoredLane]:
        """Return every lane that has rows, and drop the names of those that have none."""
        with self._transaction():
            self._connection.execute("DELETE FROM lanes WHERE id NOT IN (SELECT lane FROM requests)")
        rows = self._connection.execute(
            "SELECT lanes.id, lanes.key, count(*) FROM requests CROSS JOIN lanes ON lanes.id = requests.lane "
            "GROUP BY requests.lane ORDER BY lanes.id"
        )
        return [StoredLane(*row) for row in rows]

    def lane_id(self, key: str) -> int | None:
        """Return the id of the lane *key*, or None if it has never been written."""
        row = self._connection.execute("SELECT id FROM lanes WHERE key = ?", (key,)).fetchone()
        return None if row is None else int(row[0])

    def largest_ids(self) -> tuple[int, int]:
        """Return the largest id of a row and of a lane, 0 where there is none."""
        row = self._connection.execute("SELECT (SELECT max(id) FROM requests), (SELECT max(id) FROM lanes)").fetchone()
        return row[0] or 0, row[1] or 0

    def newest_before(self, lane: int, before: int) -> Iterator[Row]:
        """Yield the rows of *lane* with ids under *before*, newest first."""
        return map(
            Row._make,
            self._connection.execute(
                "SELECT id, lane, body FROM requests WHERE lane = ? AND id < ? ORDER BY id DESC", (lane, before)
            ),
        )

    def oldest_after(self, lane: int, after: int) -> Iterator[Row]:
        """Yield the rows of *lane* with ids over *after*, oldest first."""
        return map(
            Row._make,
            self._connection.execute(
                "SELECT id, lane, body FROM requests WHERE lane = ? AND id > ? ORDER BY id", (lane, after)
            ),
        )

    def walk(self, lane: int | None = None) -> Iterator[list[Row]]:
        """Yield all rows, or those of *lane*, in pages and by id; the table may be written to in between."""
        page = "id > :after ORDER BY id LIMIT :page"
        if lane is not None:
            page = f"lane = :lane AND {page}"
        after = -(2**63)
        while rows := self._connection.execute(
            f"SELECT id, lane, body FROM requests WHERE {page}",  # noqa: S608 - one of two constants
            {"lane": lane, "after": after, "page": _PAGE},
        ).fetchall():
            yield [Row(*row) for row in rows]
            after = rows[-1][0]

    def write(
        self,
        *,
        lanes: Iterable[tuple[int, str]],
        added: Iterable[Row],
        finished: Iterable[int],
        in_flight: Collection[int],
    ) -> None:
        """Write all of this or nothing, and return only once it would survive a power failure."""
        with self._transaction():
            self._connection.executemany("INSERT INTO lanes VALUES (?, ?)", lanes)
            self._connection.executemany("INSERT INTO requests VALUES (?, ?, ?)", added)
            self._connection.executemany("DELETE FROM requests WHERE id = ?", ((id_,) for id_ in finished))
            self._set_state("in_flight", json.dumps(sorted(in_flight)))

    def move(self, *, lanes: Iterable[tuple[int, str]], rows: Iterable[tuple[int, int]]) -> None:
        """Put rows into other lanes, given as (lane, row id)."""
        with self._transaction():
            self._connection.executemany("INSERT INTO lanes VALUES (?, ?)", lanes)
            self._connection.executemany("UPDATE requests SET lane = ? WHERE id = ?", rows)

    def import_rows(self, pages: Iterable[tuple[list[tuple[int, str]], list[Row]]]) -> None:
        """Add pages of new lanes and rows in one transaction, and mark the import as done but not tidied up."""
        with self._transaction():
            for lanes, rows in pages:
                self._connection.executemany("INSERT INTO lanes VALUES (?, ?)", lanes)
                self._connection.executemany("INSERT INTO requests VALUES (?, ?, ?)", rows)
            self._set_state("importing", 1)

    def import_bounds(self) -> tuple[int, int]:
        """Return the first free id for imported rows, first-in-first-out (counting up) and last-in-first-out (down).

        All of them lie before the rows that are there.
        """
        up = self._connection.execute(
            "SELECT max(id) FROM requests WHERE id < ?", (IMPORTED_FIRST_ID // 2,)
        ).fetchone()[0]
        down = self._connection.execute(
            "SELECT min(id) FROM requests WHERE id >= ?", (IMPORTED_FIRST_ID // 2,)
        ).fetchone()[0]
        return IMPORTED_FIRST_ID if up is None else up + 1, min(0, 0 if down is None else down) - 1

    @property
    def import_untidied(self) -> bool:
        """Whether a queue of Scrapy's was imported whose directory has not been put aside yet."""
        return bool(self._state("importing"))

    def import_tidied(self) -> None:
        """Forget that there was an import, once the imported directory is out of the way."""
        with self._transaction():
            self._set_state("importing", 0)

    def close(self, *, clean: bool) -> None:
        """Close the file, and mark the run as cleanly ended if *clean*."""
        try:
            if clean:
                with self._transaction():
                    self._set_state("clean", 1)
        finally:
            self._connection.close()  # folds the log into the file

    # -- inside --------------------------------------------------------------------------------------------------

    def _state(self, name: str) -> object:
        return self._connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()[0]

    def _set_state(self, name: str, value: object) -> None:
        self._connection.execute("UPDATE state SET value = ? WHERE name = ?", (value, name))

    def _transaction(self) -> _Transaction:
        return _Transaction(self._connection)


class _Transaction:
    """All or nothing; ``with connection`` of the standard library does not roll back what failed in COMMIT."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, exception_type: type[BaseException] | None, *_: object) -> None:
        try:
            if exception_type is None:
                self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                with suppress(sqlite3.Error):  # the first error is the one to tell
                    self._connection.execute("ROLLBACK")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    try:
        # Exclusive before the first access: then the write-ahead log needs no shared memory file, works on network
        # drives too, and a second process is refused for as long as this one lives.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        application, version = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _IDENTITY)
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != APPLICATION_ID and (application or tables):
            raise UnusableError(
                path,
                f"is an SQLite database, but not one of scrapy-bloom's: it has the application id {application:#x}",
                expected=f"{APPLICATION_ID:#x}",
                advice="Move it out of the job directory, or use another JOBDIR.",
            )
        if version > FORMAT_VERSION:
            advice = "It was written by a later one, and nothing was changed. Upgrade scrapy-bloom to go on."
            raise UnknownFormatError(path, "format version", version, FORMAT_VERSION, advice=advice)
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL: the log is synced at each commit. With NORMAL a power failure could take back commits whose
        # fingerprints the filter has got since, and each of those is a page that is never fetched.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        if not tables:
            connection.executescript(_TABLES)
        # Takes the lock at once, even if there is nothing to write yet.
        with _Transaction(connection):
            connection.execute("UPDATE state SET value = value WHERE name = 'clean'")
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        states = {name for (name,) in connection.execute("SELECT name FROM state")}
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise InUseError(
                path,
                "is in use by another process",
                advice="A job directory belongs to one crawl at a time: wait until that crawl has ended, or give this "
                "one another JOBDIR. (A killed process leaves no lock behind.)",
            ) from error
        if "no such table" in str(error):
            raise damaged(path, error) from error
        raise _cannot_write(path, error) from error
    except sqlite3.DatabaseError as error:
        raise damaged(path, error) from error
    if not {"state", "lanes", "requests"} <= names or not states >= _STATES:
        raise damaged(path, f"it holds the tables {sorted(names)} and the states {sorted(states)}")


_IDENTITY = ("application_id", "user_version")
_STATES = {"clean", "in_flight", "importing", "spider"}


def damaged(path: Path, problem: object) -> DamagedError:
    """Return the error about a damaged file at *path*: what was found, and the ways on."""
    return DamagedError(
        f"{path} (the pending requests of this job)",
        str(problem),
        advice="Nothing was repaired. Restore the file from "
        f"a backup, or save what is readable with SQLite's own tool (sqlite3 {path.name} .recover | sqlite3 new, then "
        "put new in its place), or begin again with an empty JOBDIR. Do not delete this file alone: the duplicate "
        "filter would take the pages that were pending in it for seen, and they would never be fetched.",
    )


def _cannot_write(path: Path, error: object) -> UnusableError:
    return UnusableError(
        f"{path} (the pending requests of this job)",
        f"cannot be opened for writing: {error}",
        advice="Nothing was changed. Check the free space and the permissions of the job directory, then start again.",
    )
