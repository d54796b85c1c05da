"""DurableScheduler: the scheduler that Scrapy sees. It holds the crawl, which keeps the requests, and translates."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy.core.scheduler import BaseScheduler
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_bloom.crawl import Crawl
from scrapy_bloom.errors import BloomError, UnusableError
from scrapy_bloom.failures import REPLACING
from scrapy_bloom.loops.share import MARK
from scrapy_bloom.startup import log_start_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter
    from twisted.internet.defer import Deferred
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class DurableScheduler(BaseScheduler):
    """For ``SCHEDULER``: pending requests in ``JOBDIR/requests.bloom``, none of them lost to ``kill -9``.

    The order is Scrapy's: that of the two priority queues that ``SCHEDULER_PRIORITY_QUEUE`` may name, LIFO or FIFO as
    ``SCHEDULER_DISK_QUEUE`` and its kin say. Without ``JOBDIR`` requests are kept in memory.

    Raises:
        SettingsError: On construction; names every wrong ``BLOOM_*`` setting.
        BloomError: On :meth:`open`; the job directory cannot be used.

    """

    shares_requests = False
    """Whether other processes have requests of the same queue."""

    def __init__(self, crawl: Crawl, dupefilter: BaseDupeFilter) -> None:
        self.crawl, self.df, self.stats = crawl, dupefilter, crawl.stats
        self.spider: Spider | None = None
        self._in_progress: Collection[Request] = ()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the scheduler of *crawler*, and its duplicate filter."""
        with log_start_errors(logger):
            crawl = Crawl.of(crawler)
            crawl.scheduler_name = cls.__name__
            return cls(crawl, build_from_crawler(load_object(crawler.settings["DUPEFILTER_CLASS"]), crawler))

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the job, then the filter. Raises BloomError, before the first request, if the job cannot be used."""
        self.spider = spider
        self.crawl.open()
        self._watch_engine()
        return self.df.open()

    def _watch_engine(self) -> None:
        """From now on, learn from Scrapy's engine when it is done with a request."""
        engine: Any = self.crawl.crawler.engine
        slot: Any = getattr(engine, "_slot", None)
        if type(getattr(slot, "inprogress", None)) is set and not slot.inprogress:
            self._in_progress = slot.inprogress = self.crawl.failures.under_way = InProgress(self.crawl.done)
            with suppress(AttributeError):  # another downloader: a failure has no name there
                engine.downloader.middleware.methods["process_exception"].append(self.crawl.failures.raised)
                engine.scraper.spidermw.methods["process_spider_exception"].append(self.crawl.failures.callback_raised)
            return
        found = "does not let us see when it is done with a request"
        advice = "Please report it together with the Scrapy version."
        if self.shares_requests:  # others would wait for its acknowledgements for ever
            raise UnusableError("This Scrapy", found, advice=advice)
        if self.crawl.jobdir is not None:
            logger.warning("This Scrapy %s: after a kill, every page of this run is fetched again. %s", found, advice)

    def close(self, reason: str) -> Deferred[None] | None:
        """Write what is pending, then close the filter."""
        self.crawl.close(reason)
        return self.df.close(reason)

    def has_pending_requests(self) -> bool:
        """Return whether requests are pending that are to be fetched: not those that the loop guard leaves."""
        return len(self) > 0 and not self.crawl.is_over()

    def __len__(self) -> int:
        return 0 if self.crawl.store is None or self.crawl.has_failed else len(self.crawl.store)

    def enqueue_request(self, request: Request) -> bool:
        """Take in *request* unless the filter has seen it; return False if it has.

        Start requests and redirects that are not filtered are remembered all the same, for the links that lead there.
        """
        crawl = self.crawl
        fingerprint, is_start = None, False
        ends = {} if REPLACING.isdisjoint(request.meta) else crawl.failures.came(request)
        if crawl.delta is not None and crawl.delta.skips(request):
            return False
        redirected = self._redirected(request) if request.meta.get("redirect_urls") else None
        if request.dont_filter:
            is_start = bool(request.meta.get("is_start_request")) and MARK not in request.meta
            if is_start and not crawl.note_start_request(request):
                return False
            if is_start or redirected is not None:
                fingerprint = crawl.record(request)
        elif redirected is not None and self._is_awaited(request, redirected):
            fingerprint = crawl.record(request)
        elif self.df.request_seen(request):
            assert self.spider is not None  # noqa: S101 - open() has set it
            self.df.log(request, self.spider)
            return False
        elif (decision := crawl.decision) is not None and decision.request is request:
            fingerprint = decision.fingerprint
        assert crawl.store is not None  # noqa: S101 - open() has opened it
        if crawl.guard is not None and crawl.guard.is_open:
            crawl.guard.mark(request)
        try:
            is_durable = crawl.store.push(request, fingerprint)
        except BloomError as error:
            crawl.fail(error)
            return False
        if is_start and not is_durable and crawl.job is not None:
            crawl.starts.ask_again(crawl.job)
        self.stats.inc_value("scheduler/enqueued/disk" if is_durable else "scheduler/enqueued/memory")
        self.stats.inc_value("scheduler/enqueued")
        crawl.progress.estimate.found[request.meta.get("depth", 0)] += 1
        crawl.failures.ends.update(ends)
        return True

    def _redirected(self, request: Request) -> Request | None:
        """Return the request in progress that was redirected to *request*; None for a link with its page's meta."""
        url = request.meta["redirect_urls"][-1]
        return next((each for each in self._in_progress if each.url == url), None)

    def _is_awaited(self, request: Request, redirected: Request) -> bool:
        """Return whether the page of *request*, to which *redirected* was, is the answer that is waited for.

        So it is after a form, and where a URL leads back to itself, once, for a cookie perhaps: a filter that knows it
        would drop it, and nobody would have seen the page.
        """
        if redirected.method != "GET":
            return True
        of_request = self.crawl.fingerprints.of_request
        with suppress(Exception):  # of a fingerprinter of the user's: the filter counts it, and lets the request pass
            before = [of_request(request.replace(url=url)) for url in request.meta["redirect_urls"]]
            return before.count(of_request(request)) == 1
        return False

    def next_request(self) -> Request | None:
        """Return the next request, or None."""
        crawl = self.crawl
        if crawl.has_failed or crawl.store is None or (crawl.guard is not None and crawl.waits_no_longer()):
            return None
        try:
            found = crawl.store.pop()
        except BloomError as error:
            crawl.fail(error)
            return None
        if found is None:
            return None
        self.stats.inc_value("scheduler/dequeued/disk" if found[1] else "scheduler/dequeued/memory")
        self.stats.inc_value("scheduler/dequeued")
        return found[0]


class InProgress(set["Request"]):
    """The engine's set of requests that it works on, which tells when one leaves.

    A request enters when the scheduler hands it out. It leaves after its callback's last output was taken, after a
    redirect or retry was scheduled in its place, or after an error was reported; Scrapy sends no signal then.
    """

    def __init__(self, left: Callable[[Request], None]) -> None:
        super().__init__()
        self._left = left

    def remove(self, request: Request) -> None:
        """Remove *request*, and report it; KeyError as for any set."""
        super().remove(request)
        self._left(request)
