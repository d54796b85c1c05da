"""Verifies a job: every row, every bit, and whether they belong together; saves what is whole.

A crawl checks only whether database and filter belong together and to this crawl. Fingerprints of pending requests that
the filter lacks are added to it.
"""

from __future__ import annotations

import logging
import pickle
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_bloom.errors import BloomError, DamagedError, UnusableError, counted
from scrapy_bloom.filter.directory import inspect_directory
from scrapy_bloom.filter.lock import lock_directory
from scrapy_bloom.frontier.order import LaneKey, LaneRow, lane_of_stored
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
    from collections.abc import Callable, Iterator, Mapping

    from scrapy_bloom.filter.chain import ScalableBloomFilter

logger = logging.getLogger(__name__)

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


def check_consistency(
    database: Database, chain: ScalableBloomFilter, spider: str | None, key_space: Mapping[str, str] | None
) -> None:
    """Refuse a job that would lose pages.

    *spider* is the name of the one that is about to crawl; None if that makes no difference. *key_space* is what makes
    its fingerprints; None if they are not ours. Raises UnusableError if the job is another spider's, has other
    fingerprints, or database and filter are of different moments. Nothing has been changed then.
    """
    state, jobdir = database.state, database.path.parent.parent
    if spider is not None and state.spider not in {"", spider}:
        raise UnusableError(
            f"The job in {jobdir}",
            f"belongs to the spider {state.spider!r}, and this is {spider!r}, which would use up its pending requests",
            advice="Nothing was changed. Use a JOBDIR for each spider: -s JOBDIR=... on the command line.",
        )
    if key_space and state.key_space:
        _check_key_space(database, key_space, state.key_space)
    check_same_moment(database, chain.chain_id if len(chain) else "", chain.watermark)


def check_same_moment(database: Database, chain_id: str, watermark: int) -> None:
    """Refuse *database* if it belongs to another filter than *chain_id* ("": empty), or is older than *watermark*."""
    state = database.state
    advice = "Restore all of the directory from one moment (job.sqlite with job.sqlite-wal), or begin anew in another"
    if chain_id and state.filter not in {"", chain_id}:
        raise UnusableError(database.path, "and the layers beside it are of different jobs", advice=f"{advice} JOBDIR.")
    if watermark > state.last_id:
        raise UnusableError(
            database.path,
            f"is older than the filter beside it: it ends at request {state.last_id:,}, and the filter knows "
            f"{watermark:,}. Pages between would count as seen and never be fetched",
            advice=f"{advice} JOBDIR; or go on without these pages, after: scrapy bloom verify --fix "
            f"{database.path.parent.parent}",
        )


def _check_key_space(database: Database, now: Mapping[str, str], was: Mapping[str, str]) -> None:
    differences = [name for name in now if now[name] != was.get(name)]
    listed = "; ".join(f"{name} was {was.get(name)!r}, is now {now[name]!r}" for name in differences)
    if differences == ["w3lib"]:
        logger.warning("%s: another w3lib may write one URL in a thousand otherwise, and fetch it again", listed)
    elif differences:
        raise UnusableError(
            f"The filter in {database.path.parent}",
            f"was filled under other settings: {listed}. Every URL would look new",
            advice="Nothing was changed. Go back to these settings, or begin anew with an empty JOBDIR.",
        )


def replay_redo(database: Database, chain: ScalableBloomFilter) -> bool:
    """Set the bits of commits that the filter may not have; return whether the filter is older than these, too."""
    redo = database.redo()
    lacks = chain.watermark < (redo[0][0] if redo else database.state.last_id)
    for _, fingerprints in redo:
        for fingerprint in fingerprints:
            # It may have been taken back before or after that commit. If before, its page is fetched once more.
            if not chain.is_forgotten(fingerprint):
                chain.add(fingerprint)
    if not lacks:
        chain.watermark = database.state.last_id
    return lacks


def show_pending(
    database: Database, chain: ScalableBloomFilter, fingerprint_of: Callable[[bytes], bytes | None]
) -> int:
    """Add the fingerprints of all pending requests to the filter, and return how many were new to it.

    *fingerprint_of* returns the fingerprint of a stored request, or None: unfiltered requests were never recorded, so a
    link to the same page is new.
    """
    added = 0
    for _, _, body in database.requests():
        with suppress(Exception):  # an unreadable request, or one without a fingerprint, stays pending
            fingerprint = fingerprint_of(body or b"")
            added += fingerprint is not None and chain.add(fingerprint)
    chain.watermark = database.state.last_id
    return added
