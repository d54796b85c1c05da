"""Reads what earlier cycles left of pages and items, and ends a cycle: then it is known which items are gone."""

from __future__ import annotations

import pickle
import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from scrapy_bloom.job.changes import SWEPT_AT_ONCE, Change, ItemRow, PageRow, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scrapy_bloom.job.database import Database


def page_of(database: Database, id_: int) -> PageRow | None:
    """Return the page *id_* as the last commit left it; None if no cycle has asked for it."""
    rows = database.select("SELECT * FROM page WHERE id = ?", id_)
    return PageRow(*rows[0]) if rows else None


def item_of(database: Database, id_: int) -> ItemRow | None:
    """Return the item *id_* as the last commit left it; None if no page has given it."""
    rows = database.select("SELECT * FROM item WHERE id = ?", id_)
    return ItemRow(*rows[0]) if rows else None


def requests_before(database: Database, cycle: int, after: int | None) -> Sequence[tuple[int, bytes]]:
    """Return id and stored request of filtered pages that *cycle* has not asked for, in order of id behind *after*.

    A page that is gone is among them 1, 2, 4, 8, ... cycles later: a page that is not modified may lead to it still.
    """
    return database.select(
        "SELECT id, request FROM page WHERE id > ? AND cycle < ? AND is_filtered "
        "AND (state != 3 OR (? - size) & (? - size - 1) = 0) ORDER BY id LIMIT ?",
        *(-(1 << 63) if after is None else after, cycle, cycle, cycle, SWEPT_AT_ONCE),
    )


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


def begin_cycle(database: Database, number: int) -> None:
    """Note when cycle *number* began, unless that is noted."""
    run = database.writer.execute
    run("INSERT OR IGNORE INTO cycle VALUES (?, ?, NULL, 0, 0, 0, 0, 0, 0, 0, 0)", (number, time.time()))


_KEPT = "item.change / 4 < :cycle AND item.change % 4 != 3"
_PAGE = "EXISTS (SELECT 1 FROM page WHERE page.id = item.page AND page.cycle = :cycle AND page.state {})"
_ALL_KNOWN = "NOT EXISTS (SELECT 1 FROM page WHERE state != 3 AND cycle < :cycle OR state = 0 AND cycle = :cycle)"
_IS_GONE = f"{_KEPT} AND item.cycle < :cycle AND ({_PAGE.format('IN (1, 3)')} OR item.page = 0 AND {_ALL_KNOWN})"
_IS_SAME = f"{_KEPT} AND (item.cycle = :cycle OR {_PAGE.format('= 2')})"


def end_cycle(database: Database, number: int) -> None:
    """Note which items are gone in cycle *number*, and its figures. Nothing is pending any more; may be repeated."""
    run = database.writer.execute
    named = {"cycle": number}
    same = "SELECT id FROM page WHERE state = 2 AND cycle = :cycle"
    run("BEGIN IMMEDIATE")
    for of_item in ("other", "page"):
        moved = f"SELECT {of_item} FROM item WHERE other IN ({same})"  # noqa: S608 - our own text
        run(f"UPDATE page SET validator = '' WHERE id IN ({moved})", named)  # noqa: S608 - our own text
    run(f"UPDATE item SET page = 0 WHERE other IN ({same})", named)  # noqa: S608 - our own text
    run("UPDATE item SET other = NULL WHERE other NOT NULL")
    run(f"UPDATE item SET change = 4 * :cycle + 3 WHERE {_IS_GONE}", named)  # noqa: S608 - our own text
    run("DELETE FROM item WHERE change % 4 = 3 AND change / 4 < ?", (number,))
    run("COMMIT")
    cycle = figures_of(database, number)._replace(ended=time.time())
    run(f"REPLACE INTO cycle VALUES ({','.join('?' * len(cycle))})", cycle)  # noqa: S608 - places


def figures_of(database: Database, number: int) -> Cycle:
    """Return the figures of cycle *number*, the last one: counted, so this reads all pages and items."""
    ((began, ended),) = database.select("SELECT began, ended FROM cycle WHERE number = ?", number)
    changes = dict(database.select("SELECT change % 4, count(*) FROM item WHERE change / 4 = ? GROUP BY 1", number))
    named = {"cycle": number}
    ((same, kept),) = database.reader.execute(
        f"SELECT ifnull(sum({_IS_SAME}), 0), ifnull(sum({_KEPT}), 0) FROM item",  # noqa: S608 - our own text
        named,
    ).fetchall()
    pages = "SELECT count(*), ifnull(sum(state = 2), 0), ifnull(sum(iif(state = 2, size, 0)), 0) FROM page"
    figures = database.select(f"{pages} WHERE cycle = ?", number)[0]
    told = [changes.get(change, 0) for change in (Change.NEW, Change.CHANGED, Change.GONE)]
    return Cycle(number, began, ended, told[0], told[1], same, told[2], kept - same, *figures)


def last_cycles(database: Database) -> list[Cycle]:
    """Return all cycles, oldest first; the figures of one that goes on are counted."""
    cycles = [Cycle(*row) for row in database.select("SELECT * FROM cycle ORDER BY number")]
    return [*cycles[:-1], figures_of(database, cycles[-1].number)] if cycles and cycles[-1].ended is None else cycles


class Told(NamedTuple):
    """What was told of an item."""

    url: str | None
    """Of its page; None: several pages gave it."""
    label: str
    cycle: int
    """The last cycle in which a page gave it."""


def told_in(database: Database, number: int, change: Change) -> Iterator[Told]:
    """Yield the items that were told as *change* in cycle *number*, in constant memory."""
    query = (
        "SELECT page.request, item.label, item.cycle FROM item LEFT JOIN page ON page.id = item.page WHERE change = ?"
    )
    for request, label, cycle in database.reader.execute(query, (4 * number + change,)):
        url = None
        with suppress(zlib.error, pickle.UnpicklingError, TypeError, KeyError):
            url = pickle.loads(unpacked(request))["url"]  # noqa: S301 - as every request of the job
        yield Told(url, label, cycle)
