"""Delta crawls do not fetch a page again that gave an item in an earlier run. Pages without items (lists) are fetched.

    item_scraped           the page of a request has given an item
    the page is committed  the key of the page waits: its items may not be safe yet
    a commit begins        the keys that wait belong to this commit
    the commit has ended   these keys are added to the files

A kill in between costs fetches, never an item. Where no commit has the items, all keys wait until the crawl has ended.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.utils.project import data_path
from scrapy.utils.python import to_bytes

from scrapy_bloom.crawl.delta_files import DeltaFiles
from scrapy_bloom.errors import SettingsError, counted
from scrapy_bloom.frontier.page import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_bloom.frontier.page import Page
    from scrapy_bloom.frontier.store import Store
    from scrapy_bloom.settings import BloomSettings

logger = logging.getLogger(__name__)

KEYS = ("bloom_delta_key", "delta_key", "deltafetch_key")
"""Names in ``meta`` of what takes the place of a request's fingerprint; the last is scrapy-deltafetch's."""


def open_delta(crawler: Crawler, bloom: BloomSettings, scheduler: str) -> Delta | None:
    """Return what earlier runs left; None without a delta. DELTAFETCH_ENABLED counts with our scheduler only.

    Raises:
        SettingsError: There is no *scheduler* of ours.
        BloomError: The files cannot be used.

    """
    settings = crawler.settings
    delta = settings.getbool("DELTAFETCH_ENABLED") and bool(scheduler) if bloom.delta is None else bloom.delta
    if not delta:
        return None
    if not scheduler:
        problem = f"BLOOM_DELTA needs our scheduler, and SCHEDULER is {settings['SCHEDULER']}: take that out"
        raise SettingsError([problem])
    return Delta(crawler, bloom, Path(data_path("delta") if delta is True else delta))


class Delta:
    """What one crawl knows of the pages that gave an item. Keep a reference to it: signals do not."""

    waits_for_end = False
    """Whether items are safe only when the crawl has ended, because they are not part of the commits."""

    def __init__(self, crawler: Crawler, bloom: BloomSettings, directory: Path) -> None:
        spider, settings, stats = crawler.spider, crawler.settings, crawler.stats
        assert spider is not None and stats is not None  # noqa: S101, PT018 - the engine opens the scheduler with both
        self._crawler, self._stats = crawler, stats
        self._done: list[bytes] = []  # keys of pages that are committed next
        self._writing: list[bytes] = []  # and those of the commit under way
        self._commits, self._left_out_start = 0, False
        if bloom.delta_reset:
            logger.warning(
                "BLOOM_DELTA_RESET goes with the next release: run `scrapy bloom forget --delta %s` instead, once.",
                spider.name,
            )
        forgets = (
            bloom.delta_reset or settings.getbool("DELTAFETCH_RESET") or getattr(spider, "deltafetch_reset", False)
        )
        self._files = DeltaFiles(directory, spider.name, bloom, forgets=forgets)
        if settings.getbool("DELTAFETCH_ENABLED"):
            self._files.take_over(Path(data_path(settings.get("DELTAFETCH_DIR", "deltafetch")), f"{spider.name}.db"))
        self._set_pages()
        pages = counted(stats.get_value("bloom/delta/pages", 0), "page")
        logger.info("Delta crawl: %s in %s gave an item in earlier runs", pages, self._files.home)

    def begin(
        self,
        store: Store,
        of_request: Callable[[Request], bytes],
        current_page: Callable[[], Page | None],
        *,
        has_feeds: bool,
    ) -> None:
        """Watch the crawl. *has_feeds*: feeds are part of the commits."""
        self._store, self._of_request, self._current_page = store, of_request, current_page
        self._files.begin(store.crawl_id)
        self._crawler.signals.connect(self._gave_item, signal=signals.item_scraped)
        self._crawler.signals.connect(self._lost_item, signal=signals.item_error)
        self.waits_for_end = store.commits is None or (bool(self._crawler.settings.getdict("FEEDS")) and not has_feeds)

    # -- requests ------------------------------------------------------------------------------------------------------

    def skips(self, request: Request) -> bool:
        """Return whether *request* is skipped, and count it if so. An unfiltered start request is never skipped."""
        meta = request.meta
        is_wanted = meta.get("bloom_refetch") or meta.get("delta_skip") or not meta.get("deltafetch_enabled", True)
        if is_wanted or (request.dont_filter and meta.get("is_start_request")) or (key := self._key(request)) is None:
            return False
        is_known = self.known([key], request)[0]
        self._left_out_start |= is_known and bool(meta.get("is_start_request"))
        return is_known

    def known(self, keys: Sequence[bytes], first: object = "a link") -> list[bool]:
        """Return for each of *keys* whether its page gave an item in an earlier run; count and log those."""
        known = [self._files.is_of_earlier_run(key) for key in keys]
        if any(known):
            if not self._stats.get_value("bloom/delta/skipped"):
                logger.info("Not fetched again, as its page gave an item before: %s. No more are shown", first)
            self._stats.inc_value("bloom/delta/skipped", sum(known))
        return known

    def _key(self, request: Request) -> bytes | None:
        key = next(filter(None, map(request.meta.get, KEYS)), None)
        try:
            return to_bytes(key) if key else self._of_request(request)
        except Exception:  # no text, or a fingerprinter of the user's fails
            logger.warning("%s has no key, and is fetched in each run", request, exc_info=True)
            return None

    def expected_lost(self) -> float:
        """Return how many new pages of this run have probably been taken for known."""
        return self._files.error_rate() * int(self._stats.get_value("scheduler/enqueued", 0))

    # -- pages ---------------------------------------------------------------------------------------------------------

    def _gave_item(self) -> None:
        if (page := self._current_page()) is not None:
            page.note_item()

    def _lost_item(self) -> None:
        if (page := self._current_page()) is not None:
            page.note_item(failed=True)

    def done(self, page: Page) -> None:
        """Note the key of *page*, which is committed next, if it gave whole items."""
        if page.failed_items is False and page.result.outcome is Outcome.ANSWERED:
            key = self._key(page.request)
            if key is not None:
                self._done.append(key)

    def commit_begins(self) -> None:
        """Note that the next commit holds the items of all pages done so far."""
        self._add_committed()
        if not self.waits_for_end:
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
        if not self.waits_for_end:
            pass
        elif any(name.startswith("feedexport/failed_count/") for name in self._stats.get_stats()):
            logger.warning("A feed could not be stored: the next run fetches again what gave an item in this one")
        else:
            self._add(self._done)
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._files.close()
