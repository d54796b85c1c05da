"""Compares items and pages of a job with those of its last cycle.

an item is given    compared with the items that had its key in the last cycle
a page is done      its row and those of its items go with its commit
nothing is pending  requests of the last cycle that this one has not made are made
the crawl ends      items that were looked for and are not there are gone
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from scrapy_bloom.job import changes as job
from scrapy_bloom.job.changes import Change, Cycle, ItemRow, PageRow, PageState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_bloom.job.database import Database
    from scrapy_bloom.job.records import Batch

logger = logging.getLogger(__name__)


@dataclass
class GivenItem:
    """An item that a page has given in this cycle."""

    row: ItemRow
    """The row that is written when the page is committed."""
    before: list[ItemRow]
    """The rows that earlier cycles left."""
    change: Change
    copy: object = None
    """The copy of the item that feeds keep."""
    is_lost: bool = False
    """Whether a pipeline or a feed has lost it to an error. The next cycle reports it again."""


@dataclass
class PageChanges:
    """What one page in progress needs to know of the last cycle, and has given in this one."""

    id: int
    digest: int | None
    """Of the request and the code; None: one of them has no digest."""
    last: PageRow | None
    request: bytes
    """The packed request."""
    is_filtered: bool
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
    size: int = 0
    """Bytes of its body."""
    validator: str = ""
    """Of the answer, as in :class:`PageRow`."""
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


class Changes:
    """The changes of one crawl, in cycle number *cycle* of the job in *database*.

    Args:
        count: Adds 1 to a stat of that name.

    """

    def __init__(self, database: Database, cycle: int, count: Callable[[str], None]) -> None:
        self._database, self._cycle, self._count = database, cycle, count
        job.begin_cycle(database, cycle)

    def page(
        self, fingerprint: bytes, digest: int | None, request: bytes, *, is_filtered: bool, is_resumed_start: bool
    ) -> PageChanges:
        """Return what is known of the page of a request; *digest* is of the request and the code."""
        id_ = job.number_of(fingerprint)
        last = job.page_of(self._database, id_)
        is_same = last is not None and digest is not None and last.digest == digest
        stored = last.request if is_same and last is not None else job.packed(request)
        is_again = is_resumed_start and last is not None and last.cycle == self._cycle
        return PageChanges(id_, digest, last, stored, is_filtered, is_again=is_again)

    def validator(self, page: PageChanges) -> str:
        """Return the validator that the request of *page* may have; "" if the page must be asked for in full."""
        last = page.last
        is_earlier = last is not None and last.cycle < self._cycle
        return last.validator if is_earlier and last is not None and last.digest == page.digest else ""

    def compare(self, page: PageChanges, kind: str, digest: int, key: str | None) -> GivenItem | None:
        """Return what an item of class *kind*, which *page* has given, changes; None if it is the same.

        *key* is the values of the fields that name it; None: it is named by its place.
        """
        label = f"{kind} {page.places[kind]}" if key is None else key
        page.places[kind] += 1
        number = job.number_of(f"{page.id if key is None else ''} {label}".encode())
        rows = job.items_of(self._database, number)
        if page.is_again and any(row[:4] == (number, page.id, digest, self._cycle) for row in rows):
            self._count("same")
            return None
        before = [row for row in rows if row.change // 4 < self._cycle and row.change % 4 != Change.GONE]
        same = next((row for row in before if row.digest == digest), None)
        change = Change.CHANGED if before else Change.NEW
        reported = 4 * self._cycle + change if same is None else same.change
        row = ItemRow(number, page.id, digest, self._cycle, reported, label)
        given = GivenItem(row, before, change)
        page.items.append(given)
        self._count(change.name.lower() if same is None else "same")
        return given if same is None else None

    def take(self, page: PageChanges, batch: Batch, *, is_answered: bool) -> None:
        """Add the rows of *page* to *batch*. *is_answered*: a response came, and nothing failed."""
        state, size, validator, last = page.state(is_answered=is_answered), page.size, "", page.last
        if state is PageState.NOT_MODIFIED and last is not None:
            size, validator = last.size, last.validator
        elif state is PageState.GONE:
            size = last.size if last is not None and last.state == state else self._cycle
        elif state is PageState.ANSWERED and page.digest is not None:
            validator = page.validator
        if page.needs_answer or any(given.is_lost for given in page.items):
            validator = ""
        row = PageRow(page.id, self._cycle, state, size, page.digest or 0, page.is_filtered, page.request, validator)
        batch.pages.append(row)
        for given in page.items:
            # An item that was lost is as it was in the last cycle, but it is not gone.
            last_rows = [row._replace(cycle=self._cycle) for row in given.before]
            batch.items += last_rows if given.is_lost else [given.row]

    def sweep(self) -> Iterator[bytes]:
        """Yield the stored requests of earlier cycles that this one has not made, as far as commits have noted that."""
        after = None
        while requests := job.requests_before(self._database, self._cycle, after):
            for after, request in requests:  # noqa: B007 - the last one is where the next call begins
                yield job.unpacked(request)

    def end(self) -> Cycle:
        """End the cycle, in which nothing is pending, and return its figures."""
        for label, *requests in job.items_with_one_key(self._database, self._cycle):
            logger.warning(
                "BLOOM_CHANGES: two items have the key %s in this cycle, on %s and on %s. An item of this key is "
                'reported as changed if none of the last cycle was equal. Name more fields in "key".',
                *(label, *map(job.url_of, requests)),
            )
        return job.end_cycle(self._database, self._cycle)

    def gone(self) -> Iterator[job.ReportedItem]:
        """Yield the items that are gone in this cycle."""
        return job.reported_items(self._database, self._cycle, Change.GONE)
