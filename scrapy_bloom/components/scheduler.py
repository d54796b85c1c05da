"""DurableScheduler: the scheduler that Scrapy sees. It holds the crawl, which keeps the requests, and translates."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy.core.scheduler import BaseScheduler
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_bloom.crawl.crawl import Crawl
from scrapy_bloom.crawl.hooks import IN_PROGRESS
from scrapy_bloom.crawl.in_progress import CURRENT
from scrapy_bloom.crawl.startup import log_start_errors
from scrapy_bloom.errors import BloomError, UnusableError

if TYPE_CHECKING:
    from collections.abc import Sized

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter
    from twisted.internet.defer import Deferred
    from typing_extensions import Self

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

    shares_requests = False
    """Whether other processes have requests of the same queue."""
    spider: Spider
    """Set by :meth:`open`."""

    def __init__(self, crawl: Crawl, dupefilter: BaseDupeFilter) -> None:
        self.crawl, self.df, self.stats = crawl, dupefilter, crawl.stats

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the scheduler of *crawler*, and its duplicate filter."""
        with log_start_errors(logger):
            crawl = Crawl.of(crawler)
            crawl.setup.scheduler = cls.__name__
            return cls(crawl, build_from_crawler(load_object(crawler.settings["DUPEFILTER_CLASS"]), crawler))

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the job, then the filter. Raises BloomError, before the first request, if the job cannot be used."""
        self.spider = spider
        self.crawl.open()
        if self.shares_requests and IN_PROGRESS in self.crawl.pages.missing_hooks:
            advice = "Please report it together with the Scrapy version."  # others would wait for its acknowledgements
            raise UnusableError("This Scrapy", f"has no {IN_PROGRESS} as we know it", advice=advice)
        return self.df.open()

    def close(self, reason: str) -> Deferred[None] | None:
        """Write what is pending, then close the filter."""
        self.crawl.close(reason)
        return self.df.close(reason)

    def has_pending_requests(self) -> bool:
        """Return whether requests are pending that this run can fetch: not those of hosts that are full or given up."""
        return len(self) > 0 and not self.crawl.is_over()

    def __len__(self) -> int:
        return 0 if self.crawl.store is None or self.crawl.has_failed else len(self.crawl.store)

    @property
    def dqs(self) -> Sized | None:
        """The pending requests that survive the process: Scrapy's telnet console asks for their number."""
        return None if self.crawl.store is None else self.crawl.store.durable

    @property
    def mqs(self) -> Sized:
        """The pending requests that end with the process."""
        return () if self.crawl.store is None else self.crawl.store.in_memory

    def enqueue_request(self, request: Request) -> bool:
        """Take in *request* unless the filter has seen it; return False if it has."""
        crawl = self.crawl
        assert crawl.store is not None  # noqa: S101 - open() has opened it
        parent, mark = crawl.pages.current(), None
        admission = self._admission(request, parent)
        if admission is None:
            return False
        fingerprint, place = admission
        if crawl.guard is not None and crawl.guard.is_open:
            mark = crawl.guard.mark(request, parent, fingerprint)
        try:
            is_durable = crawl.store.push(request, fingerprint, parent, mark)
        except BloomError as error:
            crawl.fail(error)
            return False
        if crawl.changes is not None and parent is not None and not (fingerprint and is_durable):
            crawl.changes.of(parent).needs_answer = True  # nothing else would make the request again
        if place is not None and is_durable:
            crawl.parts.start_urls.take_in(place)
        self.stats.inc_value("scheduler/enqueued/disk" if is_durable else "scheduler/enqueued/memory")
        self.stats.inc_value("scheduler/enqueued")
        crawl.progress.estimate.queued.append(request.meta.get("depth"))
        return True

    def _admission(self, request: Request, parent: Page | None) -> tuple[bytes | None, int | None] | None:
        """Return the fingerprint that *request* is remembered by, and its place among the start URLs of the job.

        Both may be None. Return None if the request is dropped.
        """
        crawl = self.crawl
        if request in crawl.pages.given_back:
            crawl.pages.given_back.discard(request)
        elif crawl.delta is not None and crawl.delta.skips(request):
            return None
        elif not request.dont_filter:
            seen, fingerprint = crawl.decisions.made_by(self.df.request_seen, request)
            if not seen:
                return fingerprint, None
            self.df.log(request, self.spider)
            return None
        elif parent is None and crawl.job is not None and request.meta.get("is_start_request"):
            place = crawl.parts.start_urls.place_of(request)
            return None if place is not None and crawl.parts.start_urls.is_taken_in(place) else (None, place)
        return None, None

    def next_request(self) -> Request | None:
        """Return the next request, or None."""
        crawl = self.crawl
        CURRENT.set(None)  # the engine may ask in the context of a page, since the timer that it asks by inherits it
        if crawl.has_failed or crawl.store is None:
            return None
        try:
            popped = crawl.store.pop()
        except BloomError as error:
            crawl.fail(error)
            return None
        if popped is None:
            return None
        self.stats.inc_value("scheduler/dequeued/disk" if popped[1] else "scheduler/dequeued/memory")
        self.stats.inc_value("scheduler/dequeued")
        return popped[0]
