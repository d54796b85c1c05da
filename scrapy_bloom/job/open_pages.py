"""Which pages of a job a commit may contain: a page, its items and what it led to are one transaction.

A page is *done* when the engine is done with it. It is *complete* when all memory-only requests that it led to are
complete, too. A complete page is committed, unless its parent is not committed yet: then it is deferred until the
parent is. So after a kill, a page is fetched again together with everything that only this page can lead to: requests
that the filter does not know, and requests that no file can hold.

Filtered requests that can be serialized take no part in this. They are written at once: when their page is fetched
again, the filter drops them.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from scrapy_bloom.frontier.page import Page, Row, State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy_bloom.frontier.lanes import Frontier, Lane
    from scrapy_bloom.frontier.store import PageEffects
    from scrapy_bloom.job.records import Batch

logger = logging.getLogger(__name__)

LONGEST_SECONDS = 30.0
"""Seconds that requests and done pages wait for the page that led to them. Then they are committed without it."""
MOST_ENTRIES = 10_000
"""The most items, requests and done pages that wait for one page. If there are more, they are committed without it."""


class OpenPages:
    """The pages of a job that are not committed.

    Args:
        frontier: Holds the requests of the job.
        effects: Takes what pages have given.

    """

    def __init__(self, frontier: Frontier, effects: PageEffects) -> None:
        self._frontier, self._effects = frontier, effects
        self.holders: dict[int, Page] = {}
        """The pages that requests wait for, by the id of the request."""
        self.waited_for: dict[Page, float] = {}
        """The pages for which something waits, and since when."""
        self._has_warned = self._has_logged_memory = False
        self.unsaved: dict[bytes, Page] = {}
        """Pages whose requests are in memory only, by the fingerprints that are written with them."""

    def hold(self, parent: Page | None, id_: int, lane: Lane, body: bytes) -> bool:
        """Let an unfiltered request wait for *parent*, the page that led to it; return False if it need not wait."""
        if parent is None or parent.state is not State.WHOLE:
            return False
        parent.held[id_] = (lane, body)
        self.holders[id_] = parent
        self.waited_for.setdefault(parent, time.monotonic())
        return True

    def wait_for(self, page: Page, parents: Iterable[Page], error: ValueError) -> None:
        """Keep *parents* pending until *page* is complete, whose request is in memory only because of *error*."""
        if not self._has_logged_memory:
            self._has_logged_memory = True
            logger.warning(
                "%s cannot be serialized (%s): it is in memory only. If the crawl ends before it is done, the page "
                "that led to it is fetched again",
                page.request,
                error,
            )
        page.parents = tuple(parent for parent in parents if parent.state is not State.COMMITTED)
        for parent in page.parents:
            parent.open_parts += 1
            self.waited_for.setdefault(parent, time.monotonic())

    def done(self, page: Page, batch: Batch) -> None:
        """Note that the engine is done with *page*, and commit with *batch* what is complete now."""
        page.open_parts -= 1
        self._complete([page], batch)

    def _complete(self, pages: list[Page], batch: Batch) -> None:
        while pages:
            page = pages.pop()
            if page.open_parts:
                continue
            holder = page.parents[0] if len(page.parents) == 1 else None
            if holder is not None and holder.state is State.WHOLE:
                holder.deferred.append(page)
            else:
                self._commit(page, batch)
            if page.row is None:
                for parent in page.parents:
                    parent.open_parts -= 1
                    pages.append(parent)

    def _commit(self, page: Page, batch: Batch) -> None:
        """Add *page* to *batch*, and all that waits for it."""
        pages = [page]
        while pages:
            page = pages.pop()
            page.state = State.COMMITTED
            self.waited_for.pop(page, None)
            self._effects.take(page)
            batch.forgotten += page.taken_back
            if page.fingerprint is not None:
                batch.fingerprints[page.fingerprint] = None
                self.unsaved.pop(page.fingerprint, None)
            self._release(page, batch)
            if page.row is not None:
                self._delete(page.row, batch)
            pages += reversed(page.deferred)
            page.deferred.clear()

    def _release(self, page: Page, batch: Batch) -> None:
        """Write the requests that wait for *page*."""
        for id_, (lane, body) in page.held.items():
            batch.lanes.setdefault(lane.id, lane)
            batch.added[id_] = (lane.id, body)
            del self.holders[id_]
        page.held.clear()

    def _delete(self, row: Row, batch: Batch) -> None:
        """Take the row of a page off the database, or off the batch that was going to write it."""
        if batch.added.pop(row.id, None) is None:
            batch.done.append(row)
        else:
            self._frontier.taken.discard(row.id)

    def commit_in_parts(self, pages: Iterable[Page], batch: Batch) -> None:
        """Commit early what waits for a page, if it is too much or waits too long. *pages* are those in progress."""
        for page in pages:
            if len(page.gave) > MOST_ENTRIES:
                self._warn(page)
                self._effects.take(page)
        latest = time.monotonic() - LONGEST_SECONDS
        for page, since in list(self.waited_for.items()):
            if since < latest or len(page.held) + len(page.deferred) > MOST_ENTRIES:
                self._commit_successors(page, batch)

    def _commit_successors(self, page: Page, batch: Batch) -> None:
        if page.held or any(child.fingerprint is None for child in page.deferred):
            self._warn(page)
        page.state = State.IN_PARTS
        self._release(page, batch)
        deferred, page.deferred = page.deferred, []
        for child in deferred:
            self._commit(child, batch)

    def _warn(self, page: Page) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s is in progress for more than %d s, or has given more than %s items and requests. They are "
                "committed before the page is: if the crawl is killed first, the page is fetched again, and these "
                "items and unfiltered requests come twice. No more pages are shown.",
                page.request,
                LONGEST_SECONDS,
                f"{MOST_ENTRIES:,}",
            )

    def waiting(self) -> int:
        """Return how many pages wait for requests in memory only. Nothing is in progress any more."""
        return len(self.waited_for)
