"""Verifies a job: every row, every bit, and whether they belong together; saves what is whole."""

from __future__ import annotations

import pickle
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scrapy_bloom.errors import BloomError, DamagedError, UnusableError, counted
from scrapy_bloom.filter.inspect import inspect_directory
from scrapy_bloom.filter.lock import lock_directory
from scrapy_bloom.job.database import NAME, UNREADABLE, Database, check_format, read_state, unsealed, without_crc
from scrapy_bloom.job.frontier import LaneKey
from scrapy_bloom.job.inspect import DIRECTORY, read_only
from scrapy_bloom.job.records import FORMAT_VERSION, Batch, FeedLength, LaneRow, State

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Iterator

SAVED_AT_ONCE = 10_000
"""Requests in one transaction of the new database."""


def verify_job(jobdir: str | os.PathLike[str]) -> list[str]:
    """Return what is wrong with the job in *jobdir*, in sentences; an empty list if all is well. Changes nothing.

    Raises:
        UnusableError: There is no job of ours, or one of another format.
        InUseError: A crawl runs in it.

    """
    directory = Path(jobdir, DIRECTORY)
    path = directory / NAME
    if not path.is_file():
        raise UnusableError(jobdir, f"holds no job: {path} does not exist", advice="Name the JOBDIR of a crawl.")
    with lock_directory(directory), closing(read_only(path)) as connection:
        filter_ = inspect_directory(directory, thorough=True)
        problems = list(filter_.damage)
        try:
            check_format(connection, path)
            with path.open("rb") as file:
                if file.read(20)[18:] not in {b"", bytes([2, 2])}:  # SQLite's formats for writing and reading
                    problems.append(f"{path} has a damaged header: SQLite would not write to it.")
            problems += [row[0] for row in connection.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
            problems += _wrong_rows(connection)
            state = read_state(connection, path)
        except UNREADABLE as error:
            return [*problems, f"{path} cannot be read: {error}."]
        except BloomError as error:
            return [*problems, str(error)]
        (rows,) = connection.execute("SELECT count(*) FROM request").fetchone()
        if rows != state.pending:
            problems.append(f"{path} has {rows:,} pending requests, and {state.pending:,} were noted.")
        if filter_.watermark > state.last_id:
            problems.append(
                f"{path} is older than the filter: it ends at request {state.last_id:,}, and the filter knows "
                f"{filter_.watermark:,}. Pages between count as seen and are never fetched."
            )
        if state.filter not in {"", filter_.chain_id}:
            problems.append(f"{path} and the layers beside it are of different jobs.")
        return problems


def _wrong_rows(connection: sqlite3.Connection) -> list[str]:
    """Return what is wrong with requests, their lanes and feeds."""
    found: Counter[int] = Counter()
    torn = 0
    for lane, id_, row in connection.execute("SELECT lane, id, body FROM request"):
        found[lane] += 1
        torn += unsealed(lane, id_, row) is None
    problems = [f"{counted(torn, 'pending request')} contradict their checksums."] if torn else []
    lanes = [LaneRow(*row) for row in connection.execute("SELECT * FROM lane")]
    misnamed = sum(_key_of(lane) is None for lane in lanes)
    miscounted = sum(found.pop(lane.id, 0) != lane.rows for lane in lanes) + len(found)
    if misnamed:
        problems.append(f"{counted(misnamed, 'disk queue')} have a slot, priority or kind that contradicts their id.")
    if miscounted:
        problems.append(f"{counted(miscounted, 'disk queue')} have another number of requests than was noted.")
    if any(FeedLength.unpack(*row) is None for row in connection.execute("SELECT * FROM feed")):
        problems.append("The length of a feed contradicts its checksum.")
    bodies = [body for table in ("state", "redo") for (body,) in connection.execute(f"SELECT body FROM {table}")]  # noqa: S608 - our own names
    if any(without_crc(body) is None for body in bodies):
        problems.append("A note or a redo list contradicts its checksum.")
    return problems


def _key_of(lane: LaneRow) -> LaneKey | None:
    """Return the key that belongs to the id of *lane*; None if the row is damaged."""
    if not lane.is_sound():
        return None
    key = LaneKey(lane.slot, lane.priority, bool(lane.is_start), lane.kind)
    return key if key.id() == lane.id else None


def fix_job(jobdir: str | os.PathLike[str]) -> tuple[int, int]:
    """Write every request that SQLite still reads, and that is whole, into a new database; keep the old one.

    The new database belongs to the filter as it is: pages that the filter knows and the database lacks are given up.
    Return how many requests were saved, and how many of those noted were lost.

    Raises:
        BloomError: The job is in use, of another format, or its filter is damaged, too; or nothing at all can be read.

    """
    directory = Path(jobdir, DIRECTORY)
    path, new_path = directory / NAME, directory / f"{NAME}.new"
    if not path.is_file():
        raise UnusableError(jobdir, f"holds no job: {path} does not exist", advice="Name the JOBDIR of a crawl.")
    with lock_directory(directory), closing(read_only(path)) as old:
        filter_ = inspect_directory(directory)
        if filter_.damage:
            advice = "Restore it from a backup, or delete the layer files: then pages are fetched again."
            raise UnusableError(directory, f"has a damaged filter: {filter_.damage[0]}", advice=advice)
        state = _state(old, path)
        _delete(new_path)
        with closing(Database(new_path)) as new:
            lanes = _lanes(old)
            last_id, saved = max(state.last_id if state else 0, filter_.watermark), 0
            batch = Batch()
            for lane_id, id_, body in _whole_rows(old):
                key = lanes.get(lane_id) or _key_from(body)
                batch.lanes[key.id()] = LaneRow(key.id(), *key, 0)
                batch.added[id_] = (key.id(), body)
                last_id, saved = max(last_id, id_), saved + 1
                if len(batch.added) == SAVED_AT_ONCE:
                    new.write(batch)
                    batch = Batch()
            if state is None and not saved:
                problem = "cannot be read: no request can be saved"
                raise UnusableError(path, problem, advice="Restore it from a backup, or begin anew in another JOBDIR.")
            noted = state or State()
            batch.state = replace(noted, filter=filter_.chain_id, last_id=last_id, pending=0, clean=False)
            new.write(batch)
            new.writer.execute("BEGIN")
            for table in ("state", "feed", "redo", "kind", "failed", "figures"):
                _copy(old, new.writer, table)
            new.writer.execute("COMMIT")
    for suffix in ("-wal", "-shm", ""):  # in this order: the log of another database must not stay beside a new one
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.replace(file.with_name(f"{NAME}.damaged{suffix}"))
    new_path.replace(path)
    return saved, max(0, noted.pending - saved)


def _state(connection: sqlite3.Connection, path: Path) -> State | None:
    """Return the state of the job, whatever SQLite's header says of its format; None if it cannot be read."""
    with suppress(*UNREADABLE, DamagedError, TypeError):
        state = read_state(connection, path)
        if state.format == FORMAT_VERSION and state != State():
            return state
    with suppress(*UNREADABLE, DamagedError):
        check_format(connection, path)
        return read_state(connection, path)
    return None


def _lanes(connection: sqlite3.Connection) -> dict[int, LaneKey]:
    """Return the keys of the lanes that are whole."""
    keys = {}
    with suppress(*UNREADABLE):
        for row in connection.execute("SELECT id, slot, priority, is_start, kind, rows FROM lane"):
            if (key := _key_of(LaneRow(*row))) is not None:
                keys[key.id()] = key
    return keys


def _whole_rows(connection: sqlite3.Connection) -> Iterator[tuple[int, int, bytes]]:
    """Yield each whole request once: read forwards and, from the other end, backwards, up to what cannot be read."""
    seen: set[int] = set()
    for order in ("lane, id", "lane DESC, id DESC"):
        with suppress(*UNREADABLE):
            for lane_id, id_, row in connection.execute(f"SELECT lane, id, body FROM request ORDER BY {order}"):  # noqa: S608 - one of two
                body = unsealed(lane_id, id_, row)
                if body is not None and id_ not in seen:
                    seen.add(id_)
                    yield lane_id, id_, body


def _key_from(body: bytes) -> LaneKey:
    """Return a lane for a request whose own is damaged."""
    attributes = pickle.loads(body)  # noqa: S301 - as every request of the job
    return LaneKey(urlsplit(attributes["url"]).hostname or "", attributes.get("priority", 0))


def _copy(old: sqlite3.Connection, new: sqlite3.Connection, table: str) -> None:
    with suppress(*UNREADABLE):
        for row in old.execute(f"SELECT * FROM {table}"):  # noqa: S608 - our own names
            if FeedLength.unpack(*row) if table == "feed" else table not in {"state", "redo"} or without_crc(row[-1]):
                new.execute(f"INSERT OR IGNORE INTO {table} VALUES ({','.join('?' * len(row))})", row)  # noqa: S608 - places


def _delete(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
