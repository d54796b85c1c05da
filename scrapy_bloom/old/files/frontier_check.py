"""Reads a file of pending requests for people: how many wait for which host, and what is wrong with it.

Follows the description in ``docs/frontier.md`` and shares no code with what writes the file, so that a mistake there
shows here. Unpickles nothing.
"""

from __future__ import annotations

import json
import re
import sqlite3
import struct
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from scrapy_bloom.old.errors import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_APPLICATION_ID = 0x53624672
_VERSION_WITH_CHECKSUMS = 2
_VERSION = 3  # counts in a table of their own
_STATES = {"clean", "in_flight", "importing", "last_id", "filter", "spider"}
_url_in = re.compile(rb"\x8c\x03url\x94(?:\x8c(.)(.{0,255})|X(.{4})(.*))", re.DOTALL).search
"""The first entry of a pickled request, in protocol 4: a string with its length in one byte, or in four."""
_other_in = re.compile(rb"\x8c\x06method\x94(?!\x8c\x03GET\x94)|\x8c\x04body\x94(?!C\x00\x94)").search
"""A method besides GET, or a body. Pending requests leave both out of a plain GET; parked ones always have them."""
_MOST_SHOWN = 5
_of_host = re.compile(r"/?(.+)-[0-9a-f]{32}(?:/.*)?").fullmatch


class Contents(NamedTuple):
    """What a file of pending requests says of itself."""

    pending: int
    by_host: dict[str, int]
    """Most first; empty if the priority queue of the job keeps no queue per host."""
    last_id: int
    """The largest number ever given to a request; 0 in files of version 1."""
    filter_id: str
    """Id of the filter that it was used with, in hexadecimal; empty if none."""


def contents(connection: sqlite3.Connection) -> Contents:
    """Return what the file of *connection* holds.

    Raises:
        sqlite3.Error: It cannot be read.

    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    counts: Iterable[tuple[int, int]]
    if version >= _VERSION:
        counts = _counts(connection).items()
    elif version == _VERSION_WITH_CHECKSUMS:
        counts = connection.execute("SELECT id, rows FROM lanes")
    else:
        counts = connection.execute("SELECT lane, count(*) FROM requests GROUP BY lane")
    names = dict(connection.execute("SELECT id, key FROM lanes"))
    pending = 0
    by_host: Counter[str] = Counter()
    for lane, count in counts:
        pending += count
        name = names.get(lane, "")
        if count and (match := _of_host(name)):
            by_host[match[1]] += count
    state = dict(connection.execute("SELECT name, value FROM state"))
    return Contents(pending, dict(by_host.most_common()), int(state.get("last_id", 0)), str(state.get("filter", "")))


def pending_urls(connection: sqlite3.Connection) -> Iterator[str]:
    """Return the URLs of the plain GET requests that wait in the file of *connection*, without unpickling anything.

    Raises:
        sqlite3.Error: It cannot be read.

    """
    return plain_urls(connection.execute("SELECT body FROM requests"))


def plain_urls(rows: Iterable[tuple[bytes]]) -> Iterator[str]:
    """Yield the URLs of those of the pickled requests in *rows* that are plain GET requests."""
    for (body,) in rows:
        match = _url_in(body)
        if match and not _other_in(body):
            yield match[match.lastindex or 0][: int.from_bytes(match[1] or match[3], "little")].decode(errors="replace")


def problems(path: Path, connection: sqlite3.Connection) -> list[str]:
    """Return everything that is wrong with the file at *path*, read through *connection*, as sentences."""
    found: list[str] = []
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION_ID:
            return [f"{path} is not a file of scrapy-bloom's: its application id is {application:#x}."]
        found += [row[0] for row in connection.execute("PRAGMA integrity_check(100)") if row[0] != "ok"]
        if _VERSION_WITH_CHECKSUMS <= version <= _VERSION:
            found += _wrong_states(connection) + _wrong_lanes(connection, version) + _wrong_requests(connection)
        elif version > _VERSION:
            return [f"{path} has format version {version}, which this scrapy-bloom does not know. Upgrade it."]
    except sqlite3.Error as error:
        found.append(str(error))
    return [f"{path} is damaged: {each}. {_ADVICE.format(path.parent)}" for each in found]


def _wrong_states(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT name, value, crc FROM state").fetchall()
    wrong = [
        f"the state {name!r} contradicts its checksum"
        for name, value, crc in rows
        if name != "spider" and crc != crc32(f"{name} {json.dumps(value)}".encode())
    ]
    missing = _STATES - {name for name, _, _ in rows}
    return wrong + [f"the state {name!r} is missing" for name in sorted(missing)]


def _counts(connection: sqlite3.Connection) -> Counter[int]:
    counts: Counter[int] = Counter()
    for (sealed,) in connection.execute("SELECT body FROM counts"):
        for lane, change in struct.iter_unpack("<qq", sealed[4 : 4 + (len(sealed) - 4) // 16 * 16]):
            counts[lane] += change
    return counts


def _wrong_lanes(connection: sqlite3.Connection, version: int) -> list[str]:
    there = dict(connection.execute("SELECT lane, count(*) FROM requests GROUP BY lane"))
    wrong = []
    if version == _VERSION:
        for id_, sealed in connection.execute("SELECT id, body FROM counts"):
            if sealed[:4] != struct.pack("<I", crc32(sealed[4:], crc32(struct.pack("<qq", id_, 0)))):
                wrong.append(f"number {id_} of the counts contradicts its checksum")
        counts = _counts(connection)
        lanes = [
            (id_, name, counts[id_], f"{id_} {name}", crc)
            for id_, name, crc in connection.execute("SELECT id, key, crc FROM lanes")
        ]
    else:
        lanes = [
            (id_, name, rows, f"{id_} {rows} {name}", crc)
            for id_, name, rows, crc in connection.execute("SELECT id, key, rows, crc FROM lanes")
        ]
    for id_, name, rows, sealed, crc in lanes:
        if crc != crc32(sealed.encode()):
            wrong.append(f"the queue {name!r} contradicts its checksum")
        elif rows != there.get(id_, 0):
            wrong.append(f"the queue {name!r} counts {counted(rows, 'request')} and has {there.get(id_, 0)}")
        there.pop(id_, None)
    if there:
        requests = counted(sum(there.values()), "request")
        wrong.append(f"the list of queues lacks {counted(len(there), 'queue')} with {requests}")
    more = len(wrong) - _MOST_SHOWN
    return wrong[:_MOST_SHOWN] + ([counted(more, "more queue")] if more > 0 else [])


def _wrong_requests(connection: sqlite3.Connection) -> list[str]:
    count = 0
    first = None
    for id_, lane, sealed in connection.execute("SELECT id, lane, body FROM requests"):
        try:
            body = sealed[4:]
            is_right = struct.pack("<I", crc32(body, crc32(struct.pack("<qq", id_, lane)))) == sealed[:4]
        except (struct.error, TypeError):  # not even of the right types
            is_right = False
        if not is_right:
            count += 1
            first = id_ if first is None else first
    problem = "pending request contradicts its checksum", "pending requests contradict their checksums"
    return [f"{counted(count, *problem)}, the first is {first}"] if count else []


_ADVICE = (
    "Restore it and requests.bloom from a backup of the same moment, or save what is readable: "
    "python -m scrapy_bloom.old.frontier.salvage {}"
)
