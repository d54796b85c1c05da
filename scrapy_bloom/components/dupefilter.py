"""The duplicate filters that Scrapy sees. They decide by what the crawl remembers, here or on a server."""

from __future__ import annotations

import inspect
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scrapy import Request, signals
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.utils.misc import load_object

from scrapy_bloom.components.assembly import Options, open_crawl
from scrapy_bloom.components.requests import Requests
from scrapy_bloom.components.scheduler import DurableScheduler, FleetScheduler
from scrapy_bloom.components.startup import end_crawl, log_start_errors
from scrapy_bloom.errors import SettingsError
from scrapy_bloom.frontier.order import IN_ANY_ORDER

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from scrapy_bloom.components.assembly import Join
    from scrapy_bloom.components.spider_crawl import SpiderCrawl
    from scrapy_bloom.fleet.shared_filter import SharedFilter
    from scrapy_bloom.job.records import Feeds
    from scrapy_bloom.loops.limits import Objection
    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)

MOST_UNCHECKED_IN_A_ROW = 100
"""Requests in a row that cannot be checked, after which the crawl is ended: it would never end by itself. No page we
have seen has more odd links than that; a loop of two pages gets there within a minute."""


class BloomDupeFilter(BaseDupeFilter):
    """For ``DUPEFILTER_CLASS``: decides as Scrapy's own filter does, in a few bytes per URL.

    With ``JOBDIR`` the filter lives in ``JOBDIR/requests.bloom`` and survives the process; otherwise in memory.
    ``docs/settings.md`` lists the settings and ``docs/stats.md`` the stats.

    A subclass may override :meth:`fingerprint`, which everything here uses. One that overrides :meth:`request_seen` has
    the last word on requests; links are then not asked about, since only it knows the answer.

    Raises SettingsError on construction, which names every wrong ``BLOOM_*`` setting; and BloomError on :meth:`open` if
    the files in the job directory cannot be used.
    """

    crawl: SpiderCrawl | None = None
    _join: Join | None = None

    def __init__(self, options: Options) -> None:
        self._options, self._stats = options, options.stats
        self._scrapys = RFPDupeFilter(debug=options.crawler.settings.getbool("DUPEFILTER_DEBUG"))  # for its log
        self._of_request = options.fingerprints.of_request
        self._unchecked_in_a_row = 0
        self._add: Callable[[bytes], bool] = self._open_and_add
        self._objection: Callable[[str], Objection | None] | None = None
        self._remembered: bytes | None = None  # by the last request that was new
        self._exceeded: Objection | None = None  # the limit that the last request exceeds
        cls = type(self)
        self._name = f"{cls.__module__}.{cls.__qualname__}"
        if inspect.iscoroutinefunction(cls.request_seen):
            problem = (
                f"DUPEFILTER_CLASS is {self._name}, whose request_seen() is async def; Scrapy does not await it and "
                "would drop every request. Make it a plain method"
            )
            raise SettingsError([problem])
        self.fingerprints = self._fingerprints_as_overridden()
        self._decide_by = self.fingerprints.of_request
        self.answers_for_links = cls.request_seen is BloomDupeFilter.request_seen
        """Whether links may be dropped: not if a subclass has the last word on requests."""
        options.filter = self

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the filter of *crawler*."""
        with log_start_errors(logger):
            return cls(Options.of(crawler))

    def _fingerprints_as_overridden(self) -> Fingerprints:
        """Return how the crawl makes fingerprints, as this class overrides it: then in a key space of its own."""
        cls, usual = type(self), self._options.fingerprints
        if cls.fingerprint is not BloomDupeFilter.fingerprint:
            of_request = self.fingerprint
        elif cls.request_fingerprint is not BloomDupeFilter.request_fingerprint:

            def of_request(request: Request) -> bytes:
                return bytes.fromhex(self.request_fingerprint(request))
        else:
            return usual
        return replace(
            usual,
            of_request=of_request,
            of_url=None if usual.of_url is None else lambda url: of_request(Request(url)),
            space={**usual.space, "fingerprinter": self._name},
            ignore_fragments=False,
        )

    def open(self) -> None:
        """Open the filter where it lives. If it cannot be used, one CRITICAL line says why."""
        if self.crawl is None:
            self.crawl = open_crawl(self._options, self._join)
            core = self.crawl.core
            self._add = core.decisions.add
            self._objection = core.guard.objection if self._options.bloom.loop_guard else None

    def _open_and_add(self, fingerprint: bytes) -> bool:
        self.open()  # for schedulers that never open their filter
        return self._add(fingerprint)

    def request_seen(self, request: Request) -> bool:
        """Return False for a request to fetch, and remember it; return True for a request to drop.

        Never raises, since Scrapy would lose the request: one that cannot be checked is let through and counted in
        ``bloom/unchecked``.
        """
        try:
            if self._objection is not None and (objection := self._objection(request.url)) is not None:
                self._exceeded = objection
                return True  # a trap's URLs take no room in the filter
            fingerprint = self._decide_by(request)
            is_new = self._add(fingerprint)
        except Exception:  # whatever it is, the page must not be lost
            self._let_through(request)
            return False
        self._unchecked_in_a_row = 0
        self._remembered, self._exceeded = fingerprint if is_new else None, None
        return not is_new

    def made_by(self, request_seen: Callable[[Request], bool], request: Request) -> tuple[bool, bytes | None]:
        """Return the answer of *request_seen*, and the fingerprint that this call has remembered, if it did.

        A filter of the user's may decide by itself, or ask us about another request.
        """
        self._remembered = None
        return request_seen(request), self._remembered

    def fingerprint(self, request: Request) -> bytes:
        """Return the fingerprint of *request*; override it to merge or tell apart more.

        Used for everything: checking, taking back, and asking about links, for which *request* is the plain GET request
        of the link's URL. It must depend on *request* alone.
        """
        return self._of_request(request)

    def request_fingerprint(self, request: Request) -> str:
        """Return :meth:`fingerprint` in hexadecimal, as Scrapy's own filter does."""
        return self._of_request(request).hex()

    def forget(self, request: Request) -> None:
        """Take *request* back: in this run or a later one, the next one like it is new."""
        if self.crawl is not None:
            self.crawl.forget(request)

    def log(self, request: Request, spider: Spider) -> None:
        """Log and count why *request* was filtered: as a duplicate, in Scrapy's words, or as beyond a limit."""
        objection = self._exceeded
        if objection is not None and self.crawl is not None:
            self.crawl.core.progress.beyond_limit(request.url, objection.limit, objection.reason)
            return
        self._scrapys.log(request, spider)

    def close(self, reason: str) -> None:
        """Set the final stats and close the filter."""
        if self.crawl is not None:
            self.crawl.close(reason)

    def _let_through(self, request: Request) -> None:
        """Count *request*, which could not be checked; end a crawl in which none can be."""
        self._stats.inc_value("bloom/unchecked")
        self._unchecked_in_a_row += 1
        if self._stats.get_value("bloom/unchecked") == 1:
            logger.warning(
                "%s could not be checked for being a duplicate and is let through. Further ones are not shown; the "
                "stat bloom/unchecked counts them",
                request,
                exc_info=True,
            )
        if self._unchecked_in_a_row == MOST_UNCHECKED_IN_A_ROW:
            logger.critical(
                "The crawl is being ended: the last %d requests could not be checked. They are let through, so pages "
                "that link to each other would be fetched for ever. Repair what the WARNING above shows; with JOBDIR, "
                "the crawl can be resumed then.",
                MOST_UNCHECKED_IN_A_ROW,
            )
            end_crawl(self._options.crawler, "bloom_unchecked")


class RedisBloomDupeFilter(BloomDupeFilter):
    """For ``DUPEFILTER_CLASS``: as ``BloomDupeFilter``, with the filter on the server of ``BLOOM_REDIS_URL``.

    For Scrapy's scheduler and others, such as the scheduler of scrapy-redis. Under ``FleetScheduler`` it works exactly
    like ``BloomDupeFilter``: the shared queue contains the filter.

    Raises SettingsError on construction, also if ``SCHEDULER`` is ``DurableScheduler``, because workers cannot share
    its requests; and BloomError on :meth:`open` or with the first request if the server cannot be used.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the filter of *crawler*."""
        # Not issubclass(): to that, all of Scrapy's schedulers are each other's subclasses.
        bases = load_object(crawler.settings["SCHEDULER"]).__mro__
        if DurableScheduler in bases and FleetScheduler not in bases:
            problem = (
                "SCHEDULER is DurableScheduler, which does not share its requests. If this worker is lost, no other "
                "worker fetches them, because RedisBloomDupeFilter counts them as seen. "
                "Set SCHEDULER = 'scrapy_bloom.FleetScheduler'"
            )
            raise SettingsError([problem])
        return super().from_crawler(crawler)

    @classmethod
    def from_spider(cls, spider: Spider) -> Self:
        """Build the filter as the scheduler of scrapy-redis does, which never opens or closes it."""
        crawler = spider.crawler
        dupefilter = cls.from_crawler(crawler)
        crawler.signals.connect(dupefilter.close, signal=signals.spider_closed, weak=False)
        return dupefilter

    def clear(self) -> None:
        """Remove the filter from the server, as scrapy-redis does at its start or end unless told otherwise."""
        self.open()
        store: Any = None if self.crawl is None else self.crawl.store
        store.clear()

    def _join(self, fingerprints: Fingerprints, feeds: Feeds) -> tuple[SharedFilter, Requests]:  # noqa: ARG002
        from scrapy_bloom.components.fleet_settings import shared_filter  # imports redis

        return shared_filter(self._options.crawler, self._options.bloom, fingerprints), Requests(IN_ANY_ORDER)
