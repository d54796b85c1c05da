"""How the pages of a job become part of a batch, by the rule of :mod:`~scrapy_bloom.frontier.page`; and its limits."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from scrapy_bloom.frontier.page import Page, State, check, done, lead_to_memory, split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scrapy_bloom.frontier.lanes import Frontier, Lane
    from scrapy_bloom.job.commits import Commits
    from scrapy_bloom.job.records import Batch

logger = logging.getLogger(__name__)

LONGEST_SECONDS = 30.0
"""Seconds that requests and done pages wait for the page that led to them. Then they are committed without it."""
MOST_ENTRIES = 10_000
"""The most items, requests and done pages that wait for one page. If there are more, they are committed without it."""


class OpenPages:
    """The pages of a job that are not committed, and the sink that commits them with *commits*.

    *take* takes what a page has given; into the batch, if the page is committed with it.
    """

    def __init__(self, frontier: Frontier, take: Callable[[Page, Batch | None], None], commits: Commits) -> None:
        self._frontier, self._take, self._commits = frontier, take, commits
        self.holders: dict[int, Page] = {}
        """The pages that requests wait for, by the id of the request."""
        self.waited_for: dict[Page, float] = {}
        """The pages for which something waits, and since when."""
        self._has_warned = False

    def hold(self, parent: Page | None, id_: int, lane: Lane, body: bytes) -> bool:
        """Let an unfiltered request wait for *parent*, the page that led to it; return False if it need not wait."""
        if parent is None or parent.is_split:
            return False
        parent.held[id_] = (lane, body)
        self.holders[id_] = parent
        self.waited_for.setdefault(parent, time.monotonic())
        return True

    def keep_in_memory(self, page: Page, parent: Page | None) -> None:
        """Keep *parent* pending until *page* is complete, whose request is in memory only."""
        lead_to_memory(parent, page)
        if parent is not None:
            self.waited_for.setdefault(parent, time.monotonic())

    def done(self, page: Page) -> None:
        """Note that the engine is done with *page*, and commit what is complete now."""
        if page.row is None or page.parent is not None or page in self.waited_for:
            done(page, self)
        else:
            page.state = State.COMMITTED  # the usual page: DONE and FREE
            self.commit(page)

    def write(self, key: int, request: tuple[Lane, bytes]) -> None:
        """Add a *request* that waited for its page."""
        self._commits.batch.add(key, *request)
        del self.holders[key]

    def commit(self, page: Page) -> None:
        """Add what *page* gave, and take its row off: off the database, or off the batch that was going to write it."""
        self.waited_for.pop(page, None)
        batch = self._commits.batch
        self._take(page, batch)
        batch.forgotten += page.taken_back
        if page.fingerprint is not None:
            batch.fingerprints[page.fingerprint] = None
            self._commits.of_memory.pop(page.fingerprint, None)
        if page.row is None:
            return
        if batch.added.pop(page.row.id, None) is None:
            batch.done.append(page.row)
        else:
            self._frontier.taken.discard(page.row.id)

    def commit_in_parts(self, pages: Iterable[Page]) -> None:
        """Commit early what waits for a page, if it is too much or waits too long. *pages* are those in progress."""
        for page in pages:
            if len(page.gave) > MOST_ENTRIES:
                self._warn(page)
                self._take(page, None)
        latest = time.monotonic() - LONGEST_SECONDS
        for page, since in list(self.waited_for.items()):
            if since < latest or len(page.held) + len(page.deferred) > MOST_ENTRIES:
                if page.held or any(child.fingerprint is None for child in page.deferred):
                    self._warn(page)
                split(page, self)

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

    def check(self, in_flight: Iterable[Page]) -> None:
        """Assert what always holds of the pages *in_flight*, and of those that wait."""
        pages = {*in_flight, *self.waited_for, *self.holders.values(), *self._commits.of_memory.values()}
        for page in pages:
            check(page)
            assert page.state is not State.COMMITTED
            assert page in self.waited_for or not (page.in_memory or page.held or page.deferred)
        assert self.holders == {id_: page for page in pages for id_ in page.held}
        assert all(page.fingerprint == fingerprint for fingerprint, page in self._commits.of_memory.items())
