"""The schedulers that Scrapy sees. They pass their calls on to the crawl. One worker of a fleet runs start()."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

from scrapy import Request, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.exceptions import CloseSpider
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.misc import build_from_crawler, load_object
from twisted.internet.defer import Deferred

from scrapy_bloom.components.assembly import Options, open_crawl
from scrapy_bloom.components.spider_crawl import CURRENT, IN_PROGRESS
from scrapy_bloom.components.startup import log_start_errors
from scrapy_bloom.errors import SettingsError, UnusableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sized

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter
    from typing_extensions import Self

    from scrapy_bloom.components.assembly import Join
    from scrapy_bloom.components.fleet_requests import FleetRequests
    from scrapy_bloom.components.spider_crawl import SpiderCrawl
    from scrapy_bloom.fleet.store import FleetStore
    from scrapy_bloom.frontier.page import Page
    from scrapy_bloom.job.records import Feeds
    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)


class DurableScheduler(BaseScheduler):
    """For ``SCHEDULER``: pending requests in ``JOBDIR/requests.bloom``, none of them lost to ``kill -9``.

    Requests have Scrapy's order. ``SCHEDULER_PRIORITY_QUEUE`` names one of its two priority queues, LIFO or FIFO as
    ``SCHEDULER_DISK_QUEUE`` and its kin say. Without ``JOBDIR`` requests are kept in memory.

    Raises SettingsError on construction, which names every wrong ``BLOOM_*`` setting; and BloomError on :meth:`open` if
    the job directory cannot be used.
    """

    spider: Spider
    crawl: SpiderCrawl | None = None
    _join: Join | None = None

    def __init__(self, options: Options, dupefilter: BaseDupeFilter) -> None:
        self._options, self.df, self.stats = options, dupefilter, options.stats

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the scheduler of *crawler*, and its duplicate filter."""
        with log_start_errors(logger):
            options = Options.of(crawler)
            return cls(options, build_from_crawler(load_object(crawler.settings["DUPEFILTER_CLASS"]), crawler))

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the crawl, then the filter. Raises BloomError, before the first request, if the job cannot be used."""
        self.spider = spider
        self.crawl = open_crawl(self._options, self._join, type(self).__name__)
        self._filter = self._options.filter
        if self._join is not None and IN_PROGRESS in self.crawl.missing_hooks:
            advice = "Please report it together with the Scrapy version."  # others would wait for its acknowledgements
            raise UnusableError("This Scrapy", f"has no {IN_PROGRESS} as we know it", advice=advice)
        return self.df.open()

    def close(self, reason: str) -> Deferred[None] | None:
        """Write what is pending, then close the filter."""
        if self.crawl is not None:
            self.crawl.close(reason)
        return self.df.close(reason)

    def has_pending_requests(self) -> bool:
        """Return whether requests are pending that this run can fetch: not those of hosts that are full or given up."""
        return self.crawl is not None and len(self) > 0 and not self.crawl.store.is_over()

    def __len__(self) -> int:
        return 0 if self.crawl is None or self.crawl.core.has_failed else len(self.crawl.store)

    @property
    def dqs(self) -> Sized | None:
        """The pending requests that survive the process: Scrapy's telnet console asks for their number."""
        return None if self.crawl is None else self.crawl.store.durable

    @property
    def mqs(self) -> Sized:
        """The pending requests that end with the process."""
        return () if self.crawl is None else self.crawl.store.in_memory

    def enqueue_request(self, request: Request) -> bool:
        """Take in *request* unless the filter has seen it; return False if it has."""
        crawl = self.crawl
        assert crawl is not None  # noqa: S101 - open() has opened it
        parent = crawl.current()
        admission = self._admission(crawl, request, parent)
        if admission is None:
            return False
        fingerprint, place = admission
        is_durable = crawl.push(request, fingerprint, parent)
        if is_durable is None:
            return False
        if place is not None and is_durable:
            crawl.start_urls.take_in(place)
        self.stats.inc_value("scheduler/enqueued/disk" if is_durable else "scheduler/enqueued/memory")
        self.stats.inc_value("scheduler/enqueued")
        return True

    def _admission(
        self, crawl: SpiderCrawl, request: Request, parent: Page | None
    ) -> tuple[bytes | None, int | None] | None:
        """Return the fingerprint that *request* is remembered by, and its place among the start URLs of the job.

        Both may be None. Return None if the request is dropped.
        """
        if request in crawl.given_back:
            crawl.given_back.discard(request)
            return None, None
        if crawl.core.delta.is_on and crawl.skips(request):
            return None
        if not request.dont_filter:
            if self._filter is None:
                seen, fingerprint = self.df.request_seen(request), None
            else:  # the filter of the user may hold ours
                seen, fingerprint = self._filter.made_by(self.df.request_seen, request)
            if not seen:
                return fingerprint, None
            self.df.log(request, self.spider)
            return None
        if parent is None and crawl.job is not None and request.meta.get("is_start_request"):
            place = crawl.start_urls.place_of(request)
            if place is None:
                crawl.core.changes.note_start(request)
            elif crawl.start_urls.is_taken_in(place):
                return None
            return None, place
        return None, None

    def next_request(self) -> Request | None:
        """Return the next request, or None."""
        CURRENT.set(None)  # the engine may ask in the context of a page, since the timer that it asks by inherits it
        popped = None if self.crawl is None else self.crawl.pop()
        if popped is None:
            return None
        request, page = popped
        self.stats.inc_value("scheduler/dequeued/disk" if page.body is not None else "scheduler/dequeued/memory")
        self.stats.inc_value("scheduler/dequeued")
        return request


class FleetScheduler(DurableScheduler):
    """For ``SCHEDULER``: many workers share filter and queue on the server of ``BLOOM_REDIS_URL``.

    Each URL is fetched once, by whichever worker comes first; a worker that is killed loses nothing; all end by
    themselves when nothing is pending or in hand anywhere. ``docs/fleet.md`` says how.

    Raises SettingsError on construction, which names every wrong ``BLOOM_*`` setting; and BloomError on :meth:`open` if
    the server cannot be used, or its queue is not for these settings.
    """

    _start: StartRun | None = None
    _store: FleetStore | None = None
    _requests: FleetRequests

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the scheduler of *crawler*, and its duplicate filter."""
        with log_start_errors(logger):
            scheduler = super().from_crawler(crawler)
            if scheduler._options.filter is None:
                need = "FleetScheduler needs scrapy_bloom.BloomDupeFilter: workers share its filter"
                raise SettingsError([f"DUPEFILTER_CLASS is {crawler.settings['DUPEFILTER_CLASS']!r}; {need}"])
            return scheduler

    def _join(self, fingerprints: Fingerprints, feeds: Feeds) -> tuple[FleetStore, FleetRequests]:
        from scrapy_bloom.components.fleet_settings import fleet_store  # imports redis

        self._store, self._requests = fleet_store(self._options.crawler, self._options.bloom, fingerprints, feeds)
        return self._store, self._requests

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Join the fleet, and have one worker of it run start()."""
        opened = super().open(spider)
        if self.crawl is not None and self._store is not None and self._store.start.can_run:
            self._start = StartRun(self.crawl, self._store, self._requests)
        return opened

    def _admission(
        self, crawl: SpiderCrawl, request: Request, parent: Page | None
    ) -> tuple[bytes | None, int | None] | None:
        """Return also for unfiltered start requests a fingerprint, so that the fleet fetches them once."""
        admission = super()._admission(crawl, request, parent)
        if admission == (None, None) and self._store is not None and parent is self._store.start.page:
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


class StartRun:
    """Takes the place of the output of start() in the engine of *crawl*, which *store* and *requests* belong to.

    The output waits until the store has the lease of start(). It ends when nothing is pending or in hand at any worker.
    In between, start() is run again if the server went back to a time before it had ended. All that start() gives
    belongs to one page, which is acknowledged when start() has ended and its items are through the pipelines.
    """

    def __init__(self, crawl: SpiderCrawl, store: FleetStore, requests: FleetRequests) -> None:
        self._engine: Any = crawl.crawler.engine
        self._store, self._requests, self._crawl = store, requests, crawl
        self._page: Page | None = None
        self._open_parts = 0  # of the page: start() itself, and items in pipelines
        self._waiting: Deferred[None] | None = None
        self._is_closed = False
        self._engine._start = self._outputs(self._engine._start)
        for signal in (signals.item_scraped, signals.item_dropped, signals.item_error):
            crawl.crawler.signals.connect(self._item_ended, signal=signal)

    def look(self) -> None:
        """Go on if there is a reason to. Call this whenever the engine asks for a request."""
        if self._waiting is not None and (self._is_closed or self._store.start.is_granted or not len(self._store)):
            waiting, self._waiting = self._waiting, None
            waiting.callback(None)

    def close(self) -> None:
        """End the output."""
        self._is_closed = True
        self.look()

    async def _outputs(self, outputs: AsyncIterator[Any] | None) -> AsyncIterator[Any]:
        while await self._is_granted():
            page = self._page = self._store.begin_start()
            self._requests.begin_start()
            self._crawl.hand_out(page, Request("data:,"), "", None)
            self._open_parts = 1
            CURRENT.set(page)  # the engine handles the output in this context, which is its own for start()
            try:
                async for output in outputs or await self._anew():
                    self._open_parts += not isinstance(output, Request)
                    yield output
                    CURRENT.set(page)
            except CloseSpider:
                raise
            except Exception:
                self._end_part()
                raise
            outputs = None
            self._end_part()
            CURRENT.set(None)
        self._store.start.close()

    async def _is_granted(self) -> bool:
        while not self._is_closed and not self._store.start.is_granted:
            if not len(self._store):
                return False
            self._waiting = Deferred()
            await maybe_deferred_to_future(self._waiting)
        return not self._is_closed

    async def _anew(self) -> AsyncIterator[Any]:
        process_start: Any = self._engine.scraper.spidermw.process_start
        parameter = inspect.signature(process_start).parameters.get("spider")
        is_needed = parameter is not None and parameter.default is parameter.empty  # in Scrapy 2.13
        outputs: AsyncIterator[Any] = await process_start(*([self._engine.spider] if is_needed else []))
        return outputs

    def _item_ended(self, response: object = None) -> None:
        if response is None and self._page is not None and CURRENT.get() is self._page:
            self._end_part()

    def _end_part(self) -> None:
        self._open_parts -= 1
        if not self._open_parts and self._page is not None:
            page, self._page = self._page, None
            self._crawl.leave(page.request)
            self._store.done(page)
