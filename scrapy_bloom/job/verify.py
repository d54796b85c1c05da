"""Verifies a job: every row, every bit, and whether they belong together; saves what is whole."""

from __future__ import annotations

import pickle
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_bloom.errors import BloomError, DamagedError, UnusableError, counted
from scrapy_bloom.filter.inspect import inspect_directory
from scrapy_bloom.filter.lock import lock_directory
from scrapy_bloom.frontier.order import LaneKey, LaneRow, lane_of_stored
from scrapy_bloom.job.consistency import check_same_moment
from scrapy_bloom.job.database import (
    NAME,
    UNREADABLE,
    Database,
    check_format,
    connect,
    damaged,
    finish_repair,
    repaired,
    sealed,
    unsealed,
)
from scrapy_bloom.job.inspect import DIRECTORY, files_of
from scrapy_bloom.job.records import Batch, JobState

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Callable, Iterator


_COPIED_AS_THEY_ARE = ("failed", "figures", "page", "item", "cycle")
"""Tables whose rows have no checksum."""


@dataclass(frozen=True)
class Problems:
    """What is wrong with a job, in sentences."""

    of_filter: tuple[str, ...]
    """The layers: nothing can repair these."""
    of_database: tuple[str, ...]
    """The pending requests, notes, and whether they belong to the filter: :func:`fix_job` saves what is whole."""


def problems_of(jobdir: str | os.PathLike[str]) -> Problems:
    """Return what is wrong with the job in *jobdir*. Changes nothing.

    Raises UnusableError if there is no job of ours. Raises InUseError if a crawl runs in it.
    """
    directory, path = files_of(jobdir)
    with lock_directory(directory):
        description = inspect_directory(directory, thorough=True)
        checks: list[Callable[[Database], object]] = [
            _check_file,
            _check_requests,
            Database.lanes,
            Database.redo,
            _check_notes,
            lambda database: check_same_moment(database, description.chain_id, description.watermark),
        ]
        problems = []
        try:
            with closing(Database(path, read_only=True)) as database:
                for check in checks:
                    try:
                        check(database)
                    except BloomError as error:
                        problems.append(f"{error.where} {error.found}.")
        except BloomError as error:
            problems.append(str(error))
        return Problems(tuple(description.damage), tuple(problems))


def _check_file(database: Database) -> None:
    with database.path.open("rb") as file:
        if file.read(20)[18:] not in {b"", bytes([2, 2])}:  # SQLite's formats for writing and reading
            raise damaged(database.path, "SQLite would not write to it")
    if (rows := database.select("PRAGMA integrity_check(20)")) != [("ok",)]:
        raise damaged(database.path, "; ".join(row[0] for row in rows))


def _check_notes(database: Database) -> None:
    for (topic,) in database.select("SELECT DISTINCT topic FROM note"):
        database.notes(topic)


def _check_requests(database: Database) -> None:
    """Hold requests against their checksums, and against the lanes that they are counted in."""
    rows: Counter[int] = Counter()
    torn = 0
    for lane, _, body in database.requests():
        rows[lane] += 1
        torn += body is None
    lanes = [LaneRow(*row) for row in database.select("SELECT * FROM lane")]
    misnamed = sum(_key_of(lane) is None for lane in lanes)
    miscounted = sum(rows.pop(lane.id, 0) != lane.rows for lane in lanes) + len(rows)
    if torn or misnamed or miscounted:
        raise damaged(
            database.path,
            f"{counted(torn, 'pending request')} contradict their checksums, {counted(misnamed, 'lane')} their "
            f"ids, and {counted(miscounted, 'lane')} the number of requests that was noted",
        )


def _key_of(lane: LaneRow) -> LaneKey | None:
    """Return the key that belongs to the id of *lane*; None if the row is damaged."""
    if not lane.is_sound():
        return None
    key = LaneKey(lane.slot, lane.priority, bool(lane.is_start), lane.kind)
    return key if key.id() == lane.id else None


def fix_job(jobdir: str | os.PathLike[str]) -> tuple[int, int]:
    """Write every request that SQLite still reads, and that is whole, into a new database; keep the old one.

    The new database belongs to the filter as it is: pages that the filter knows and the database lacks are given up.
    Return how many requests were saved, and how many of those noted were lost. A kill leaves the job as it was, or a
    complete new database that :func:`finish_repair` puts into its place. Raises BloomError if the job is in use, of
    another format, or its filter is damaged, too; or nothing at all can be read.
    """
    directory, path = files_of(jobdir)
    new_path = directory / f"{NAME}.new"
    with lock_directory(directory), closing(connect(path, read_only=True)) as old:
        description = inspect_directory(directory)
        if description.damage:
            advice = "Restore it from a backup, or delete the layer files: then pages are fetched again."
            raise UnusableError(directory, f"has a damaged filter: {description.damage[0]}", advice=advice)
        with suppress(DamagedError, *UNREADABLE):
            check_format(old, path)
        for suffix in ("", "-wal", "-shm"):
            new_path.with_name(new_path.name + suffix).unlink(missing_ok=True)
        with closing(Database(new_path)) as new:
            for table in ("note", "redo", *_COPIED_AS_THEY_ARE):
                _copy(old, new, table)
        with closing(Database(new_path)) as new:  # with its state
            noted = new.state
            saved, last_id = _copy_requests(old, new)
            if not saved and noted == JobState():
                _check_readable(old, path)
            new.state = replace(noted, pending=saved)
            last_id = max(last_id, noted.last_id, description.watermark)
            new.write(Batch(state=replace(noted, filter=description.chain_id, last_id=last_id, clean=False)))
        old.close()
        new_path.replace(repaired(path))
        finish_repair(path)
    return saved, max(0, noted.pending - saved)


def finish_interrupted(jobdir: str | os.PathLike[str]) -> bool:
    """Finish a repair of the job in *jobdir* that was interrupted after its new database was complete, if there is one.

    Raises InUseError if a crawl runs there.
    """
    path = Path(jobdir, DIRECTORY, NAME)
    if not repaired(path).exists():
        return False
    with lock_directory(path.parent):
        finish_repair(path)
    return True


def _rows(connection: sqlite3.Connection, new: Database, table: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of *table*. If a row cannot be read, yield those before it, and then read back from the end."""
    width = len(new.select(f"PRAGMA table_info({table})"))  # a damaged definition may have another
    for order in ("", "ORDER BY 1 DESC, 2 DESC"):
        with suppress(*UNREADABLE):
            rows = connection.execute(f"SELECT * FROM {table} {order}")  # noqa: S608 - our own names
            yield from (row for row in rows if len(row) == width)
            return


def _copy(old: sqlite3.Connection, new: Database, table: str) -> None:
    new.writer.execute("BEGIN")
    for row in _rows(old, new, table):
        if table in _COPIED_AS_THEY_ARE or unsealed(*row) is not None:
            new.writer.execute(f"INSERT OR IGNORE INTO {table} VALUES ({','.join('?' * len(row))})", row)  # noqa: S608 - places
    new.writer.execute("COMMIT")


def _copy_requests(old: sqlite3.Connection, new: Database) -> tuple[int, int]:
    """Copy the requests that are whole, and count them in their lanes; return how many there are, and the last id."""
    keys = {lane.id: key for row in _rows(old, new, "lane") if (key := _key_of(lane := LaneRow(*row))) is not None}
    run = new.writer.execute
    run("BEGIN")
    for lane, id_, row in _rows(old, new, "request"):
        if (body := unsealed(lane, id_, row)) is not None:
            key = keys.get(lane) or lane_of_stored(pickle.loads(body))  # noqa: S301 - as every request of the job
            keys[key.id()] = key
            run("INSERT OR IGNORE INTO request VALUES (?, ?, ?)", sealed(key.id(), id_, body))
    for lane, rows in run("SELECT lane, count(*) FROM request GROUP BY lane").fetchall():
        run("INSERT INTO lane VALUES (?, ?, ?, ?, ?, ?)", (lane, *keys[lane], rows))
    saved, last_id = run("SELECT count(*), ifnull(max(id), 0) FROM request").fetchone()
    run("COMMIT")
    return saved, last_id


def _check_readable(connection: sqlite3.Connection, path: Path) -> None:
    try:
        for table in ("note", "request"):
            connection.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608 - our own names
    except UNREADABLE as error:
        advice = "Restore it from a backup, or begin anew in another JOBDIR."
        raise UnusableError(path, f"cannot be read: {error}; no request can be saved", advice=advice) from error
