"""FleetScheduler: DurableScheduler over the fleet's store."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from scrapy_bloom.components.fleet_start import StartRun, has_start
from scrapy_bloom.components.scheduler import DurableScheduler
from scrapy_bloom.crawl.crawl import Crawl
from scrapy_bloom.crawl.hooks import wake_engine
from scrapy_bloom.crawl.startup import log_start_errors
from scrapy_bloom.errors import SettingsError
from scrapy_bloom.job.feed_journal import FeedJournal

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class FleetScheduler(DurableScheduler):
    """For ``SCHEDULER``: many workers share filter and queue on the server of ``BLOOM_REDIS_URL``.

    Each URL is fetched once, by whichever worker comes first; a worker that is killed loses nothing; all end by
    themselves when nothing is pending or in hand anywhere. ``docs/fleet.md`` says how.

    Raises:
        SettingsError: On construction; names every wrong ``BLOOM_*`` setting.
        BloomError: On :meth:`open`; the server cannot be used, or its queue is not for these settings.

    """

    shares_requests = True
    _start: StartRun | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the scheduler of *crawler*, and its duplicate filter."""
        with log_start_errors(logger):
            from scrapy_bloom.fleet.store import FleetStore  # imports redis

            crawl = Crawl.of(crawler)
            wake, journal = partial(wake_engine, crawler), partial(_open_journal, crawl)
            options: dict[str, Any] = {"effects": crawl.parts, "wake": wake, "open_journal": journal}

            def make_store(crawler: Crawler, *arguments: Any) -> FleetStore:
                return FleetStore(crawler, *arguments, **options, has_start=has_start(crawler))

            crawl.setup.make_store = make_store
            scheduler = super().from_crawler(crawler)
            if not crawl.setup.filter:
                need = "FleetScheduler needs scrapy_bloom.BloomDupeFilter: workers share its filter"
                raise SettingsError([f"DUPEFILTER_CLASS is {crawler.settings['DUPEFILTER_CLASS']!r}; {need}"])
            return scheduler

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Join the fleet, and have one worker of it run start()."""
        opened = super().open(spider)
        if has_start(self.crawl.crawler) and not self.crawl.setup.looks_only:
            store: Any = self.crawl.store
            self._start = StartRun(self.crawl.crawler, store)
        return opened

    def close(self, reason: str) -> Deferred[None] | None:
        """Deliver what is left, and leave the fleet."""
        if self._start is not None:
            self._start.close()
        return super().close(reason)

    def next_request(self) -> Request | None:
        """Return the next request, or None."""
        request = super().next_request()
        if self._start is not None and request is None:
            self._start.look()
        return request


def _open_journal(crawl: Crawl, directory: Path) -> FeedJournal:
    crawl.parts.journal = FeedJournal(directory, lambda: crawl.parts.feeds)
    return crawl.parts.journal
