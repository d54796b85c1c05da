"""Reads what earlier cycles left of pages and items, and ends a cycle: then it is known which items are gone."""

from __future__ import annotations

import pickle
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from scrapy_bloom.job.changes import Change, ItemRow, PageRow, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scrapy_bloom.job.database import Database

SWEPT_AT_ONCE = 500
"""Requests of earlier cycles that are read at a time."""


def page_of(database: Database, id_: int) -> PageRow | None:
    """Return the page *id_* as the last commit left it; None if no cycle has asked for it."""
    rows = database.select("SELECT * FROM page WHERE id = ?", id_)
    return PageRow(*rows[0]) if rows else None


def items_of(database: Database, key: int) -> list[ItemRow]:
    """Return the rows of the item *key*, as the last commit left them."""
    return [ItemRow(*row) for row in database.select("SELECT * FROM item WHERE key = ?", key)]


def requests_before(database: Database, cycle: int, after: int | None) -> Sequence[tuple[int, bytes]]:
    """Return id and stored request of filtered pages that *cycle* has not asked for, in order of id behind *after*.

    A page that is gone is among them 1, 2, 4, 8, ... cycles later: a page that is not modified may lead to it still.
    """
    return database.select(
        "SELECT id, request FROM page WHERE id > ? AND cycle < ? AND is_filtered "
        "AND (state != 3 OR (? - size) & (? - size - 1) = 0) ORDER BY id LIMIT ?",
        *(-(1 << 63) if after is None else after, cycle, cycle, cycle, SWEPT_AT_ONCE),
    )


# -- cycles ------------------------------------------------------------------------------------------------------------


class Cycle(NamedTuple):
    """A cycle and its figures."""

    number: int
    began: float
    """Seconds since 1970."""
    ended: float | None
    """None: it goes on."""
    new: int
    changed: int
    same: int
    gone: int
    unknown: int
    """Items of which nothing is known: their page failed, or was not asked for so far."""
    pages: int
    not_modified: int
    bytes_saved: int
    """Bytes of the bodies of pages that were not modified, as they were when they came last."""


# What *cycle* knows of an item by one of its rows: 1 to 3 reported as that Change, 4 same, 5 unknown, 6 not there any
# more, 9 gone since an earlier cycle. The item itself is the least of its rows.
_STATUS = """CASE WHEN change / 4 = :cycle THEN change % 4 WHEN change % 4 = 3 THEN 9 WHEN cycle = :cycle THEN 4 ELSE
    ifnull((SELECT CASE state WHEN 0 THEN 5 WHEN 2 THEN 4 ELSE 6 END FROM page WHERE id = item.page
    AND page.cycle = :cycle), 5) END"""
_END = (
    f"""REPLACE INTO item SELECT key, page, digest, cycle, 4 * :cycle + 3, label
    FROM (SELECT *, min({_STATUS}) AS status FROM item GROUP BY key) WHERE status = 6""",  # noqa: S608 - our own text
    f"DELETE FROM item WHERE {_STATUS} > 5",  # noqa: S608 - our own text
    f"""UPDATE OR REPLACE item SET digest = 0 WHERE {_STATUS} = 5
    AND key IN (SELECT key FROM item GROUP BY key HAVING min({_STATUS}) < 5 AND max({_STATUS}) = 5)""",  # noqa: S608 - our own text
)


def note_cycle(database: Database, number: int) -> None:
    """Note when cycle *number* began, unless that is noted."""
    run = database.writer.execute
    run("INSERT OR IGNORE INTO cycle VALUES (?, ?, NULL, 0, 0, 0, 0, 0, 0, 0, 0)", (number, time.time()))


def end_cycle(database: Database, number: int) -> Cycle:
    """Note which items are gone in cycle *number*, and return its figures. Nothing is pending; may be repeated."""
    run = database.writer.execute
    run("BEGIN IMMEDIATE")
    for statement in _END:
        run(statement, {"cycle": number})
    run("COMMIT")
    cycle = figures_of(database, number)._replace(ended=time.time())
    run(f"REPLACE INTO cycle VALUES ({','.join('?' * len(cycle))})", cycle)  # noqa: S608 - places
    return cycle


def items_with_one_key(database: Database, number: int) -> list[tuple[str, bytes, bytes]]:
    """Return label and requests of two items that had one key in cycle *number*; [] if no two had."""
    return database.select(
        "SELECT label, first.request, last.request FROM (SELECT label, min(page) AS least, max(page) AS most FROM item "
        "WHERE cycle = ? GROUP BY key HAVING count(*) > 1 LIMIT 1) JOIN page AS first ON first.id = least "
        "JOIN page AS last ON last.id = most",
        number,
    )


def figures_of(database: Database, number: int) -> Cycle:
    """Return the figures of cycle *number*, the last one: counted, so this reads all pages and items."""
    ((began, ended),) = database.select("SELECT began, ended FROM cycle WHERE number = ?", number)
    counts = f"SELECT status, count(*) FROM (SELECT min({_STATUS}) AS status FROM item GROUP BY key) GROUP BY status"  # noqa: S608 - our own text
    items = dict(database.reader.execute(counts, {"cycle": number}).fetchall())
    new, changed, gone, same, unknown, absent = (items.get(status, 0) for status in range(1, 7))
    pages = "SELECT count(*), ifnull(sum(state = 2), 0), ifnull(sum(iif(state = 2, size, 0)), 0) FROM page"
    figures = database.select(f"{pages} WHERE cycle = ?", number)[0]
    return Cycle(number, began, ended, new, changed, same, gone, unknown + absent, *figures)


def last_cycles(database: Database) -> list[Cycle]:
    """Return all cycles, oldest first; the figures of one that goes on are counted."""
    cycles = [Cycle(*row) for row in database.select("SELECT * FROM cycle ORDER BY number")]
    return [*cycles[:-1], figures_of(database, cycles[-1].number)] if cycles and cycles[-1].ended is None else cycles


def reported_items(database: Database, number: int, change: Change) -> Iterator[tuple[str | None, str, int]]:
    """Yield the items that were reported as *change* in cycle *number*, in constant memory.

    Each has the URL of its page, None if that cannot be read; its label; and the last cycle in which the page gave it.
    """
    query = "SELECT request, label, item.cycle FROM item LEFT JOIN page ON page.id = item.page WHERE change = ?"
    for request, label, cycle in database.reader.execute(query, (4 * number + change,)):
        yield url_of(request), label, cycle


def url_of(request: bytes) -> str | None:
    """Return the URL of a :func:`packed` *request*; None if it cannot be read."""
    with suppress(Exception):  # whatever unpickling raises
        return str(pickle.loads(unpacked(request))["url"])  # noqa: S301 - as every request of the job
    return None
