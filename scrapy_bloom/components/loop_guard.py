"""LoopGuardMiddleware: shows the loop guard each page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.exceptions import NotConfigured
from scrapy.http import HtmlResponse, TextResponse, XmlResponse
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware

from scrapy_bloom.components.assembly import Options
from scrapy_bloom.components.spider_crawl import crawl_of
from scrapy_bloom.loops.novelty import Answer

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response


class LoopGuardMiddleware(BaseSpiderMiddleware):
    """For ``SPIDER_MIDDLEWARES``; the add-on sets it with ``BLOOM_LOOP_GUARD``. Not configured without.

    Raises SettingsError on construction, which names every wrong ``BLOOM_*`` setting.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        if not Options.of(crawler).bloom.loop_guard:
            raise NotConfigured

    def process_spider_input(self, response: Response, spider: Spider | None = None) -> None:  # noqa: ARG002 - Scrapy 2.13 passes it
        """Show the guard what *response* brought, whatever its callback does with it."""
        crawl = crawl_of(self.crawler)
        page = None if crawl is None else crawl.current()
        if crawl is not None and page is not None:
            crawl.core.guard.judge(page, answer_of(response))


def answer_of(response: Response) -> Answer | None:
    """Return what the loop guard reads of *response*; None for refusals, faults and answers without a body."""
    if response.status >= 400 or response.status in {204, 304}:
        return None
    if not isinstance(response, TextResponse):
        return Answer(response.url, response.body, "binary")
    is_wide = response.encoding.startswith(("utf-16", "utf-32"))
    body = response.text.encode() if is_wide else response.body
    return Answer(response.url, body, "markup" if isinstance(response, (HtmlResponse, XmlResponse)) else "text")
