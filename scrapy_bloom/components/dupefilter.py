"""BloomDupeFilter: the duplicate filter that Scrapy sees. It holds the crawl, which decides, and translates."""

from __future__ import annotations

import inspect
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter

from scrapy_bloom.crawl.crawl import Crawl
from scrapy_bloom.crawl.startup import end_crawl, log_start_errors
from scrapy_bloom.errors import SettingsError

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)

MOST_UNCHECKED_IN_A_ROW = 100
"""Requests in a row that cannot be checked, after which the crawl is ended: it would never end by itself. No page we
have seen has more odd links than that; a loop of two pages gets there within a minute."""


class BloomDupeFilter(BaseDupeFilter):
    """For ``DUPEFILTER_CLASS``: decides as Scrapy's own filter does, in a few bytes per URL.

    With ``JOBDIR`` the filter lives in ``JOBDIR/requests.bloom`` and survives the process; otherwise in memory.
    ``docs/settings.md`` lists the settings and ``docs/stats.md`` the stats.

    A subclass may override :meth:`fingerprint`, which everything here uses. One that overrides :meth:`request_seen`
    has the last word on requests; links are then not asked about, since only it knows the answer.

    Raises:
        SettingsError: On construction; names every wrong ``BLOOM_*`` setting.
        BloomError: On :meth:`open`; the files in the job directory cannot be used.

    """

    def __init__(self, crawl: Crawl) -> None:
        self.crawl = crawl
        self._scrapys = RFPDupeFilter(debug=crawl.crawler.settings.getbool("DUPEFILTER_DEBUG"))  # for its log
        self._of_request = crawl.decisions.fingerprints.of_request
        self._unchecked_in_a_row = 0
        cls = type(self)
        self._name = f"{cls.__module__}.{cls.__qualname__}"
        if inspect.iscoroutinefunction(cls.request_seen):
            problem = (
                f"DUPEFILTER_CLASS is {self._name}, whose request_seen() is async def; Scrapy does not await it and "
                "would drop every request. Make it a plain method"
            )
            raise SettingsError([problem])
        crawl.setup.filter = cls.__name__
        crawl.decisions.fingerprints = self._fingerprints()
        crawl.decisions.answers_for_links = cls.request_seen is BloomDupeFilter.request_seen

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the filter of *crawler*."""
        with log_start_errors(logger):
            return cls(Crawl.of(crawler))

    def _fingerprints(self) -> Fingerprints:
        """Return how the crawl makes fingerprints, as this class overrides it: then in a key space of its own."""
        cls, usual = type(self), self.crawl.decisions.fingerprints
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
        self.crawl.open()

    def request_seen(self, request: Request) -> bool:
        """Return False for a request to fetch, and remember it; return True for a request to drop.

        Never raises, since Scrapy would lose the request: one that cannot be checked is let through and counted in
        ``bloom/unchecked``.
        """
        try:
            decision = self.crawl.decisions.decide(request)
        except Exception:  # whatever it is, the page must not be lost
            self._let_through(request)
            return False
        self._unchecked_in_a_row = 0
        return not decision.is_new

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
        self.crawl.decisions.forget(request)

    def log(self, request: Request, spider: Spider) -> None:
        """Log and count why *request* was filtered: as a duplicate, in Scrapy's words, or as beyond a limit."""
        decision = self.crawl.decisions.last
        if decision is not None and decision.limit:
            self.crawl.progress.beyond_limit(request.url, decision.limit, decision.reason)
            return
        self._scrapys.log(request, spider)

    def close(self, reason: str) -> None:
        """Set the final stats and close the filter."""
        self.crawl.close(reason)

    def _let_through(self, request: Request) -> None:
        """Count *request*, which could not be checked; end a crawl in which none can be."""
        self.crawl.stats.inc_value("bloom/unchecked")
        self._unchecked_in_a_row += 1
        if self.crawl.stats.get_value("bloom/unchecked") == 1:
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
            end_crawl(self.crawl.crawler, "bloom_unchecked")
