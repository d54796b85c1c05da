"""The database of a job, ``requests.bloom/job.sqlite``: its tables, and the one transaction that writes them.

``docs/format.md`` describes the tables. Two connections, so that the crawl can read while a thread writes.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from scrapy_bloom.errors import DamagedError, UnusableError
from scrapy_bloom.frontier.order import LaneRow
from scrapy_bloom.job import changes
from scrapy_bloom.job.records import Batch, FeedLength, FeedState, Figures, JobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

logger = logging.getLogger(__name__)

NAME = "job.sqlite"
APPLICATION_ID, FORMAT_VERSION = 0x53624A62, 2  # "SbJb"
LEAST_FREE = 2**20
"""Bytes. If the disk has fewer free, errors of SQLite are taken for those of a full disk."""
AT_ONCE = 400
"""The most rows in one statement. The thread releases the GIL once for each statement, and waits to get it back."""
FIGURES_KEPT = 4_000
"""Rows of figures at which every other one is left out."""
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
"""What sqlite3 raises over a damaged file: also while it decodes its own message about that."""

SCHEMA = (
    """
CREATE TABLE IF NOT EXISTS lane
    (id INTEGER PRIMARY KEY, slot TEXT, priority INTEGER, is_start INTEGER, kind TEXT, rows INTEGER);
CREATE TABLE IF NOT EXISTS request (lane INTEGER, id INTEGER, body BLOB, PRIMARY KEY (lane, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS redo (first_id INTEGER, last_id INTEGER, body BLOB);
CREATE TABLE IF NOT EXISTS note (topic TEXT, key TEXT, body BLOB, PRIMARY KEY (topic, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS failed
    (id INTEGER PRIMARY KEY AUTOINCREMENT, url TEXT, host TEXT, reason TEXT, time REAL, body BLOB);
CREATE TABLE IF NOT EXISTS figures
    (time REAL PRIMARY KEY, run INTEGER, urls INTEGER, duplicates INTEGER, pages INTEGER, failures INTEGER,
    http_errors INTEGER, spider_errors INTEGER, pending INTEGER, nbytes INTEGER, expected_lost REAL);
"""
    + changes.SCHEMA
)


class Database:
    """The database of one job: a writer for the thread that commits, a reader for the crawl.

    What reads raises DamagedError if SQLite cannot, a checksum is wrong, or numbers do not add up.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open or create the file at *path*; if *read_only*, see it as it is now, and change nothing.

        Raises UnusableError, too, if it belongs to another program, or has a later format.
        """
        self.path = path
        self._is_gone = False
        self._connections: list[sqlite3.Connection] = []
        try:
            if not read_only:
                finish_repair(path)
            for _ in "r" if read_only else "rw":
                self._connections.append(connect(path, read_only=read_only))
            self.reader, self.writer = self._connections[0], self._connections[-1]
            if read_only:
                self.reader.execute("BEGIN")
            check_format(self.reader, path)
            if not read_only:
                self.writer.executescript(
                    "PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; "
                    f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT_VERSION}; {SCHEMA}"
                )
                self.writer.execute("DELETE FROM lane WHERE rows = 0")
            self.state = self._read_state()
        except UNREADABLE as error:
            self.close()
            if isinstance(error, sqlite3.OperationalError) and shutil.disk_usage(path.parent).free < LEAST_FREE:
                advice = "Nothing is damaged. Free some space, or move the job directory to another disk."
                raise UnusableError(path, f"is on a disk that is full ({error})", advice=advice) from error
            raise damaged(path, error) from error
        except BaseException:
            self.close()
            raise

    def write(self, batch: Batch, *, redo_until: int = 0) -> None:
        """Write all of *batch* or nothing; it survives a power failure once this returns.

        Fingerprints up to the commit *redo_until* leave the redo list: their bits are synced.
        """
        self.write_all([batch], redo_until=redo_until)

    def write_all(self, batches: Iterable[Batch], *, redo_until: int = 0) -> None:
        """Write all of *batches* in one transaction, or nothing. Each batch is made when the one before is written."""
        self._check_that_it_is_there()
        state = self.state
        run = self.writer.execute
        run("BEGIN IMMEDIATE")
        try:
            for batch in batches:
                state = self._write(batch, state, redo_until)
            run("COMMIT")
        except BaseException:
            if self.writer.in_transaction:
                run("ROLLBACK")
            raise
        self.state = state
        if state.clean:  # the last of a run: the disk gets back what was taken by requests that are done
            self.writer.executescript("PRAGMA incremental_vacuum")  # execute() would give back one page

    def _write(self, batch: Batch, before: JobState, redo_until: int) -> JobState:
        """Write *batch* within a transaction, *before* which the job was in that state; return the state after it."""
        for feed in batch.feeds:
            with suppress(FileNotFoundError, PermissionError), Path(feed.path).open("rb+") as file:
                os.fsync(file.fileno())  # unless somebody has moved it away, or put it into an archive
        run = self.writer.execute
        state = replace(batch.state, pending=before.pending + self._write_requests(batch))
        self._write_notes(batch, state)
        self._insert("INSERT INTO failed (url, host, reason, time, body) VALUES", batch.failed)
        self.writer.executemany("DELETE FROM failed WHERE id = ?", [(id_,) for id_ in batch.put_back])
        if batch.figures:
            outdated = [(time,) for time in batch.outdated_figures]
            self.writer.executemany("DELETE FROM figures WHERE time = ?", outdated)
            self._insert("INSERT OR REPLACE INTO figures VALUES", batch.figures)
            self._thin_figures()
        changes.write_rows(self.writer, batch.pages, batch.items)
        run("DELETE FROM redo WHERE last_id <= ?", (redo_until,))
        if batch.fingerprints or state.last_id > before.last_id:  # without gaps: a gap says the filter is older
            prints = b"".join(
                len(fingerprint).to_bytes(2, "little") + fingerprint for fingerprint in batch.fingerprints
            )
            run("INSERT INTO redo VALUES (?, ?, ?)", sealed(before.last_id, state.last_id, prints))
        return state

    def _check_that_it_is_there(self) -> None:
        """Log once that the file was deleted, if it was: SQLite goes on writing to it."""
        if not self._is_gone and not self.path.exists():
            self._is_gone = True
            logger.error(
                "%s was deleted during the crawl. The crawl goes on and writes its feeds; no other run can resume it",
                self.path,
            )

    def _write_requests(self, batch: Batch) -> int:
        """Insert new requests, and delete the ones that are done; return how many more are pending."""
        run = self.writer.execute
        change: dict[int, int] = {}
        for lane, _ in batch.added.values():
            change[lane] = change.get(lane, 0) + 1
        for lane, _ in batch.done:
            change[lane] = change.get(lane, 0) - 1
        self._insert("INSERT OR IGNORE INTO lane VALUES", [(lane.id, *lane.key, 0) for lane in batch.lanes.values()])
        rows = sorted(sealed(lane, id_, body) for id_, (lane, body) in batch.added.items())
        self._insert("INSERT INTO request VALUES", rows)
        for some in _slices(sorted(batch.done)):
            run(f"DELETE FROM request WHERE (lane, id) IN (VALUES {_places(some)})", _flat(some))  # noqa: S608 - places
        for some in _slices([(lane, by) for lane, by in change.items() if by]):
            run(
                f"WITH changed(id, by) AS (VALUES {_places(some)}) "  # noqa: S608 - only places
                "UPDATE lane SET rows = rows + changed.by FROM changed WHERE lane.id = changed.id",
                _flat(some),
            )
        return sum(change.values())

    def _write_notes(self, batch: Batch, state: JobState) -> None:
        """Write the notes of *batch* and *state*; delete those without a body, and those of finished feeds."""
        notes = [("feed", feed.key, _packed(feed)) for feed in batch.feeds if not feed.is_finished]
        notes += [(topic, key, body) for (topic, key), body in batch.notes.items() if body]
        notes += [("forgotten", fingerprint.hex(), b"forgotten") for fingerprint in batch.forgotten]
        outdated = [topic_and_key for topic_and_key, body in batch.notes.items() if not body]
        outdated += [("feed", feed.key) for feed in batch.feeds if feed.is_finished]
        self.writer.executemany("DELETE FROM note WHERE topic = ? AND key = ?", outdated)
        self._insert("REPLACE INTO note VALUES", [*(sealed(*note) for note in notes), _noted(state)])

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
        """Return id and body of up to *most* rows of *lane* with ids between *after* and *before*, in order."""
        order = "DESC" if newest_first else "ASC"
        query = f"SELECT id, body FROM request WHERE lane = ? AND id > ? AND id < ? ORDER BY id {order} LIMIT ?"  # noqa: S608 - one of two
        rows = self.select(query, lane, after, before, most)
        if not rows:
            raise damaged(self.path, "pending requests are missing")
        return [(id_, self._whole(lane, id_, row)) for id_, row in rows]

    def _whole(self, first_column: object, second_column: object, row: object) -> bytes:
        if (body := unsealed(first_column, second_column, row)) is None:
            raise damaged(self.path, f"what it holds at {first_column} {second_column} contradicts its checksum")
        return body

    def select(self, query: str, *values: object) -> list[Any]:
        """Return the rows that *query* finds."""
        try:
            return self.reader.execute(query, values).fetchall()
        except UNREADABLE as error:
            raise damaged(self.path, error) from error

    def requests(self) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield lane, id and body of every pending request; None as the body of one that is damaged."""
        try:
            for lane, id_, row in self.reader.execute("SELECT lane, id, body FROM request"):
                yield lane, id_, unsealed(lane, id_, row)
        except UNREADABLE as error:
            raise damaged(self.path, error) from error

    def lanes(self) -> list[LaneRow]:
        """Return the lanes that have rows, as many as the last commit noted."""
        lanes = [LaneRow(*row) for row in self.select("SELECT * FROM lane WHERE rows != 0")]
        if not all(lane.is_sound() for lane in lanes):
            raise damaged(self.path, "a lane has values that none can have")
        if (total := sum(lane.rows for lane in lanes)) != self.state.pending:
            raise damaged(self.path, f"its lanes have {total:,} requests, and {self.state.pending:,} were noted")
        return lanes

    def redo(self) -> list[tuple[int, list[bytes]]]:
        """Return the redo list: of each commit the last id before it, and its fingerprints."""
        commits = []
        for first_id, last_id, row in self.select("SELECT * FROM redo ORDER BY first_id"):
            packed, prints, at = self._whole(first_id, last_id, row), [], 0
            while at < len(packed):
                length = int.from_bytes(packed[at : at + 2], "little")
                prints.append(packed[at + 2 : at + 2 + length])
                at += 2 + length
            commits.append((first_id, prints))
        return commits

    def notes(self, topic: str) -> dict[str, bytes]:
        """Return the notes on *topic* by key. Topics: ``state feed kind pages call forgotten``."""
        rows = self.select("SELECT key, body FROM note WHERE topic = ?", topic)
        return {key: self._whole(topic, key, row) for key, row in rows}

    def last_figures(self) -> Figures | None:
        """Return the newest figures; None if there are none."""
        rows = self.select("SELECT * FROM figures ORDER BY time DESC LIMIT 1")
        return Figures(*rows[0]) if rows and all(isinstance(value, (int, float)) for value in rows[0]) else None

    def pages(self) -> dict[str, int]:
        """Return how many pages each host has had."""
        return {host: int(body) for host, body in self.notes("pages").items()}

    def count_failed(self) -> int:
        """Return how many requests are listed as failed."""
        return int(self.select("SELECT count(*) FROM failed")[0][0])

    def feeds(self) -> list[FeedLength]:
        """Return the feed files as they were at the last commit."""
        return [_unpacked(body) for body in self.notes("feed").values()]

    def _read_state(self) -> JobState:
        body = self.notes("state").get("job")
        if body is None and self.select("SELECT 1 FROM request LIMIT 1"):
            raise damaged(self.path, "it has requests and no state")
        return JobState() if body is None else JobState(**json.loads(body))

    def clear_requests(self, key: str, note: bytes) -> None:
        """Delete all requests, and put *note* on the state under *key*, which says where the requests are now."""
        state = replace(self.state, pending=0, in_flight=0, clean=True)
        self.writer.execute("BEGIN IMMEDIATE")
        self.writer.execute("DELETE FROM request")
        self.writer.execute("DELETE FROM lane")
        self._insert("REPLACE INTO note VALUES", [sealed("state", key, note), _noted(state)])
        self.writer.execute("COMMIT")
        self.state = state

    def set_mark(self, key: str, note: bytes) -> None:
        """Put *note* on the state under *key*; b"" takes the note away."""
        batch = Batch(state=self.state)
        batch.note("state", {key: note})
        self.write(batch)

    def close(self) -> None:
        """Close both connections; closing twice is harmless."""
        for connection in self._connections:
            connection.close()


def check_format(connection: sqlite3.Connection, path: Path) -> None:
    """Raise UnusableError if *path* is another program's or of another format, DamagedError if its tables differ."""
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
        raise damaged(path, "its tables are not those of this format")


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Return a connection to the file at *path*. A read-only one changes nothing, and leaves no file beside it."""
    if not read_only:
        return sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    has_log = path.with_name(f"{path.name}-wal").exists()
    uri = f"{path.absolute().as_uri()}?mode=ro" + ("" if has_log else "&immutable=1")
    return sqlite3.connect(uri, uri=True, isolation_level=None)


def repaired(path: Path) -> Path:
    """Return where a complete new database waits to take the place of the damaged one at *path*."""
    return path.with_name(f"{path.name}.repaired")


def finish_repair(path: Path) -> None:
    """Put the :func:`repaired` database at *path*, if there is one, and keep the damaged one. A kill harms nothing."""
    if not repaired(path).exists():
        return
    for suffix in ("-wal", "-shm", ""):  # in this order: the log of another database must not stay beside a new one
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.replace(path.with_name(f"{path.name}.damaged{suffix}"))
    repaired(path).replace(path)


def damaged(path: Path, problem: object) -> DamagedError:
    """Return the error about the database at *path*, with advice."""
    jobdir = path.parent.parent
    advice = f"Restore {path.parent} from a backup; or save every request that is whole with: "
    return DamagedError(path, str(problem), advice=f"{advice}scrapy bloom verify --fix {jobdir}")


def sealed(first_column: object, second_column: object, body: bytes) -> tuple[Any, Any, bytes]:
    """Return the row of *body* under two other columns: behind a CRC-32 of all three."""
    checksum = crc32(body, crc32(f"{first_column} {second_column}".encode()))
    return first_column, second_column, checksum.to_bytes(4, "little") + body


def unsealed(first_column: object, second_column: object, stored: object) -> bytes | None:
    """Return the body that was :func:`sealed`; None if *stored* is damaged, or not what belongs in this place."""
    if not isinstance(stored, bytes) or stored != sealed(first_column, second_column, stored[4:])[2]:
        return None
    return stored[4:]


def _packed(feed: FeedLength) -> bytes:
    """Return the body of a feed's note: a line of JSON, and the bytes that the commit appends."""
    feeds = {name: (*state[:3], state.exporter.hex()) for name, state in feed.feeds.items()}
    return json.dumps([*feed[:5], feeds, feed.end.hex()]).encode() + b"\n" + feed.data


def _unpacked(body: bytes) -> FeedLength:
    line, _, data = body.partition(b"\n")
    *fields, feeds, end = json.loads(line)
    states = {name: FeedState._make([*state[:3], bytes.fromhex(state[3])]) for name, state in feeds.items()}
    return FeedLength._make([*fields, states, data, bytes.fromhex(end), False])


def _noted(state: JobState) -> tuple[Any, Any, bytes]:
    return sealed("state", "job", json.dumps(asdict(state)).encode())


def _slices(rows: Sequence[Sequence[Any]]) -> Iterator[Sequence[Sequence[Any]]]:
    return (rows[at : at + AT_ONCE] for at in range(0, len(rows), AT_ONCE))


def _places(rows: Sequence[Sequence[Any]]) -> str:
    return ",".join(["(" + ",".join("?" * len(rows[0])) + ")"] * len(rows))


def _flat(rows: Iterable[Sequence[Any]]) -> list[Any]:
    return [value for row in rows for value in row]
