"""DurableScheduler: the scheduler that Scrapy sees. It passes its calls on to the crawl."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy.core.scheduler import BaseScheduler
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_bloom.components.assembly import Options, filter_of, open_crawl
from scrapy_bloom.components.hooks import IN_PROGRESS
from scrapy_bloom.components.in_progress import CURRENT
from scrapy_bloom.components.startup import log_start_errors
from scrapy_bloom.errors import UnusableError

if TYPE_CHECKING:
    from collections.abc import Sized

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter
    from twisted.internet.defer import Deferred
    from typing_extensions import Self

    from scrapy_bloom.components.assembly import Join
    from scrapy_bloom.components.spider_crawl import SpiderCrawl
    from scrapy_bloom.frontier.page import Page

logger = logging.getLogger(__name__)


class DurableScheduler(BaseScheduler):
    """For ``SCHEDULER``: pending requests in ``JOBDIR/requests.bloom``, none of them lost to ``kill -9``.

    Requests have Scrapy's order. ``SCHEDULER_PRIORITY_QUEUE`` names one of its two priority queues, LIFO or FIFO as
    ``SCHEDULER_DISK_QUEUE`` and its kin say. Without ``JOBDIR`` requests are kept in memory.

    Raises:
        SettingsError: On construction; names every wrong ``BLOOM_*`` setting.
        BloomError: On :meth:`open`; the job directory cannot be used.

    """

    spider: Spider
    """Set by :meth:`open`, as :attr:`crawl` is."""
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
        self._filter = filter_of(self._options.crawler)
        if self._join is not None and IN_PROGRESS in self.crawl.pages.missing_hooks:
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
        parent = crawl.pages.current()
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
        if crawl.pages.given_back and crawl.pages.comes_back(request):
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
            return None if place is not None and crawl.start_urls.is_taken_in(place) else (None, place)
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
