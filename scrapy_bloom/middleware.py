"""LoopGuardMiddleware: shows the loop guard each page, and marks the requests that come from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.exceptions import NotConfigured
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware

from scrapy_bloom.crawl import Crawl
from scrapy_bloom.loops.share import MARK

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response


class LoopGuardMiddleware(BaseSpiderMiddleware):
    """For ``SPIDER_MIDDLEWARES``; the add-on sets it with ``BLOOM_LOOP_GUARD``. Not configured without.

    Raises:
        SettingsError: On construction; names every wrong ``BLOOM_*`` setting.

    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        guard = Crawl.of(crawler).guard
        if guard is None:
            raise NotConfigured
        self._guard = guard

    def process_spider_input(self, response: Response, spider: Spider | None = None) -> None:  # noqa: ARG002 - Scrapy 2.13 passes it
        """Show the guard what *response* brought, whatever its callback does with it."""
        if response.request is not None:
            response.request.meta[MARK] = self._guard.judge(response)

    def get_processed_request(self, request: Request, response: Response | None) -> Request:
        """Mark *request* with what the guard needs to know of the page that it comes from, if it comes from one."""
        if response is not None and response.request is not None:
            request.meta[MARK] = response.request.meta.get(MARK)
        return request
