"""The database of a job, ``requests.bloom/job.sqlite``: its tables, and the one transaction that writes them.

``docs/format.md`` describes the tables. Two connections, so that the crawl can read while a thread writes.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from scrapy_bloom.errors import DamagedError, UnusableError
from scrapy_bloom.job.records import FORMAT_VERSION, Batch, FeedLength, Figures, LaneRow, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

NAME = "job.sqlite"
APPLICATION_ID = 0x53624A62  # "SbJb"
AT_ONCE = 400
"""Rows bound to one statement: the thread gives up the GIL once a statement, and gets it back late."""
FIGURES_KEPT = 4_000
"""Rows of figures at which every other one is left out."""
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
"""What sqlite3 raises over a damaged file: also while it decodes its own message about that."""
_PLACE = struct.Struct("<qq")

SCHEMA = """
CREATE TABLE IF NOT EXISTS lane
    (id INTEGER PRIMARY KEY, slot TEXT, priority INTEGER, is_start INTEGER, kind TEXT, rows INTEGER);
CREATE TABLE IF NOT EXISTS request (lane INTEGER, id INTEGER, body BLOB, PRIMARY KEY (lane, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, body BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS redo (id INTEGER PRIMARY KEY, first_id INTEGER, last_id INTEGER, body BLOB);
CREATE TABLE IF NOT EXISTS feed (path TEXT PRIMARY KEY, body BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS kind (key TEXT PRIMARY KEY, body BLOB);
CREATE TABLE IF NOT EXISTS failed
    (id INTEGER PRIMARY KEY AUTOINCREMENT, url TEXT, host TEXT, reason TEXT, time REAL, body BLOB);
CREATE TABLE IF NOT EXISTS figures
    (time REAL PRIMARY KEY, run INTEGER, urls INTEGER, duplicates INTEGER, pages INTEGER, failures INTEGER,
    http_errors INTEGER, spider_errors INTEGER, pending INTEGER, nbytes INTEGER, expected_lost REAL);
"""


class Database:
    """The database of one job: a writer for the thread that commits, a reader for the crawl."""

    def __init__(self, path: Path) -> None:
        """Open or create the file at *path*.

        Raises:
            DamagedError: SQLite cannot read it, or a checksum is wrong.
            UnusableError: It belongs to another program, or has a later format.

        """
        self.path = path
        self._connections: list[sqlite3.Connection] = []
        try:
            self.writer, self.reader = self._connect(), self._connect()
            check_format(self.writer, path)
            self.writer.executescript(
                f"PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA application_id={APPLICATION_ID}; "
                f"PRAGMA user_version={FORMAT_VERSION}; {SCHEMA}"
            )
            self.writer.execute("DELETE FROM lane WHERE rows = 0")
            self.state = read_state(self.reader, path)
        except UNREADABLE as error:
            self.close()
            raise damaged(path, error) from error
        except BaseException:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
        self._connections.append(connection)
        return connection

    def write(self, batch: Batch, *, redo_until: int = 0) -> None:
        """Write all of *batch* or nothing; it survives a power failure once this returns.

        Fingerprints up to the commit *redo_until* leave the redo list: their bits are synced.
        """
        for feed in batch.feeds:
            with suppress(FileNotFoundError), Path(feed.path).open("rb+") as file:  # or somebody has moved it away
                os.fsync(file.fileno())
        run = self.writer.execute
        change: dict[int, int] = {}
        for lane, _ in batch.added.values():
            change[lane] = change.get(lane, 0) + 1
        for lane, _ in batch.done:
            change[lane] = change.get(lane, 0) - 1
        pending = self.state.pending + sum(change.values())
        state = replace(batch.state, pending=pending)
        run("BEGIN IMMEDIATE")
        try:
            self._insert("INSERT OR IGNORE INTO lane VALUES", [(*lane[:-1], 0) for lane in batch.lanes.values()])
            rows = sorted((lane, id_, _sealed(lane, id_, body)) for id_, (lane, body) in batch.added.items())
            self._insert("INSERT INTO request VALUES", rows)
            for some in _slices(sorted(batch.done)):
                places = _places(some)
                run(f"DELETE FROM request WHERE (lane, id) IN (VALUES {places})", _flat(some))  # noqa: S608 - places
            for some in _slices([(lane, by) for lane, by in change.items() if by]):
                run(
                    f"WITH changed(id, by) AS (VALUES {_places(some)}) "  # noqa: S608 - only places
                    "UPDATE lane SET rows = rows + changed.by FROM changed WHERE lane.id = changed.id",
                    _flat(some),
                )
            self._insert("INSERT OR REPLACE INTO feed VALUES", [(feed.path, feed.pack()) for feed in batch.feeds])
            for feed in batch.feeds:
                if feed.is_finished:
                    run("DELETE FROM feed WHERE path = ?", (feed.path,))
            self._insert(
                "INSERT OR REPLACE INTO kind VALUES", [(key, with_crc(body)) for key, body in batch.kinds.items()]
            )
            self._insert("INSERT INTO failed (url, host, reason, time, body) VALUES", batch.failed)
            self._insert("INSERT OR REPLACE INTO figures VALUES", batch.figures)
            if batch.figures:
                self._thin_figures()
            run("DELETE FROM redo WHERE last_id <= ?", (redo_until,))
            if batch.fingerprints:
                prints = b"".join(len(each).to_bytes(2, "little") + each for each in batch.fingerprints)
                redo = (self.state.last_id, state.last_id, with_crc(prints))
                run("INSERT INTO redo (first_id, last_id, body) VALUES (?, ?, ?)", redo)
            notes = {**batch.notes, "job": json.dumps(asdict(state)).encode()}
            self._insert("INSERT OR REPLACE INTO state VALUES", [(key, with_crc(note)) for key, note in notes.items()])
            run("COMMIT")
        except BaseException:
            if self.writer.in_transaction:
                run("ROLLBACK")
            raise
        self.state = state

    def note_feed(self, feed: FeedLength) -> None:
        """Note *feed* alone. Raises OSError if that cannot be written."""
        try:
            self.write(Batch(feeds=[feed], state=self.state))
        except sqlite3.OperationalError as error:
            raise OSError(str(error)) from error

    def _insert(self, insert: str, rows: Sequence[Sequence[Any]]) -> None:
        for some in _slices(rows):
            self.writer.execute(f"{insert} {_places(some)}", _flat(some))

    def _thin_figures(self) -> None:
        """Keep the figures of a long crawl few, and evenly spread: leave out every other row."""
        (count,) = self.writer.execute("SELECT count(*) FROM figures").fetchone()
        if count > FIGURES_KEPT:
            self.writer.execute(
                "DELETE FROM figures WHERE time IN (SELECT time FROM "
                "(SELECT time, row_number() OVER (ORDER BY time) AS place FROM figures) WHERE place % 2 = 0)"
            )

    def rows(self, lane: int, after: int, before: int, *, newest_first: bool, most: int) -> list[tuple[int, bytes]]:
        """Return id and body of up to *most* rows of *lane* with ids between *after* and *before*, in order.

        Raises:
            DamagedError: A row contradicts its checksum, there is none, or SQLite cannot read the file.

        """
        order = "DESC" if newest_first else "ASC"
        query = f"SELECT id, body FROM request WHERE lane = ? AND id > ? AND id < ? ORDER BY id {order} LIMIT ?"  # noqa: S608 - one of two
        found = self._select(query, lane, after, before, most)
        rows = [
            (id_, row[4:])
            for id_, row in found
            if type(row) is bytes
            and crc32(memoryview(row)[4:], crc32(_PLACE.pack(lane, id_))).to_bytes(4, "little") == row[:4]
        ]
        if len(rows) < len(found) or not found:
            problem = "a pending request contradicts its checksum" if found else "pending requests are missing"
            raise DamagedError(self.path, problem, advice=advice(self.path))
        return rows

    def _select(self, query: str, *values: object) -> list[Any]:
        try:
            return self.reader.execute(query, values).fetchall()
        except UNREADABLE as error:
            raise damaged(self.path, error) from error

    def bodies(self) -> Iterator[bytes]:
        """Yield the body of every row that is whole."""
        try:
            for lane, id_, row in self.reader.execute("SELECT lane, id, body FROM request"):
                if (body := unsealed(lane, id_, row)) is not None:
                    yield body
        except UNREADABLE as error:
            raise damaged(self.path, error) from error

    def lanes(self) -> list[LaneRow]:
        """Return the lanes that have rows.

        Raises:
            DamagedError: Their rows do not add up to what the last commit noted.

        """
        found = [LaneRow(*row) for row in self._select("SELECT * FROM lane WHERE rows != 0")]
        if not all(lane.is_sound() for lane in found):
            raise DamagedError(self.path, "a lane has values that none can have", advice=advice(self.path))
        if (total := sum(lane.rows for lane in found)) != self.state.pending:
            problem = f"its lanes have {total:,} requests, and {self.state.pending:,} were noted"
            raise DamagedError(self.path, problem, advice=advice(self.path))
        return found

    def redo(self) -> list[tuple[int, list[bytes]]]:
        """Return the redo list: of each commit the last id before it, and its fingerprints. Skips damaged rows."""
        commits = []
        for first_id, body in self._select("SELECT first_id, body FROM redo ORDER BY id"):
            packed, prints, at = without_crc(body), [], 0
            while packed is not None and at < len(packed):
                length = int.from_bytes(packed[at : at + 2], "little")
                prints.append(packed[at + 2 : at + 2 + length])
                at += 2 + length
            if packed is not None and isinstance(first_id, int):
                commits.append((first_id, prints))
        return commits

    def note(self, key: str) -> bytes | None:
        """Return the note *key* of the last commit; None if there is none, or it contradicts its checksum."""
        found = self._select("SELECT body FROM state WHERE key = ?", key)
        return without_crc(found[0][0]) if found else None

    def last_figures(self) -> Figures | None:
        """Return the newest figures; None if there are none."""
        found = self._select("SELECT * FROM figures ORDER BY time DESC LIMIT 1")
        return Figures(*found[0]) if found and all(isinstance(each, (int, float)) for each in found[0]) else None

    def kinds(self) -> dict[str, bytes]:
        """Return what is known of each kind of URLs, by its key."""
        rows = self.reader.execute("SELECT key, body FROM kind")
        return {key: body for key, stored in rows if (body := without_crc(stored)) is not None}

    def feeds(self) -> list[FeedLength]:
        """Return the feed files, as long as they were at the last commit. DamagedError if that is damaged."""
        found = [FeedLength.unpack(*row) for row in self._select("SELECT * FROM feed")]
        if None in found:
            raise DamagedError(self.path, "the length of a feed contradicts its checksum", advice=advice(self.path))
        return [feed for feed in found if feed is not None]

    def clear_requests(self) -> None:
        """Delete all requests: they are somewhere else now."""
        self.writer.execute("BEGIN IMMEDIATE")
        self.writer.execute("DELETE FROM request")
        self.writer.execute("DELETE FROM lane")
        self.state = replace(self.state, pending=0, in_flight=0, clean=True)
        self._insert(
            "INSERT OR REPLACE INTO state VALUES", [("job", with_crc(json.dumps(asdict(self.state)).encode()))]
        )
        self.writer.execute("COMMIT")

    def close(self) -> None:
        """Close both connections; closing twice is harmless."""
        for connection in self._connections:
            connection.close()


def check_format(connection: sqlite3.Connection, path: Path) -> None:
    """Raise UnusableError if the file at *path* is no database of a job in our format, DamagedError if it was one."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    tables = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")}
    if tables and application != APPLICATION_ID:
        raise UnusableError(path, "is not the database of a job", advice="Move it away, or use another JOBDIR.")
    if tables and version != FORMAT_VERSION:
        raise UnusableError(
            path,
            f"has format version {version}, and this scrapy-bloom knows {FORMAT_VERSION}",
            advice="Go on with the scrapy-bloom that began the job, or begin anew in another JOBDIR.",
        )
    if not tables <= {sql.strip().replace("IF NOT EXISTS ", "") for sql in SCHEMA.split(";")}:
        raise DamagedError(path, "its tables are not those of this format", advice=advice(path))


def read_state(connection: sqlite3.Connection, path: Path) -> State:
    """Return the state in the database at *path*; DamagedError if it contradicts its checksum, or is gone."""
    found = connection.execute("SELECT body FROM state WHERE key = 'job'").fetchone()
    if found is None:
        if connection.execute("SELECT 1 FROM request LIMIT 1").fetchone() is None:
            return State()
        raise DamagedError(path, "it has requests and no state", advice=advice(path))
    body = without_crc(found[0])
    if body is None:
        raise DamagedError(path, "its state contradicts its checksum", advice=advice(path))
    return State(**json.loads(body))


def damaged(path: Path, error: Exception) -> DamagedError:
    """Return *error* as ours, with advice."""
    return DamagedError(path, str(error), advice=advice(path))


def advice(path: Path) -> str:
    """Say what to do about the damaged database at *path*."""
    jobdir = path.parent.parent
    return (
        f"Restore {path.parent} from a backup; or save every request that is whole with: "
        f"scrapy bloom verify --fix {jobdir}"
    )


def _sealed(lane: int, id_: int, body: bytes) -> bytes:
    """Return *body* as it is stored in row *id_* of *lane*: behind a CRC-32 of all three."""
    return crc32(body, crc32(_PLACE.pack(lane, id_))).to_bytes(4, "little") + body


def unsealed(lane: int, id_: int, row: object) -> bytes | None:
    """Return the body in *row*; None if that is not what was stored in this place."""
    if not isinstance(row, bytes) or row != _sealed(lane, id_, row[4:]):
        return None
    return row[4:]


def with_crc(body: bytes) -> bytes:
    """Return *body* behind its CRC-32."""
    return crc32(body).to_bytes(4, "little") + body


def without_crc(stored: object) -> bytes | None:
    """Return what :func:`with_crc` was given; None if *stored* is damaged."""
    if not isinstance(stored, bytes) or stored != with_crc(stored[4:]):
        return None
    return stored[4:]


def _slices(rows: Sequence[Sequence[Any]]) -> Iterator[Sequence[Sequence[Any]]]:
    return (rows[at : at + AT_ONCE] for at in range(0, len(rows), AT_ONCE))


def _places(rows: Sequence[Sequence[Any]]) -> str:
    return ",".join(["(" + ",".join("?" * len(rows[0])) + ")"] * len(rows))


def _flat(rows: Iterable[Sequence[Any]]) -> list[Any]:
    return [value for row in rows for value in row]
