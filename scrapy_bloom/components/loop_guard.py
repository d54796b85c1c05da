"""LoopGuardMiddleware: shows the loop guard each page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.exceptions import NotConfigured
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware

from scrapy_bloom.crawl.crawl import Crawl

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response


class LoopGuardMiddleware(BaseSpiderMiddleware):
    """For ``SPIDER_MIDDLEWARES``; the add-on sets it with ``BLOOM_LOOP_GUARD``. Not configured without.

    Raises:
        SettingsError: On construction; names every wrong ``BLOOM_*`` setting.

    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._crawl = Crawl.of(crawler)
        if self._crawl.guard is None:
            raise NotConfigured

    def process_spider_input(self, response: Response, spider: Spider | None = None) -> None:  # noqa: ARG002 - Scrapy 2.13 passes it
        """Show the guard what *response* brought, whatever its callback does with it."""
        page = self._crawl.pages.current()
        if page is not None and self._crawl.guard is not None:
            self._crawl.guard.judge(page, response)
