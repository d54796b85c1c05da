"""Delta crawls do not fetch a page again that gave an item in an earlier run. Pages without items (lists) are fetched.

    an item is scraped     the page of a request has given an item
    the page is committed  the key of the page waits: its items may not be safe yet
    a commit begins        the keys that wait belong to this commit
    the commit has ended   these keys are added to the files

A kill in between costs fetches, never an item. Where no commit has the items, all keys wait until the crawl has ended.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from scrapy_bloom.errors import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_bloom.crawl.delta_files import DeltaFiles
    from scrapy_bloom.frontier.page import Page
    from scrapy_bloom.frontier.store import Store

logger = logging.getLogger(__name__)


class NoDelta:
    """What a crawl without ``BLOOM_DELTA`` knows of earlier runs: nothing."""

    is_on = False

    def skips(self, key: bytes, request: object, *, is_start: bool) -> bool:  # noqa: ARG002 - nothing is known here
        """Return whether *request* with this *key* is skipped, and count it if so."""
        return False

    def known(self, keys: Sequence[bytes]) -> list[bool]:
        """Return for each of *keys* of links whether its page gave an item in an earlier run; count those."""
        return [False] * len(keys)

    def expected_lost(self) -> float:
        """Return how many new pages of this run have probably been taken for known."""
        return 0.0

    def wait_for_end(self) -> None:
        """Add no key before the crawl has ended: the items of a feed are not part of the commits."""

    def done(self, page: Page) -> None:
        """Note the key of *page*, which is committed next, if it gave whole items."""

    def commit_begins(self) -> None:
        """Note that the next commit holds the items of all pages done so far."""

    def crawl_closes(self) -> None:
        """Log what is odd about the run."""

    def ended(self) -> None:
        """Add what is safe, now that the feeds are stored, and close the files."""


class Delta(NoDelta):
    """What one crawl knows of the pages that gave an item.

    Args:
        files: What earlier runs left.
        store: The crawl's, open.
        stats: The crawl's.
        waits_for_end: Whether items are safe only when the crawl has ended, because they are not part of the commits.

    """

    is_on = True

    def __init__(self, files: DeltaFiles, store: Store, stats: Any, *, waits_for_end: bool) -> None:
        self._files, self._store, self._stats, self._waits_for_end = files, store, stats, waits_for_end
        self._done: list[bytes] = []  # keys of pages that are committed next
        self._writing: list[bytes] = []  # and those of the commit under way
        self._commits, self._left_out_start = 0, False
        files.begin(store.crawl_id)
        self._set_pages()
        pages = counted(stats.get_value("bloom/delta/pages", 0), "page")
        logger.info("Delta crawl: %s in %s gave an item in earlier runs", pages, files.home)

    def skips(self, key: bytes, request: object, *, is_start: bool) -> bool:
        """Return whether *request* with this *key* is skipped, and count it if so."""
        is_known = self._known([key], request)[0]
        self._left_out_start |= is_known and is_start
        return is_known

    def known(self, keys: Sequence[bytes]) -> list[bool]:
        """Return for each of *keys* of links whether its page gave an item in an earlier run; count those."""
        return self._known(keys, "a link")

    def _known(self, keys: Sequence[bytes], first: object) -> list[bool]:
        known = [self._files.is_of_earlier_run(key) for key in keys]
        if any(known):
            if not self._stats.get_value("bloom/delta/skipped"):
                logger.info("Not fetched again, as its page gave an item before: %s. No more are shown", first)
            self._stats.inc_value("bloom/delta/skipped", sum(known))
        return known

    def expected_lost(self) -> float:
        """Return how many new pages of this run have probably been taken for known."""
        return self._files.error_rate() * int(self._stats.get_value("scheduler/enqueued", 0))

    def wait_for_end(self) -> None:
        """Add no key before the crawl has ended: the items of a feed are not part of the commits."""
        self._waits_for_end = True

    def done(self, page: Page) -> None:
        """Note the key of *page*, which is committed next, if it gave whole items."""
        if page.key is not None:
            self._done.append(page.key)

    def commit_begins(self) -> None:
        """Note that the next commit holds the items of all pages done so far."""
        self._add_committed()
        if not self._waits_for_end:
            self._writing += self._done
            self._done.clear()

    def _add_committed(self) -> None:
        if (commits := self._store.commits or 0) > self._commits:
            self._commits = commits
            self._add(self._writing)

    def _add(self, keys: list[bytes]) -> None:
        for key in keys:
            self._files.add(key)
        keys.clear()
        self._set_pages()

    def _set_pages(self) -> None:
        pages = len(self._files) + len(self._done) + len(self._writing)
        self._stats.set_value("bloom/delta/pages", pages)

    def crawl_closes(self) -> None:
        """Log what is odd about the run."""
        self._add_committed()
        self._set_pages()
        if self._left_out_start and not self._stats.get_value("scheduler/enqueued"):
            logger.warning(
                "Nothing was fetched: the start pages have given items before. If they are lists, too, set "
                'dont_filter=True or meta["bloom_refetch"] = True on their requests.'
            )

    def ended(self) -> None:
        """Add what is safe, now that the feeds are stored, and close the files."""
        self._add_committed()
        if not self._waits_for_end:
            pass
        elif any(name.startswith("feedexport/failed_count/") for name in self._stats.get_stats()):
            logger.warning("A feed could not be stored: the next run fetches again what gave an item in this one")
        else:
            self._add(self._done)
        self._files.close()
