"""Compares items and pages of a job with those of its last cycle.

an item is given    compared with the items that had its key in the last cycle
a page is done      its row and those of its items go with its commit
nothing is pending  requests of the last cycle that this one has not made are made
the crawl ends      items that were looked for and are not there are gone
"""

from __future__ import annotations

import logging
import pickle
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from scrapy_bloom.frontier.page import Outcome
from scrapy_bloom.job.changes import Change, ItemRow, PageRow, PageState, number_of, packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_bloom.frontier.page import Page
    from scrapy_bloom.job.database import Database
    from scrapy_bloom.job.records import Batch

logger = logging.getLogger(__name__)

SWEPT_AT_ONCE = 500
"""Requests of earlier cycles that are read at a time."""


class NoChanges:
    """What a crawl without ``BLOOM_CHANGES`` knows of earlier cycles: nothing."""

    is_on = False

    def takes(self, page: Page, item: Any) -> bool:  # noqa: ARG002 - nothing is compared
        """Return whether *item*, which *page* has given, is new or changed, and goes on to the pipelines."""
        return True

    def hand_out(self, page: Page) -> None:
        """Give *page*, whose request is about to be made, what earlier cycles know of it."""

    def note_start(self, request: Any) -> None:
        """Note that ``start()`` asks for *request* without the filter, which it does in each run of a cycle."""

    def needs_answer(self, page: Page) -> None:
        """Have the next cycle ask for *page* in full: more came of it than its answer alone leads to."""

    def take(self, page: Page, batch: Batch) -> None:
        """Add what is known of *page* to *batch*."""

    def sweep(self) -> bool:
        """Enqueue requests of earlier cycles that this one has not made; return whether any can be fetched then."""
        return False

    def end(self) -> None:
        """End the cycle, in which nothing is pending."""


@dataclass
class GivenItem:
    """An item that a page has given in this cycle."""

    row: ItemRow
    """The row that is written when the page is committed."""
    before: list[ItemRow]
    change: Change
    is_lost: bool = False
    """Whether a pipeline or a feed has lost it to an error. The next cycle reports it again."""


@dataclass
class PageChanges:
    """What one page in progress needs to know of the last cycle, and has given in this one."""

    row: PageRow
    """The row that is written when the page is committed, as far as it is known."""
    last: PageRow | None
    """The row that the last commit left; None: no cycle has asked for the page."""
    validator: str = ""
    """What its request may have; "": the page must be asked for in full."""
    places: Counter[str] = field(default_factory=Counter)
    """How many items of each class the page has given."""
    items: list[GivenItem] = field(default_factory=list)
    is_conditional: bool = False
    """Whether the request that is being downloaded has a validator of ours."""
    is_not_modified: bool = False
    is_again: bool = False
    """Whether an earlier run of this cycle processed the page, and a start request asks for it once more."""
    callback: Literal["", "given", "ended"] = ""
    """Whether the callback was given the answer, so that no middleware refused it, and ended without an exception."""
    status: int = 0
    """Of the answer; 0: there is none, or only a part of it."""
    needs_answer: bool = False
    """Whether other things came of the page than its answer alone leads to: the next cycle asks for it in full."""

    def state(self, *, is_answered: bool) -> PageState:
        """Return the outcome of the page. *is_answered*: a response came, and nothing failed."""
        if self.is_not_modified:
            return PageState.NOT_MODIFIED
        if is_answered and self.status in {404, 410}:
            return PageState.GONE
        is_whole = is_answered and self.callback == "ended" and 200 <= self.status < 300
        return PageState.ANSWERED if is_whole else PageState.UNKNOWN


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


_WITH_ONE_KEY = (
    "SELECT label, first.request, last.request FROM (SELECT label, min(page) AS least, max(page) AS most FROM item "
    "WHERE cycle = ? GROUP BY key HAVING count(*) > 1 LIMIT 1) JOIN page AS first ON first.id = least "
    "JOIN page AS last ON last.id = most"
)
"""Label and requests of two items that had one key in a cycle, if two had."""


class Changes(NoChanges):
    """The changes of one crawl, in cycle number *cycle* of the job in *database*. *count* adds 1 to a stat."""

    is_on = True

    def __init__(self, database: Database, cycle: int, count: Callable[[str], None]) -> None:
        self._database, self._cycle, self.count = database, cycle, count
        begin = "INSERT OR IGNORE INTO cycle VALUES (?, ?, NULL, 0, 0, 0, 0, 0, 0, 0, 0)"
        database.writer.execute(begin, (cycle, time.time()))

    def page(
        self, fingerprint: bytes, digest: int, request: bytes, *, is_filtered: bool, is_asked_again: bool
    ) -> PageChanges:
        """Return what is known of the page of a request; *digest* is of the request and the code; 0: there is none."""
        id_ = number_of(fingerprint)
        rows = self._database.select("SELECT * FROM page WHERE id = ?", id_)
        last = PageRow(*rows[0]) if rows else None
        stored = last.request if last is not None and digest and last.digest == digest else packed(request)
        row = PageRow(id_, self._cycle, PageState.UNKNOWN, 0, digest, is_filtered, stored, "")
        if last is None or last.cycle == self._cycle:
            return PageChanges(row, last, is_again=is_asked_again and last is not None)
        return PageChanges(row, last, last.validator if last.digest == digest else "")

    def compare(self, page: PageChanges, kind: str, digest: int, key: str | None) -> GivenItem | None:
        """Return what an item of class *kind*, which *page* has given, changes; None if it is the same.

        *key* is the values of the fields that name it; None: it is named by its place.
        """
        label = f"{kind} {page.places[kind]}" if key is None else key
        page.places[kind] += 1
        number = number_of(f"{page.row.id if key is None else ''} {label}".encode())
        rows = [ItemRow(*row) for row in self._database.select("SELECT * FROM item WHERE key = ?", number)]
        if page.is_again and any(row[:4] == (number, page.row.id, digest, self._cycle) for row in rows):
            self.count("same")
            return None
        before = [row for row in rows if row.is_of_before(self._cycle)]
        same = next((row for row in before if row.digest == digest), None)
        change = Change.CHANGED if before else Change.NEW
        reported = 4 * self._cycle + change if same is None else same.change
        row = ItemRow(number, page.row.id, digest, self._cycle, reported, label)
        given = GivenItem(row, before, change)
        page.items.append(given)
        self.count(change.name.lower() if same is None else "same")
        return given if same is None else None

    def needs_answer(self, page: Page) -> None:
        """Have the next cycle ask for *page* in full: more came of it than its answer alone leads to."""
        page.changes.needs_answer = True

    def take(self, page: Page, batch: Batch) -> None:
        """Add what is known of *page* to *batch*."""
        known: PageChanges = page.changes
        state, last = known.state(is_answered=page.result.outcome is Outcome.ANSWERED), known.last
        row = known.row._replace(state=state)
        if row.state == PageState.NOT_MODIFIED and last is not None:
            row = row._replace(size=last.size, validator=last.validator)
        elif row.state == PageState.GONE:
            row = row._replace(size=last.size if last is not None and last.state == row.state else self._cycle)
        is_in_full = known.needs_answer or not row.digest or any(given.is_lost for given in known.items)
        if is_in_full or row.state not in {PageState.ANSWERED, PageState.NOT_MODIFIED}:
            row = row._replace(validator="")
        batch.pages.append(row)
        for given in known.items:
            # An item that was lost is as it was in the last cycle, but it is not gone.
            last_rows = [last_row._replace(cycle=self._cycle) for last_row in given.before]
            batch.items += last_rows if given.is_lost else [given.row]

    def unmade(self) -> Iterator[bytes]:
        """Yield the stored requests of earlier cycles that this one has not made, as far as commits have noted that.

        A page that is gone is among them 1, 2, 4, 8, ... cycles later: an unchanged page may lead to it still.
        """
        query = (
            "SELECT id, request FROM page WHERE id > ? AND cycle < ? AND is_filtered "
            "AND (state != 3 OR (? - size) & (? - size - 1) = 0) ORDER BY id LIMIT ?"
        )
        after, cycle = -(1 << 63), self._cycle
        while requests := self._database.select(query, after, cycle, cycle, cycle, SWEPT_AT_ONCE):
            for after, request in requests:  # noqa: B007 - the last one is where the next call begins
                yield unpacked(request)

    def end_cycle(self) -> Cycle:
        """Note which items are gone in the cycle, and return its figures. Nothing is pending; may be repeated."""
        number, run = self._cycle, self._database.writer.execute
        for label, *requests in self._database.select(_WITH_ONE_KEY, number):
            logger.warning(
                "BLOOM_CHANGES: two items have the key %s in this cycle, on %s and on %s. An item of this key is "
                'reported as changed if none of the last cycle was equal. Name more fields in "key".',
                *(label, *map(_url_of, requests)),
            )
        run("BEGIN IMMEDIATE")
        for statement in _END:
            run(statement, {"cycle": number})
        run("COMMIT")
        cycle = _figures_of(self._database, number)._replace(ended=time.time())
        run(f"REPLACE INTO cycle VALUES ({','.join('?' * len(cycle))})", cycle)  # noqa: S608 - places
        return cycle

    def gone(self) -> Iterator[tuple[str | None, str]]:
        """Yield the URL of the page and the label of each item that is gone in this cycle."""
        return (item[:2] for item in reported_items(self._database, self._cycle, Change.GONE))


def _figures_of(database: Database, number: int) -> Cycle:
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
    return [*cycles[:-1], _figures_of(database, cycles[-1].number)] if cycles and cycles[-1].ended is None else cycles


def reported_items(database: Database, number: int, change: Change) -> Iterator[tuple[str | None, str, int]]:
    """Yield the items that were reported as *change* in cycle *number*, in constant memory.

    Each has the URL of its page, None if that cannot be read; its label; and the last cycle in which the page gave it.
    """
    query = "SELECT request, label, item.cycle FROM item LEFT JOIN page ON page.id = item.page WHERE change = ?"
    for request, label, cycle in database.reader.execute(query, (4 * number + change,)):
        yield _url_of(request), label, cycle


def _url_of(request: bytes) -> str | None:
    """Return the URL of a :func:`packed` *request*; None if it cannot be read."""
    with suppress(Exception):  # whatever unpickling raises
        return str(pickle.loads(unpacked(request))["url"])  # noqa: S301 - as every request of the job
    return None
