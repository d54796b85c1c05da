"""The file of pending requests: one SQLite database, its tables and its transactions.

Knows rows: an id, a lane and some bytes. Does not know what a request is, which row is next, when to write, or that
Scrapy exists. The format is described in ``docs/frontier.md``.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from filelock import FileLock, Timeout

from scrapy_bloom.old.errors import DamagedError, InUseError, UnknownFormatError, UnusableError, counted
from scrapy_bloom.old.files.frontier_file import half_salvaged

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping
    from pathlib import Path

APPLICATION_ID = 0x53624672
"""The four bytes ``SbFr``, by which SQLite's header marks a file as ours (``PRAGMA application_id``)."""

FORMAT_VERSION = 3
"""Version of the tables below (``PRAGMA user_version``). A file of a later version is refused. One of version 1, which
had no checksums, or of version 2, which counted in the table of lanes, is rewritten on opening."""

IMPORTED_FIRST_ID = -(2**62)
"""Ids from here up are for rows that must come out before all others of a first-in-first-out lane."""

_HEADER_SIZE = 100
_CHECKPOINT_PAGES = 2000  # 8 MiB of log, then SQLite folds it into the file
_READER_CACHE_KIB = 1024  # of the connection that reads; each commit empties it
_WRITER_CACHE_KIB = 4 * 1024  # with 100,000 lanes a commit changes every page of the index, 2.5 MB
_PAGE = 1000  # rows per read of a whole lane or table
_SUM_UP_AFTER = 20_000  # changes of counts, 16 bytes each

_SCHEMA = {
    "state": "CREATE TABLE state (name TEXT PRIMARY KEY, value, crc INTEGER) WITHOUT ROWID",
    # "key" is the name of the lane. Another name for the column would be another format version.
    "lanes": "CREATE TABLE lanes (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, crc INTEGER NOT NULL)",
    # Not a column of lanes: with 100,000 hosts nearly every request changes the count of another lane, and writing a
    # page of the table for each took half of the time of a commit.
    "counts": "CREATE TABLE counts (id INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "requests": "CREATE TABLE requests (id INTEGER PRIMARY KEY, lane INTEGER NOT NULL, body BLOB NOT NULL)",
    "requests_by_lane": "CREATE INDEX requests_by_lane ON requests (lane)",
}
_FIRST_STATE: dict[str, int | str] = {
    "clean": 1,
    "in_flight": 0,
    "importing": 0,
    "last_id": 0,
    "filter": "",
    "spider": "",
}

_ROW_KEY = struct.Struct("<qq")
_CHANGE = struct.Struct("<qq")  # a lane, and by how much the number of its rows changes
_CRC = struct.Struct("<I")


class Row(NamedTuple):
    """One pending request: rows of a lane are older the smaller their id is."""

    id: int
    lane: int
    body: bytes


class StoredLane(NamedTuple):
    """A lane with at least one row when the file was opened."""

    id: int
    name: str
    rows: int

    @property
    def in_file(self) -> int:
        """All its rows are."""
        return self.rows


@dataclass(frozen=True)
class State:
    """What the file says about the previous run, and whose job it is."""

    clean: bool
    """Whether it closed the file; otherwise it was killed, or the machine lost power."""
    in_flight: int
    """How many requests it had handed out and not finished at its last commit."""
    last_id: int
    """The largest id ever given to a row, written or not."""
    filter_id: str
    """Id of the filter that the frontier was used with; empty if that had none."""
    spider: str
    """Name of the spider; empty before the first run."""
    import_untidied: bool
    """Whether a queue of Scrapy's was imported and its directory has not been put aside yet."""


@dataclass(frozen=True)
class Batch:
    """What one transaction writes."""

    lanes: dict[str, int]
    """Ids of the lanes that are new, by name."""
    added: dict[int, tuple[int, bytes]]
    """Lane and body of new rows, by id."""
    finished: list[tuple[int, int]]
    """Id and lane of rows to delete."""
    in_flight: int
    last_id: int


class Database:
    """The open file, held exclusively by this process until :meth:`close` (the lock goes with the process).

    Reading and :meth:`write` have a connection each, so two threads may do them at once: a read sees the last complete
    write. While :meth:`write` runs, no other method may. Every method may raise ``sqlite3.Error``: an
    ``OperationalError`` if the disk refuses, any other for damage. :meth:`open` turns it into an error with advice.
    """

    def __init__(self, path: Path, lock: FileLock, writer: sqlite3.Connection, reader: sqlite3.Connection) -> None:
        self.path = path
        self._lock = lock
        self._writer = writer
        self._reader = reader
        self._changes = self._sum_up_at = 0  # changes of counts in the file; the number at which they are summed up

    @classmethod
    def open(cls, path: Path) -> Database:
        """Open *path*, or create it.

        Raises:
            DamagedError: The file contradicts itself, or is no database.
            UnknownFormatError: It was written by a newer version.
            InUseError: Another process has it open.
            UnusableError: It cannot be written, is another program's, or what was saved of it is not in its place yet.

        """
        lock = locked(path)
        connections: list[sqlite3.Connection] = []
        try:
            if unfinished := half_salvaged(path):
                raise unfinished  # noqa: TRY301 - the lock is released below
            size = path.stat().st_size if path.exists() else 0
            if 0 < size < _HEADER_SIZE:  # SQLite takes some of these for a new file
                problem = f"it has {size} bytes, less than the header of a database"
                raise damaged(path, problem)  # noqa: TRY301 - the lock is released below
            connections.append(_connect(path, _WRITER_CACHE_KIB))
            _prepare(connections[0], path)
            connections.append(_connect(path, _READER_CACHE_KIB))
            connections[1].execute("SELECT count(*) FROM state").fetchone()
            return cls(path, lock, *connections)
        except BaseException as error:
            for connection in connections:
                connection.close()
            lock.release()
            if isinstance(error, sqlite3.Error):
                raise _explained(path, error) from error
            raise

    def state(self) -> State:
        """Return what the file says of itself; a value that contradicts its checksum is damage."""
        return read_state(self._reader)

    def begin_run(self, spider: str, *, filter_id: str, last_id: int) -> None:
        """Durably mark a run of *spider* with the filter *filter_id* as under way."""
        with self._transaction():
            self._set_state("clean", 0)
            self._set_state("spider", spider)
            self._set_state("filter", filter_id)
            self._set_state("last_id", last_id)

    def lanes(self) -> list[StoredLane]:
        """Return every lane that has rows, and drop the names of those that have none."""
        counts = read_counts(self._reader)
        found, unused = [], []
        for id_, name, crc in self._reader.execute("SELECT id, key, crc FROM lanes ORDER BY id"):
            if crc != lane_crc(id_, name):
                raise sqlite3.DatabaseError(f"the lane {id_} ({name!r}) contradicts its checksum")
            if rows := counts.pop(id_, 0):
                found.append(StoredLane(id_, name, rows))
            else:
                unused.append((id_,))
        named = {lane.id for lane in found}
        used = self._lanes_in_use()
        if named != used or any(counts.values()):
            raise sqlite3.DatabaseError(
                f"the table of lanes or their counts lack {counted(len(used - named), 'lane')} of requests, and have "
                f"{counted(len(named - used), 'lane')} without any"
            )
        with self._transaction():
            self._writer.executemany("DELETE FROM lanes WHERE id = ?", unused)
            self._sum_up()
        return found

    def lane_id(self, name: str) -> int | None:
        """Return the id of the lane *name*, or None if it has never been written."""
        row = self._reader.execute("SELECT id FROM lanes WHERE key = ?", (name,)).fetchone()
        return None if row is None else int(row[0])

    def largest_ids(self) -> tuple[int, int]:
        """Return the largest id of a row and of a lane, 0 where there is none."""
        row = self._reader.execute("SELECT (SELECT max(id) FROM requests), (SELECT max(id) FROM lanes)").fetchone()
        return row[0] or 0, row[1] or 0

    def newest_before(self, lane: int, before: int) -> Iterator[Row]:
        """Yield the rows of *lane* with ids under *before*, newest first."""
        return self._rows("lane = ? AND id < ? ORDER BY id DESC", lane, before)

    def oldest_after(self, lane: int, after: int) -> Iterator[Row]:
        """Yield the rows of *lane* with ids over *after*, oldest first."""
        return self._rows("lane = ? AND id > ? ORDER BY id", lane, after)

    def next_of_each(
        self, lanes: dict[int, bool], likely: dict[int, int], taken: Container[int], size: int
    ) -> dict[int, Row]:
        """Return one row of each of *lanes*, by lane: the newest of those with a true value, the oldest of others.

        Rows with ids in *taken* do not count. It ends after *size* bytes, so not every lane with rows need be in it.
        *likely* has ids with the lane of each: if that row is one of the lane's, it is the one that is wanted, and the
        index is not asked, which takes 2.3 of 3.7 microseconds a row.
        """
        found: dict[int, Row] = {}
        for row in self._rows_of(likely):
            if row.id not in taken:
                found[row.lane] = row
                size -= len(row.body)
                if size < 0:
                    return found
        others = [lane for lane in lanes if lane not in found]
        if not others:
            return found
        nearest: dict[int, int] = {}
        ids = _padded(others)
        select = f"SELECT lane, id FROM requests WHERE {_one_of('lane', len(ids))}"  # noqa: S608 - our own constants
        with closing(self._reader.execute(select, ids)) as cursor:
            for lane, id_ in cursor:  # from the index alone; within a lane, ids grow
                if id_ not in taken and (lanes[lane] or lane not in nearest):
                    nearest[lane] = id_
        if nearest:
            for row in self._rows_of({id_: lane for lane, id_ in nearest.items()}):
                found[row.lane] = row
                size -= len(row.body)
                if size < 0:
                    break
        return found

    def walk(self, lane: int | None = None, *, after: int = -(2**63)) -> Iterator[list[Row]]:
        """Yield the rows with ids over *after*, all or those of *lane*, in pages and by id.

        The table may be written to in between.
        """
        while True:
            if lane is None:
                rows = list(self._rows("id > ? ORDER BY id LIMIT ?", after, _PAGE))
            else:
                rows = list(self._rows("lane = ? AND id > ? ORDER BY id LIMIT ?", lane, after, _PAGE))
            if not rows:
                return
            yield rows
            after = rows[-1].id

    def write(self, batch: Batch) -> None:
        """Write all of *batch* or nothing, and return only once it would survive a power failure."""
        change: dict[int, int] = {}  # a Counter takes twice as long
        for lane, _ in batch.added.values():
            change[lane] = change.get(lane, 0) + 1
        for _, lane in batch.finished:
            change[lane] = change.get(lane, 0) - 1
        with self._transaction():
            self._add_lanes(batch.lanes)
            self._add_rows([(id_, lane, body) for id_, (lane, body) in batch.added.items()])
            finished = sorted(batch.finished)  # so that each page is looked for once
            deleted = self._writer.executemany("DELETE FROM requests WHERE id = ? AND lane = ?", finished)
            if finished and deleted.rowcount != len(finished):
                raise sqlite3.DatabaseError(
                    f"of {counted(len(finished), 'request')} done, the file had {deleted.rowcount}"
                )
            self._count(change)
            self._set_state("in_flight", batch.in_flight)
            self._set_state("last_id", batch.last_id)

    def move(self, *, lanes: dict[str, int], rows: Iterable[tuple[Row, int]]) -> None:
        """Move *rows* to other lanes, each row to the lane with the id beside it."""
        change: Counter[int] = Counter()
        with self._transaction():
            self._add_lanes(lanes)
            for row, lane in rows:
                self._writer.execute(
                    "UPDATE requests SET lane = ?, body = ? WHERE id = ?",
                    (lane, _seal(row.id, lane, row.body), row.id),
                )
                change[row.lane] -= 1
                change[lane] += 1
            self._count(change)

    def import_rows(self, pages: Iterable[tuple[dict[str, int], list[Row]]]) -> None:
        """Add pages of new lanes and rows in one transaction, and mark the import as done but not tidied up."""
        with self._transaction():
            for lanes, rows in pages:
                self._add_lanes(lanes)
                self._add_rows(rows)
                self._count(Counter(row.lane for row in rows))
            self._set_state("importing", 1)

    def import_bounds(self) -> tuple[int, int]:
        """Return the first free ids for imported rows: first-in-first-out, counting up; last-in-first-out, down.

        Both are smaller than the ids of other rows.
        """
        up = self._reader.execute("SELECT max(id) FROM requests WHERE id < ?", (IMPORTED_FIRST_ID // 2,)).fetchone()[0]
        down = self._reader.execute("SELECT min(id) FROM requests WHERE id >= ?", (IMPORTED_FIRST_ID // 2,)).fetchone()[
            0
        ]
        return IMPORTED_FIRST_ID if up is None else up + 1, min(0, 0 if down is None else down) - 1

    def import_tidied(self) -> None:
        """Note that the imported directory is out of the way."""
        with self._transaction():
            self._set_state("importing", 0)

    def close(self, *, clean: bool) -> None:
        """Close the file; if *clean*, mark the run as cleanly ended."""
        try:
            if clean:
                with self._transaction():
                    self._set_state("clean", 1)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file without marking anything."""
        try:
            self._reader.close()
        finally:
            try:
                self._writer.close()  # the last one, which folds the log into the file
            finally:
                self._lock.release()

    # -- inside --------------------------------------------------------------------------------------------------

    def _rows(self, where: str, *arguments: int) -> Iterator[Row]:
        with closing(self._reader.execute(f"SELECT id, lane, body FROM requests WHERE {where}", arguments)) as cursor:  # noqa: S608 - our own constants
            for id_, lane, sealed in cursor:
                yield Row(id_, lane, unseal(id_, lane, sealed))

    def _rows_of(self, lanes: dict[int, int]) -> Iterator[Row]:
        """Yield those rows with the ids in *lanes* that are in the lane named there."""
        ids = _padded(lanes)
        select = f"SELECT id, lane, body FROM requests WHERE {_one_of('id', len(ids))}"  # noqa: S608 - our own constants
        with closing(self._reader.execute(select, ids)) as cursor:
            for id_, lane, sealed in cursor:
                if lanes[id_] == lane:
                    yield Row(id_, lane, unseal(id_, lane, sealed))

    def _lanes_in_use(self) -> set[int]:
        # One look into the index per lane. SELECT DISTINCT would read all of it.
        found = self._reader.execute(
            "WITH RECURSIVE used (lane) AS (SELECT min(lane) FROM requests UNION ALL "
            "SELECT (SELECT min(lane) FROM requests WHERE lane > used.lane) FROM used WHERE used.lane IS NOT NULL) "
            "SELECT lane FROM used WHERE lane IS NOT NULL"
        )
        return {lane for (lane,) in found}

    def _add_lanes(self, lanes: dict[str, int]) -> None:
        self._writer.executemany(
            "INSERT INTO lanes VALUES (?, ?, ?)", ((id_, name, lane_crc(id_, name)) for name, id_ in lanes.items())
        )

    def _add_rows(self, rows: Iterable[tuple[int, int, bytes]]) -> None:
        self._writer.executemany(
            "INSERT INTO requests VALUES (?, ?, ?)", [(id_, lane, _seal(id_, lane, body)) for id_, lane, body in rows]
        )

    def _count(self, change: Mapping[int, int]) -> None:
        changes = [each for each in change.items() if each[1]]
        if not changes:
            return
        self._changes += len(changes)
        self._add_counts(changes)
        if self._changes > self._sum_up_at:
            self._sum_up()

    def _sum_up(self) -> None:
        counts = [(lane, rows) for lane, rows in read_counts(self._writer).items() if rows]
        self._writer.execute("DELETE FROM counts")
        self._add_counts(counts)
        self._changes = len(counts)
        self._sum_up_at = 2 * len(counts) + _SUM_UP_AFTER  # so a sum takes less than the changes it is for

    def _add_counts(self, counts: list[tuple[int, int]]) -> None:
        (last,) = self._writer.execute("SELECT ifnull(max(id), 0) FROM counts").fetchone()
        body = struct.pack(f"<{2 * len(counts)}q", *chain.from_iterable(counts))
        self._writer.execute("INSERT INTO counts VALUES (?, ?)", (last + 1, _seal(last + 1, 0, body)))

    def _set_state(self, name: str, value: int | str) -> None:
        self._writer.execute(
            "UPDATE state SET value = ?, crc = ? WHERE name = ?", (value, _state_crc(name, value), name)
        )

    def _transaction(self) -> _Transaction:
        return _Transaction(self._writer)


def _one_of(column: str, count: int) -> str:
    return f"{column} IN ({','.join('?' * count)})"


def _padded(values: Collection[int]) -> list[int]:
    # To a power of two, or there would be a statement to compile for each number of values.
    return [*values, *[next(iter(values))] * (2 ** (len(values) - 1).bit_length() - len(values))]


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
                with suppress(sqlite3.Error):  # report the first error, not this one
                    self._connection.execute("ROLLBACK")


def read_counts(connection: sqlite3.Connection) -> dict[int, int]:
    """Return how many rows each lane has in the file of *connection*; sqlite3.Error if that is damaged."""
    counts: dict[int, int] = {}
    for id_, sealed in connection.execute("SELECT id, body FROM counts ORDER BY id"):
        try:
            changes = list(_CHANGE.iter_unpack(unseal(id_, 0, sealed)))
        except (sqlite3.Error, struct.error):
            raise sqlite3.DatabaseError(f"number {id_} of the counts contradicts its checksum") from None
        for lane, by in changes:
            counts[lane] = counts.get(lane, 0) + by
    if any(rows < 0 for rows in counts.values()):
        raise sqlite3.DatabaseError("a lane counts less than no request")
    return counts


def read_state(connection: sqlite3.Connection) -> State:
    """Return the state in the file of *connection*; sqlite3.Error or ValueError if it is damaged."""
    found: dict[str, object] = {}
    for name, value, crc in connection.execute("SELECT name, value, crc FROM state"):
        # The name of the spider has no checksum, for a person to change it when the spider was renamed.
        if name != "spider" and crc != _state_crc(name, value):
            raise sqlite3.DatabaseError(f"the state {name!r} is {value!r}, which contradicts its checksum")
        found[name] = value
    if found.keys() != _FIRST_STATE.keys():
        raise sqlite3.DatabaseError(f"it has the states {sorted(found)} and not {sorted(_FIRST_STATE)}")
    return State(
        clean=bool(found["clean"]),
        in_flight=int(str(found["in_flight"])),
        last_id=int(str(found["last_id"])),
        filter_id=str(found["filter"]),
        spider=str(found["spider"]),
        import_untidied=bool(found["importing"]),
    )


# -- checksums ---------------------------------------------------------------------------------------------------------


def _seal(id_: int, lane: int, body: bytes) -> bytes:
    return _CRC.pack(crc32(body, crc32(_ROW_KEY.pack(id_, lane)))) + body


def unseal(id_: int, lane: int, sealed: bytes) -> bytes:
    """Return the body of the row that is *sealed* in the file; sqlite3.DatabaseError if its checksum is wrong."""
    try:
        body = sealed[_CRC.size :]
        if _CRC.unpack_from(sealed)[0] == crc32(body, crc32(_ROW_KEY.pack(id_, lane))):
            return body
    except (struct.error, TypeError):  # not even of the right types
        pass
    raise sqlite3.DatabaseError(f"the pending request {id_} contradicts its checksum")


def lane_crc(id_: int, name: str) -> int:
    """Return the checksum of a lane."""
    return crc32(f"{id_} {name}".encode())


def _state_crc(name: str, value: object) -> int:
    return crc32(f"{name} {json.dumps(value)}".encode())


# -- opening -----------------------------------------------------------------------------------------------------------


def locked(path: Path) -> FileLock:
    """Return the lock of the file at *path*, held; InUseError if another process has it."""
    lock = FileLock(path.with_name(path.name + ".lock"), thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InUseError(
            path,
            "is in use by another process",
            advice="A job directory belongs to one crawl at a time: wait until that crawl has ended, or give this one "
            "another JOBDIR. (A killed process leaves no lock behind.)",
        ) from None
    except OSError as error:
        raise _cannot_write(path, error) from error
    return lock


def _connect(path: Path, cache_kib: int) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA cache_size = -{cache_kib}")
        # FULL: the log is synced at each commit. With NORMAL a power failure could take back commits whose fingerprints
        # the filter has got since, and each of those is a page that is never fetched.
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION_ID and (application or tables):
        raise UnusableError(
            path,
            f"is an SQLite database, but not one of scrapy-bloom's (application id {application:#x})",
            expected=f"{APPLICATION_ID:#x}",
            advice="Move it out of the job directory, or use another JOBDIR.",
        )
    if version > FORMAT_VERSION:
        advice = "Nothing was changed. Upgrade scrapy-bloom to go on."
        raise UnknownFormatError(path, "format version", version, FORMAT_VERSION, advice=advice)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    if not tables:
        _create(connection)
    elif version < FORMAT_VERSION:
        _upgrade(connection, version)
    with _Transaction(connection):  # finds out whether the file can be written to
        connection.execute("UPDATE state SET value = value WHERE name = 'clean'")
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    if found != _SCHEMA:
        raise damaged(path, f"it holds {sorted(found)}, and not in the shape of format version {FORMAT_VERSION}")


def _create(connection: sqlite3.Connection) -> None:
    with _Transaction(connection):
        for sql in _SCHEMA.values():
            connection.execute(sql)
        for name, value in _FIRST_STATE.items():
            connection.execute("INSERT INTO state VALUES (?, ?, ?)", (name, value, _state_crc(name, value)))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")


def _upgrade(connection: sqlite3.Connection, version: int) -> None:
    """Give a file of version 1 its checksums and largest id, and one of version 1 or 2 the counts of its lanes."""
    connection.create_function("seal", 3, _seal, deterministic=True)
    connection.create_function("lane_crc", 2, lane_crc, deterministic=True)
    with _Transaction(connection):
        if version == 1:
            _upgrade_state(connection)
            connection.execute("UPDATE requests SET body = seal(id, lane, body)")
        connection.execute("ALTER TABLE lanes RENAME TO old_lanes")
        connection.execute(_SCHEMA["lanes"])
        connection.execute(_SCHEMA["counts"])
        body = b"".join([_CHANGE.pack(lane, rows) for lane, rows in _old_counts(connection, version)])
        connection.execute("INSERT INTO counts VALUES (1, ?)", (_seal(1, 0, body),))
        connection.execute("INSERT INTO lanes SELECT id, key, lane_crc(id, key) FROM old_lanes")
        connection.execute("DROP TABLE old_lanes")
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")


def _old_counts(connection: sqlite3.Connection, version: int) -> Iterator[tuple[int, int]]:
    if version == 1:
        yield from connection.execute("SELECT lane, count(*) FROM requests GROUP BY lane")
        return
    for id_, name, rows, crc in connection.execute("SELECT id, key, rows, crc FROM old_lanes"):
        if crc != crc32(f"{id_} {rows} {name}".encode()):
            raise sqlite3.DatabaseError(
                f"the lane {id_} ({name!r}, {counted(rows, 'request')}) contradicts its checksum"
            )
        if rows:
            yield id_, rows


def _upgrade_state(connection: sqlite3.Connection) -> None:
    was = dict(connection.execute("SELECT name, value FROM state"))
    state = {
        **_FIRST_STATE,
        "clean": int(was["clean"]),
        "in_flight": len(json.loads(was["in_flight"])),
        "importing": int(was["importing"]),
        "last_id": connection.execute("SELECT max(0, ifnull(max(id), 0)) FROM requests").fetchone()[0],
        "spider": str(was["spider"]),
    }
    connection.execute("DROP TABLE state")
    connection.execute(_SCHEMA["state"])
    for name, value in state.items():
        connection.execute("INSERT INTO state VALUES (?, ?, ?)", (name, value, _state_crc(name, value)))


def _explained(path: Path, error: sqlite3.Error) -> DamagedError | UnusableError:
    # Operational errors of SQLite are mostly about the disk, except that a table or column is missing.
    if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
        return _cannot_write(path, error)
    return damaged(path, error)


def damaged(path: Path, problem: object) -> DamagedError:
    """Return the error about a damaged file at *path*: what was found, and the ways on."""
    return DamagedError(
        f"{path} (the pending requests of this job)",
        str(problem),
        advice=f"Nothing was repaired. Restore {path.name} and requests.bloom from a backup, both of the same moment; "
        f"or save what is readable with: python -m scrapy_bloom.old.frontier.salvage {path.parent}; or begin again with an "
        "empty JOBDIR. Do not delete this file alone: the duplicate filter would take the pages that were pending in "
        "it for seen, and they would never be fetched.",
    )


def _cannot_write(path: Path, error: object) -> UnusableError:
    return UnusableError(
        f"{path} (the pending requests of this job)",
        f"cannot be opened for writing: {error}",
        advice="Nothing was changed. Check the free space and the permissions of the job directory, then start again.",
    )
