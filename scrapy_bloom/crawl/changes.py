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
from typing import TYPE_CHECKING, Any, Literal

from scrapy_bloom.job import cycles
from scrapy_bloom.job.changes import Change, ItemRow, PageRow, PageState, number_of, packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_bloom.frontier.page import Page
    from scrapy_bloom.job.database import Database
    from scrapy_bloom.job.records import Batch

logger = logging.getLogger(__name__)


class NoChanges:
    """What a crawl without ``BLOOM_CHANGES`` knows of earlier cycles: nothing."""

    is_on = False

    def takes(self, page: Page, item: Any) -> bool:  # noqa: ARG002 - nothing is compared
        """Return whether *item*, which *page* has given, is new or changed, and goes on to the pipelines."""
        return True

    def lost_copy(self, page: Page, copy: object) -> None:
        """Note that a feed has lost *copy*, the copy of an item that *page* has given."""

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
    """The rows that earlier cycles left."""
    change: Change
    copy: object = None
    """The copy of the item that feeds keep."""
    is_lost: bool = False
    """Whether a pipeline or a feed has lost it to an error. The next cycle reports it again."""


@dataclass
class PageChanges:
    """What one page in progress needs to know of the last cycle, and has given in this one."""

    row: PageRow
    """The row that is written when the page is committed, as far as it is known."""
    last: PageRow | None
    """The row that the last commit left; None: no cycle has asked for the page."""
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


class Changes:
    """The changes of one crawl, in cycle number *cycle* of the job in *database*.

    Args:
        count: Adds 1 to a stat of that name.

    """

    def __init__(self, database: Database, cycle: int, count: Callable[[str], None]) -> None:
        self._database, self._cycle, self._count = database, cycle, count
        cycles.note_cycle(database, cycle)

    def page(
        self, fingerprint: bytes, digest: int, request: bytes, *, is_filtered: bool, is_resumed_start: bool
    ) -> PageChanges:
        """Return what is known of the page of a request; *digest* is of the request and the code; 0: there is none."""
        id_ = number_of(fingerprint)
        last = cycles.page_of(self._database, id_)
        stored = last.request if last is not None and digest and last.digest == digest else packed(request)
        row = PageRow(id_, self._cycle, PageState.UNKNOWN, 0, digest, is_filtered, stored, "")
        return PageChanges(row, last, is_again=is_resumed_start and last is not None and last.cycle == self._cycle)

    def validator(self, page: PageChanges) -> str:
        """Return the validator that the request of *page* may have; "" if the page must be asked for in full."""
        last, digest = page.last, page.row.digest
        return last.validator if last is not None and last.cycle < self._cycle and digest == last.digest else ""

    def compare(self, page: PageChanges, kind: str, digest: int, key: str | None) -> GivenItem | None:
        """Return what an item of class *kind*, which *page* has given, changes; None if it is the same.

        *key* is the values of the fields that name it; None: it is named by its place.
        """
        label = f"{kind} {page.places[kind]}" if key is None else key
        page.places[kind] += 1
        number = number_of(f"{page.row.id if key is None else ''} {label}".encode())
        rows = cycles.items_of(self._database, number)
        if page.is_again and any(row[:4] == (number, page.row.id, digest, self._cycle) for row in rows):
            self._count("same")
            return None
        before = [row for row in rows if row.is_of_before(self._cycle)]
        same = next((row for row in before if row.digest == digest), None)
        change = Change.CHANGED if before else Change.NEW
        reported = 4 * self._cycle + change if same is None else same.change
        row = ItemRow(number, page.row.id, digest, self._cycle, reported, label)
        given = GivenItem(row, before, change)
        page.items.append(given)
        self._count(change.name.lower() if same is None else "same")
        return given if same is None else None

    def take(self, page: PageChanges, batch: Batch, *, is_answered: bool) -> None:
        """Add the rows of *page* to *batch*. *is_answered*: a response came, and nothing failed."""
        row, last = page.row._replace(state=page.state(is_answered=is_answered)), page.last
        if row.state == PageState.NOT_MODIFIED and last is not None:
            row = row._replace(size=last.size, validator=last.validator)
        elif row.state == PageState.GONE:
            row = row._replace(size=last.size if last is not None and last.state == row.state else self._cycle)
        is_in_full = page.needs_answer or not row.digest or any(given.is_lost for given in page.items)
        if is_in_full or row.state not in {PageState.ANSWERED, PageState.NOT_MODIFIED}:
            row = row._replace(validator="")
        batch.pages.append(row)
        for given in page.items:
            # An item that was lost is as it was in the last cycle, but it is not gone.
            last_rows = [last_row._replace(cycle=self._cycle) for last_row in given.before]
            batch.items += last_rows if given.is_lost else [given.row]

    def sweep(self) -> Iterator[bytes]:
        """Yield the stored requests of earlier cycles that this one has not made, as far as commits have noted that."""
        after = None
        while requests := cycles.requests_before(self._database, self._cycle, after):
            for after, request in requests:  # noqa: B007 - the last one is where the next call begins
                yield unpacked(request)

    def end(self) -> cycles.Cycle:
        """End the cycle, in which nothing is pending, and return its figures."""
        for label, *requests in cycles.items_with_one_key(self._database, self._cycle):
            logger.warning(
                "BLOOM_CHANGES: two items have the key %s in this cycle, on %s and on %s. An item of this key is "
                'reported as changed if none of the last cycle was equal. Name more fields in "key".',
                *(label, *map(cycles.url_of, requests)),
            )
        return cycles.end_cycle(self._database, self._cycle)

    def gone(self) -> Iterator[tuple[str | None, str]]:
        """Yield the URL of the page and the label of each item that is gone in this cycle."""
        return (item[:2] for item in cycles.reported_items(self._database, self._cycle, Change.GONE))
