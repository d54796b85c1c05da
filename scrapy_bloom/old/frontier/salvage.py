"""Saves what is readable of a damaged frontier: ``python -m scrapy_bloom.old.frontier.salvage JOBDIR``.

Looks on every page of the file for rows with the right checksum, whether or not SQLite still finds them, and writes
them to a new file. Knows SQLite's page format, and no request.

A kill before the new file is whole changes nothing. After that, ``requests.frontier.salvage/saved`` exists until it has
taken the place of the damaged file: no crawl starts meanwhile, and the next call goes on from there.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import sys
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.old.errors import BloomError, UnusableError, counted
from scrapy_bloom.old.files.frontier_file import FRONTIER_NAME, SALVAGE_NAME, SAVED_NAME
from scrapy_bloom.old.files.layerfile import sync_directory
from scrapy_bloom.old.frontier.database import (
    Batch,
    Database,
    Row,
    State,
    lane_crc,
    locked,
    read_counts,
    read_state,
    unseal,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC = b"SQLite format 3\0"
_HEADER = _MAGIC + bytes.fromhex("1000 02 02 00 40 20 20")  # pages of 4,096 bytes, WAL, no reserved bytes
_PAGE_BYTES = 4096
_LEAF = 0x0D
_BATCH_ROWS = 2000
_COPY_NAME = "copy"
_SUFFIXES = ("", "-wal", "-shm")


@dataclass(frozen=True)
class Salvaged:
    """What could be saved."""

    saved: int
    """Requests in the new file."""
    missing: int | None
    """Requests that the damaged file counted beyond those; None if its counts cannot be trusted."""
    aside: Path
    """Where the damaged file is now."""


def salvage(jobdir: Path) -> Salvaged:
    """Replace the frontier of *jobdir* by a new one with everything that can be read of it.

    The damaged file is kept as ``requests.frontier.damaged``.

    Raises:
        InUseError: A crawl is running in *jobdir*.
        UnusableError: There is no frontier.
        OSError: There is no room for the new file.

    """
    path, work = jobdir / FRONTIER_NAME, jobdir / SALVAGE_NAME
    saved, aside = work / SAVED_NAME, jobdir / f"{FRONTIER_NAME}.damaged"
    if not (path.exists() or saved.exists()):
        raise UnusableError(path, "does not exist", advice="Name the job directory whose pending requests are damaged.")
    lock = locked(path)
    try:
        if not saved.exists():
            _save(path, work, aside)
        _, counted = _lanes(work / _COPY_NAME)
        _, found = _lanes(saved)
        _put_in_place(saved, path, aside)
        shutil.rmtree(work, ignore_errors=True)
        assert found is not None  # noqa: S101 - our own file, a moment old
        return Salvaged(found, None if counted is None else max(0, counted - found), aside)
    finally:
        lock.release()


def _save(path: Path, work: Path, aside: Path) -> None:
    """Write everything that can be read of the file at *path* to a new one in *work*, whole or not at all."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        copy = _whole_copy(path, work)
        names, _ = _lanes(copy)
        _write(copy, names, _state(copy), work / "new")
        for suffix in _SUFFIXES:  # of an earlier call: a log must never stay beside another file than its own
            aside.with_name(aside.name + suffix).unlink(missing_ok=True)
        (work / "new").rename(work / SAVED_NAME)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    sync_directory(work)
    sync_directory(work.parent)


def _put_in_place(saved: Path, path: Path, aside: Path) -> None:
    """Move the damaged file out of the way and the new one there; after a kill, the next call does the rest."""
    for suffix in _SUFFIXES:
        old = path.with_name(path.name + suffix)
        if old.exists():
            old.replace(aside.with_name(aside.name + suffix))
    saved.replace(path)
    sync_directory(path.parent)


def _whole_copy(path: Path, work: Path) -> Path:
    """Copy the file and fold its log into the copy, as far as SQLite can."""
    copy = work / _COPY_NAME
    shutil.copy(path, copy)
    log = path.with_name(path.name + "-wal")
    if log.exists():
        shutil.copy(log, copy.with_name(f"{_COPY_NAME}-wal"))
    with copy.open("r+b") as file:
        if file.read(len(_HEADER)) != _HEADER:
            file.seek(0)
            file.write(_HEADER)
    with suppress(sqlite3.Error), closing(sqlite3.connect(copy)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return copy


def _lanes(copy: Path) -> tuple[dict[int, str], int | None]:
    """Return the names of the lanes, and how many requests they count or None if that is damaged."""
    names: dict[int, str] = {}
    counted: int | None = None
    with suppress(sqlite3.Error), closing(sqlite3.connect(copy)) as database:
        counted = sum(read_counts(database).values())
        for id_, name, crc in database.execute("SELECT id, key, crc FROM lanes"):
            if crc == lane_crc(id_, name):
                names[id_] = name
            else:
                counted = None
        return names, counted
    return names, None


def _state(copy: Path) -> State | None:
    try:
        with closing(sqlite3.connect(copy)) as database:
            return read_state(database)
    except (sqlite3.Error, ValueError):
        return None


def _write(copy: Path, names: dict[int, str], state: State | None, path: Path) -> None:
    rows = {row.id: row for row in scan(copy)}
    last_id = max([0, *rows]) if state is None else max([state.last_id, *rows])
    new = Database.open(path)
    try:
        spider, filter_id = ("", "") if state is None else (state.spider, state.filter_id)
        new.begin_run(spider, filter_id=filter_id, last_id=last_id)
        known: set[int] = set()
        ids = iter(sorted(rows))
        while page := list(islice(ids, _BATCH_ROWS)):
            lanes = {rows[id_].lane for id_ in page} - known
            known |= lanes
            new.write(
                Batch(
                    # No priority queue asks for a lane of this name, so the next start routes its requests anew.
                    lanes={names.get(lane, f"lane {lane}"): lane for lane in lanes},
                    added={id_: (rows[id_].lane, rows[id_].body) for id_ in page},
                    finished=[],
                    in_flight=0 if state is None else state.in_flight,
                    last_id=last_id,
                )
            )
    finally:
        new.abandon()
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)


# -- SQLite's pages ----------------------------------------------------------------------------------------------------


def scan(path: Path) -> Iterator[Row]:
    """Yield every row with a right checksum in the SQLite file at *path*, from all pages that are not free.

    Source: the file format of SQLite, https://www.sqlite.org/fileformat2.html
    """
    data = path.read_bytes()
    free = _free_pages(data)
    for number in range(2, len(data) // _PAGE_BYTES + 1):  # the first page is SQLite's own table
        page = _page(data, number)
        if number in free or page[0] != _LEAF:
            continue
        (cells,) = struct.unpack_from(">H", page, 3)
        for at in range(8, min(8 + 2 * cells, _PAGE_BYTES - 1), 2):
            with suppress(sqlite3.Error, struct.error, IndexError, ValueError, OverflowError):
                yield _row(data, page, struct.unpack_from(">H", page, at)[0])


def _page(data: bytes, number: int) -> bytes:
    return data[(number - 1) * _PAGE_BYTES : number * _PAGE_BYTES]


def _free_pages(data: bytes) -> set[int]:
    """Return the pages on the free list, which hold requests that are done; empty if the list is damaged."""
    free: set[int] = set()
    (trunk,) = struct.unpack_from(">I", data, 32)
    while trunk:
        page = _page(data, trunk)
        if len(page) < _PAGE_BYTES or trunk in free:
            return set()
        following, leaves = struct.unpack_from(">II", page)
        if leaves > _PAGE_BYTES // 4 - 2:
            return set()
        free.add(trunk)
        free.update(struct.unpack_from(f">{leaves}I", page, 8))
        trunk = following
    return free


def _row(data: bytes, page: bytes, at: int) -> Row:
    size, at = _varint(page, at)
    id_, at = _varint(page, at)
    if id_ >= 1 << 63:
        id_ -= 1 << 64
    payload = _payload(data, page, at, size)
    header, place = _varint(payload, 0)
    types = []
    while place < header:
        kind, place = _varint(payload, place)
        types.append(kind)
    key, lane_type, body_type = types
    width = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 0, 9: 0}.get(lane_type)
    if key != 0 or width is None or body_type < 12 or body_type % 2 or place != header:
        raise ValueError("not a row of requests")
    lane = lane_type - 8 if width == 0 else int.from_bytes(payload[place : place + width], "big", signed=True)
    body = payload[place + width : place + width + (body_type - 12) // 2]
    return Row(id_, lane, unseal(id_, lane, body))


def _payload(data: bytes, page: bytes, at: int, size: int) -> bytes:
    least = (_PAGE_BYTES - 12) * 32 // 255 - 23
    local = size
    if size > _PAGE_BYTES - 35:
        local = least + (size - least) % (_PAGE_BYTES - 4)
        if local > _PAGE_BYTES - 35:
            local = least
    found = bytearray(page[at : at + local])
    if local < size:
        (following,) = struct.unpack_from(">I", page, at + local)
        while following and len(found) < size:
            further = _page(data, following)
            (following,) = struct.unpack_from(">I", further)
            found += further[4 : 4 + size - len(found)]
    return bytes(found)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return SQLite's number of one to nine bytes at *at*, and where it ends."""
    value = 0
    for place in range(at, at + 8):
        value = value << 7 | data[place] & 0x7F
        if data[place] < 0x80:
            return value, place + 1
    return value << 8 | data[at + 8], at + 9


def main(arguments: list[str]) -> int:
    """Salvage the job directory named in *arguments*; return the exit code."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m scrapy_bloom.old.frontier.salvage JOBDIR", file=sys.stderr)  # noqa: T201 - a command
        return 2
    try:
        found = salvage(Path(os.path.normpath(arguments[0])))
    except (BloomError, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command
        return 1
    lost = "how many are lost is not known" if found.missing is None else counted(found.missing, "is lost", "are lost")
    print(  # noqa: T201 - a command
        f"Saved {counted(found.saved, 'pending request')}; {lost}. The damaged file is kept as {found.aside}. "
        "If the crawl now says that the frontier is older than its filter, the last requests were among those lost."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
