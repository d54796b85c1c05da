"""FleetScheduler: DurableScheduler over the fleet's store."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from scrapy.utils.reactor import is_reactor_installed

from scrapy_bloom.components.assembly import filter_of
from scrapy_bloom.components.fleet_start import StartRun, has_start
from scrapy_bloom.components.hooks import wake_engine
from scrapy_bloom.components.scheduler import DurableScheduler
from scrapy_bloom.components.startup import log_start_errors
from scrapy_bloom.errors import SettingsError
from scrapy_bloom.job.feed_journal import FeedJournal

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred
    from typing_extensions import Self

    from scrapy_bloom.components.fleet_requests import FleetRequests
    from scrapy_bloom.components.spider_crawl import SpiderCrawl
    from scrapy_bloom.fleet.store import FleetStore
    from scrapy_bloom.frontier.page import Page
    from scrapy_bloom.job.records import Feeds
    from scrapy_bloom.settings import BloomSettings
    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)


class FleetScheduler(DurableScheduler):
    """For ``SCHEDULER``: many workers share filter and queue on the server of ``BLOOM_REDIS_URL``.

    Each URL is fetched once, by whichever worker comes first; a worker that is killed loses nothing; all end by
    themselves when nothing is pending or in hand anywhere. ``docs/fleet.md`` says how.

    Raises:
        SettingsError: On construction; names every wrong ``BLOOM_*`` setting.
        BloomError: On :meth:`open`; the server cannot be used, or its queue is not for these settings.

    """

    _start: StartRun | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the scheduler of *crawler*, and its duplicate filter."""
        with log_start_errors(logger):
            scheduler = super().from_crawler(crawler)
            if filter_of(crawler) is None:
                need = "FleetScheduler needs scrapy_bloom.BloomDupeFilter: workers share its filter"
                raise SettingsError([f"DUPEFILTER_CLASS is {crawler.settings['DUPEFILTER_CLASS']!r}; {need}"])
            return scheduler

    def _join(self, fingerprints: Fingerprints, feeds: Feeds) -> tuple[FleetStore, FleetRequests]:
        joined = fleet_store(self._options.crawler, self._options.bloom, fingerprints, feeds)
        self._store, self._requests = joined
        return joined

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Join the fleet, and have one worker of it run start()."""
        opened = super().open(spider)
        if self.crawl is not None and not self._options.looks_only and has_start(self.crawl.crawler):
            self._start = StartRun(self.crawl, self._store, self._requests)
        return opened

    def _admission(
        self, crawl: SpiderCrawl, request: Request, parent: Page | None
    ) -> tuple[bytes | None, int | None] | None:
        """Return also for unfiltered start requests a fingerprint, so that the fleet fetches them once."""
        admission = super()._admission(crawl, request, parent)
        if admission == (None, None) and not self._options.looks_only and parent is self._store.start.page:
            return self._requests.start_fingerprint(request), None  # no page: start() is over, or each worker runs it
        return admission

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


def fleet_store(
    crawler: Crawler, settings: BloomSettings, fingerprints: Fingerprints, feeds: Feeds
) -> tuple[FleetStore, FleetRequests]:
    """Return the store of a worker with *feeds* of its own, and how it holds requests."""
    from scrapy_bloom.components.fleet_requests import FleetRequests  # imports redis
    from scrapy_bloom.components.fleet_settings import Throttle, order_of, worker_options
    from scrapy_bloom.fleet.store import FleetStore

    order = order_of(crawler.settings, crawler.spider)
    store = FleetStore(
        worker_options(crawler, settings, order, has_start=has_start(crawler)),
        settings,
        fingerprints,
        stats=crawler.stats,
        wake=_in_crawl(partial(wake_engine, crawler)),
        open_journal=partial(FeedJournal, feeds=feeds),
        own_delays=Throttle(crawler).changed,
    )
    return store, FleetRequests(crawler.spider, settings.fleet_secret, order, fingerprints)


def _in_crawl(call: Callable[[], None]) -> Callable[[], object]:
    """Return a function that makes the crawl's thread call *call*, whichever thread calls it."""
    try:
        return partial(asyncio.get_running_loop().call_soon_threadsafe, call)
    except RuntimeError:
        if not is_reactor_installed():  # a store that is used on its own
            return lambda: None
        from twisted.internet import reactor

        of_reactor: Any = reactor  # its type depends on which one is installed
        return partial(of_reactor.callFromThread, call)
