"""Compares items and pages of a job with those of its last cycle.

an item is given    compared with the items that had its key in the last cycle
a page is done      its row and those of its items go with its commit
nothing is pending  requests of the last cycle that this one has not made are made
the crawl ends      what was looked for and is not there is gone
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from scrapy_bloom.job import changes as rows
from scrapy_bloom.job import cycles
from scrapy_bloom.job.changes import Change, ItemRow, PageRow, PageState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_bloom.job.database import Database
    from scrapy_bloom.settings import ChangesOptions

logger = logging.getLogger(__name__)


@dataclass
class GivenItem:
    """An item that a page has given in this cycle."""

    row: ItemRow
    """What is written when the page is committed."""
    last: ItemRow | None
    """What was known before."""
    change: str
    """``new`` or ``changed``."""
    copy: object = None
    """The copy of the item that feeds keep."""
    is_lost: bool = False
    """Whether a pipeline or a feed has lost it to an error. The next cycle tells it again."""


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


class Changes:
    """The changes of one crawl, in cycle number *cycle* of the job in *database*.

    Args:
        options: The setting.
        code: Digest of the spider's code; None: it has none, and every page is asked for in full.
        count: Adds 1 to a stat of that name.

    """

    def __init__(
        self, database: Database, cycle: int, options: ChangesOptions, code: bytes | None, count: Callable[[str], None]
    ) -> None:
        self._database, self.cycle, self.options, self.code, self._count = database, cycle, options, code, count
        self._given: dict[int, ItemRow] = {}  # rows that perhaps no transaction has written yet
        self._in_progress: dict[int, PageChanges] = {}
        self._rows, self._writing = rows.Rows(), rows.Rows()
        self._has_warned_of_key = False
        cycles.begin_cycle(database, cycle)

    def page(self, fingerprint: bytes, digest: int | None, request: bytes, *, is_filtered: bool) -> PageChanges:
        """Return what is known of the page of a request; *digest* is of the request and the code."""
        id_ = rows.number_of(fingerprint)
        last = cycles.page_of(self._database, id_)
        is_same = last is not None and digest is not None and last.digest == digest
        stored = last.request if is_same and last is not None else rows.packed(request)
        page = self._in_progress[id_] = PageChanges(id_, digest, last, stored, is_filtered)
        return page

    def is_of_this_cycle(self, page: PageChanges) -> bool:
        """Return whether *page* was done before in this cycle."""
        return page.last is not None and page.last.cycle == self.cycle

    def validator(self, page: PageChanges) -> str:
        """Return the validator that the request of *page* may have; "" if the page must be asked for in full."""
        last = page.last
        is_same = (
            last is not None and last.cycle < self.cycle and page.digest is not None and last.digest == page.digest
        )
        return last.validator if is_same and last is not None else ""

    def compare(self, page: PageChanges, kind: str, digest: bytes, key: str | None) -> GivenItem | None:
        """Return what an item of class *kind*, which *page* has given, changes; None if it is the same.

        *key* is the values of the fields that name it; None: it is named by its place.
        """
        label = f"{kind} {page.places[kind]}" if key is None else key
        page.places[kind] += 1
        id_ = rows.number_of(f"{page.id if key is None else ''} {label}".encode())
        last = self._last(id_)
        if page.is_again and last is not None and last.cycle == self.cycle and rows.holds(last.digests, digest):
            self._count("same")
            return None
        before = b"" if last is None else last.before(self.cycle)
        is_same = rows.holds(before, digest)
        change = Change.CHANGED if before else Change.NEW
        told = last.change if is_same and last is not None else 4 * self.cycle + change
        row = ItemRow(id_, page.id, self.cycle, told, digest, before, label, None)
        self._given[id_] = row if last is None else self._joined(page, row, last)
        given = GivenItem(self._given[id_], last, change.name.lower())
        page.items.append(given)
        self._count("same" if is_same else given.change)
        return None if is_same else given

    def _last(self, id_: int) -> ItemRow | None:
        """Return what is known of the item *id_*; None if that is nothing, or it was gone."""
        last = self._given.get(id_) or cycles.item_of(self._database, id_)
        return None if last is not None and last.cycle < self.cycle and last.change % 4 == Change.GONE else last

    def _joined(self, page: PageChanges, row: ItemRow, last: ItemRow) -> ItemRow:
        """Return the *row* of an item that *page* gives, with what is known of its other pages and digests."""
        if last.cycle < self.cycle:
            row = row._replace(earlier=None if row.earlier == row.digests else row.earlier)
        else:
            self._warn_of_key(row.label, last.label)
            row = row._replace(digests=last.digests + row.digests, other=last.other)
        if last.page == page.id:
            return row
        if last.cycle < self.cycle and last.page != rows.SEVERAL_PAGES:
            return row._replace(other=last.page)  # the end of the cycle knows whether that page still has it
        page.needs_answer = True  # all of them must be answered to know that the item is gone
        self._ask_in_full(last.page)
        return row._replace(page=rows.SEVERAL_PAGES)

    def _ask_in_full(self, id_: int) -> None:
        """Have the next cycle ask for page *id_* in full."""
        if (other := self._in_progress.get(id_)) is not None:
            other.needs_answer = True
        else:
            self._rows.in_full.append(id_)

    def _warn_of_key(self, label: str, other: str) -> None:
        if not self._has_warned_of_key:
            self._has_warned_of_key = True
            logger.warning(
                "BLOOM_CHANGES: two items have the same key in this cycle: %s, and %s. An item of this key is told as "
                'changed if none of the last cycle was equal. Name more fields in "key". No more are shown.',
                *(other, label),
            )

    def take(self, page: PageChanges, *, is_answered: bool) -> None:
        """Take the rows of *page*, which is committed next. *is_answered*: a response came, and nothing failed."""
        state, size, validator = self._state(page, is_answered=is_answered), page.size, ""
        if state is PageState.NOT_MODIFIED and page.last is not None:
            size, validator = page.last.size, page.last.validator
        elif state is PageState.GONE:
            was_gone = page.last is not None and page.last.state == state
            size = page.last.size if page.last is not None and was_gone else self.cycle
        elif state is PageState.ANSWERED and page.digest is not None:
            validator = page.validator
        if page.needs_answer or any(given.is_lost for given in page.items):
            validator = ""
        self._in_progress.pop(page.id, None)
        self._rows.pages.append(
            PageRow(page.id, self.cycle, state, size, page.digest or 0, page.is_filtered, page.request, validator)
        )
        self._rows.items += [row for given in page.items if (row := self._row_of(given)) is not None]

    @staticmethod
    def _state(page: PageChanges, *, is_answered: bool) -> PageState:
        if page.is_not_modified:
            return PageState.NOT_MODIFIED
        if is_answered and page.status in {404, 410}:
            return PageState.GONE
        is_whole = is_answered and page.callback == "ended" and 200 <= page.status < 300
        return PageState.ANSWERED if is_whole else PageState.UNKNOWN

    def rows(self) -> rows.Rows:
        """Return the rows that were taken since the last call: a commit begins, and writes them."""
        for row in self._writing.items:  # the commit before is written, or this one would not begin
            if self._given.get(row.id) is row:
                del self._given[row.id]
        self._writing, self._rows = self._rows, rows.Rows()
        return self._writing

    def _row_of(self, given: GivenItem) -> ItemRow | None:
        """Return the row of *given*. One that was lost is as it was in the last cycle, but it is not gone."""
        if not given.is_lost:
            return given.row
        return None if given.last is None else given.last._replace(cycle=self.cycle, earlier=None)

    def sweep(self) -> Iterator[bytes]:
        """Yield the stored requests of earlier cycles that this one has not made, as far as commits have noted that."""
        after = None
        while found := cycles.requests_before(self._database, self.cycle, after):
            for after, request in found:  # noqa: B007 - the last one is where the next call begins
                yield rows.unpacked(request)

    def end(self) -> dict[str, Any]:
        """End the cycle, in which nothing is pending, and return its figures."""
        cycles.end_cycle(self._database, self.cycle)
        return cycles.last_cycles(self._database)[-1]._asdict()

    def gone(self) -> Iterator[tuple[str | None, str]]:
        """Yield the URL of the page and the label of each item that is gone in this cycle."""
        for told in cycles.told_in(self._database, self.cycle, Change.GONE):
            yield told.url, told.label
