"""LoopGuardMiddleware: shows the loop guard the responses, and what comes out of the queue.

As a spider middleware it sees every page and marks the links of each with where they come from; as a downloader
middleware it sees every request on its way out of the queue, where a request whose shape has run dry is parked instead.
DurableScheduler has asked about nearly all of them before. Decides nothing itself.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import Request, signals
from scrapy.exceptions import DontCloseSpider, IgnoreRequest, NotConfigured
from scrapy.utils.job import job_dir
from scrapy.utils.misc import load_object

from scrapy_bloom.old.crawl.startup import log_start_errors
from scrapy_bloom.old.loops.guard import LoopGuard
from scrapy_bloom.old.loops.options import SETTING, parse_loop_guard
from scrapy_bloom.old.settings import BloomSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

logger = logging.getLogger(__name__)

loop_guard_wanted = object()
"""Sent by whoever needs the guard of a crawler; the guard answers with itself, if there is one already."""


class LoopGuardMiddleware:
    """For ``SPIDER_MIDDLEWARES`` and ``DOWNLOADER_MIDDLEWARES``, both; the add-on sets it in both.

    Without the second, URLs are demoted and none is parked, except by DurableScheduler, which asks the guard itself.
    """

    def __init__(self, crawler: Crawler, guard: LoopGuard) -> None:
        self._crawler = crawler
        self._guard = guard
        self._jobdir = job_dir(crawler.settings)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Find the guard of *crawler*, or make it. Not configured without ``BLOOM_LOOP_GUARD``.

        Scrapy builds downloader middlewares before the duplicate filter, so wrong settings are told here.

        Raises:
            SettingsError: Names every wrong ``BLOOM_*`` setting.

        """
        with log_start_errors(logger):
            BloomSettings.from_settings(crawler.settings)
            guard = loop_guard_of(crawler)
        if guard is None:
            raise NotConfigured
        middleware = cls(crawler, guard)
        if not guard.is_told_of_signals:  # Scrapy makes two of these middlewares, and each signal counts once
            guard.is_told_of_signals = True
            crawler.signals.connect(middleware.spider_opened, signal=signals.spider_opened)
        return middleware

    def spider_opened(self) -> None:
        """Open the guard under a duplicate filter that opens later, and listen to the rest of the crawl."""
        if not any(getattr(cls, "asks_loop_guard", False) for cls in _filter_and_scheduler(self._crawler)):
            logger.warning(
                "BLOOM_LOOP_GUARD is on, but the duplicate filter does not ask the loop guard (DUPEFILTER_CLASS = %s): "
                "no limit holds, and nothing is demoted or parked. Set DUPEFILTER_CLASS to "
                "scrapy_bloom.BloomDupeFilter, or remove the setting where ADDONS has scrapy_bloom.Addon.",
                self._crawler.settings["DUPEFILTER_CLASS"],
            )
            return
        if deepest := self._crawler.settings.getint("DEPTH_LIMIT"):
            logger.warning(
                "DEPTH_LIMIT is %d, and the loop guard changes the order of the crawl: a page that it finds first by a "
                "longer way counts as deeper, and links beyond the limit are dropped that another order would follow. "
                "The guard's own limit, depth, counts the folders of a URL and depends on no order.",
                deepest,
            )
        self._guard.open(Path(self._jobdir) if self._jobdir else None)
        self._guard.sends_back_by(self._send_back)
        connect = self._crawler.signals.connect
        connect(self.spider_idle, signal=signals.spider_idle)
        connect(self.spider_closed, signal=signals.spider_closed)

    def spider_idle(self) -> None:
        """Keep the crawl from ending while parked requests wait whose shapes have news."""
        if self._guard.release_all_due():
            raise DontCloseSpider

    def spider_closed(self) -> None:
        """Close the guard under a scheduler that does not close its filter, and say last what is parked."""
        self._guard.close()
        self._guard.warn_of_parked()

    # Scrapy 2.13 passes the spider to all of these, 2.14 and newer only where it has no default.

    def process_request(self, request: Request, spider: Spider | None = None) -> Request | None:  # noqa: ARG002 - see above
        """Send *request* back to the queue if it is too early, or park it if its shape has run dry."""
        sent_back: list[Request] = []
        if not self._guard.out_of_queue(request, sent_back.append):
            return None
        if sent_back:  # Scrapy queues it, which costs less than to ignore a request
            return sent_back[0]
        request.errback = None  # it has not failed; a copy with its errback waits
        raise IgnoreRequest("parked by the loop guard")

    def process_spider_input(self, response: Response, spider: Spider | None = None) -> None:  # noqa: ARG002 - see above
        """Show the guard what *response* brought, whatever its callback does with it."""
        if response.request is not None and _tells_something(response):
            self._guard.saw(response, response.request)

    def process_spider_output(
        self,
        response: Response,
        result: Iterable[Any],
        spider: Spider | None = None,  # noqa: ARG002 - see above
    ) -> Iterable[Any]:
        """Mark each request with what the guard needs to know of the page it comes from."""
        marks = self._marks(response)
        for item in result:
            if isinstance(item, Request):
                item.meta.update(marks)
            yield item

    async def process_spider_output_async(
        self,
        response: Response,
        result: AsyncIterator[Any],
        spider: Spider | None = None,  # noqa: ARG002 - see above
    ) -> AsyncIterator[Any]:
        """Mark each request with what the guard needs to know of the page it comes from."""
        marks = self._marks(response)
        async for item in result:
            if isinstance(item, Request):
                item.meta.update(marks)
            yield item

    def _marks(self, response: Response) -> dict[str, Any]:
        return {} if response.request is None else self._guard.marks_of_links(response.request)

    def _send_back(self, request: Request) -> None:
        engine: Any = self._crawler.engine
        engine.crawl(request)


def loop_guard_of(crawler: Crawler) -> LoopGuard | None:
    """Return the one guard of *crawler*, made when first asked for, or None if ``BLOOM_LOOP_GUARD`` is off.

    Raises:
        SettingsError, ValueError, TypeError: The setting cannot be used.

    """
    options = parse_loop_guard(crawler.settings.get(SETTING) or False)
    if not options:
        return None
    for _, answer in crawler.signals.send_catch_log(loop_guard_wanted):
        if isinstance(answer, LoopGuard):
            return answer
    if crawler.stats is None:
        raise TypeError("the crawler has no stats yet: it applies its settings first")
    is_shared = any(getattr(cls, "is_shared", False) for cls in _filter_and_scheduler(crawler))
    max_age = BloomSettings.from_settings(crawler.settings).max_age
    guard = LoopGuard(options, crawler.stats, crawler.spider, filter_is_shared=is_shared, max_age=max_age)
    crawler.signals.connect(guard.itself, signal=loop_guard_wanted)
    return guard


def _filter_and_scheduler(crawler: Crawler) -> list[Any]:
    return [load_object(crawler.settings[name]) for name in ("DUPEFILTER_CLASS", "SCHEDULER")]


def _tells_something(response: Response) -> bool:
    """Whether a page can be judged by *response*, of which refusals, faults and answers without a body say nothing."""
    if response.request is not None and response.request.method == "HEAD":
        return False
    return (response.status < 400 and response.status not in {204, 304}) or response.status in {404, 410}
