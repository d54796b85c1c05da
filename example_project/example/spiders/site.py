"""Crawl a real site, within its host, politely."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.exceptions import CloseSpider
from scrapy.http import HtmlResponse, Response
from scrapy.linkextractors import LinkExtractor

from example.record import PageRecord
from scrapy_bloom import UnseenLinks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from scrapy.crawler import Crawler


class SiteSpider(UnseenLinks, Spider):
    """Crawls the host of ``-a url=https://...``; ``-a max_pages=1000`` ends a run after about so many pages."""

    name = "site"
    custom_settings = {  # noqa: RUF012 - Scrapy's way of declaring them
        "ROBOTSTXT_OBEY": True,
        "AUTOTHROTTLE_ENABLED": True,
        "AUTOTHROTTLE_START_DELAY": 1.0,
        "CONCURRENT_REQUESTS": 2,  # there is but one host, and what is under way is what a limit is overshot by
    }
    record: PageRecord

    def __init__(self, url: str = "", max_pages: str = "0", **kwargs: Any):
        super().__init__(**kwargs)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            found = f"{url!r} is no address" if url else "no address"
            raise SystemExit(f"site: {found}; give it as -a url=https://...")
        if not max_pages.isdecimal():
            raise SystemExit(f"site: max_pages={max_pages} is not a number of pages; leave it out for no limit")
        self.url = url
        self.max_pages = int(max_pages)
        self.host = parts.netloc
        self.allowed_domains = [parts.hostname]  # for redirects, which no link extractor sees
        self.links = LinkExtractor(allow=rf"^https?://{re.escape(parts.netloc)}(?:[/?#]|$)")

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> SiteSpider:
        """Build the spider with the record of its job directory."""
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.record = PageRecord.of(crawler, spider.url)
        return spider

    async def start(self) -> AsyncIterator[Request]:
        """Start at the given URL; like every other it is fetched once (see the ``maze`` spider)."""
        yield Request(self.url)

    def parse(self, response: Response) -> Iterator[Request]:
        """Record the page and follow its links.

        Pages still under way when the limit is reached are recorded and their links queued like all others, so that
        a later run of the job goes on from there and misses none.
        """
        links = self.links.extract_links(response) if isinstance(response, HtmlResponse) else []
        self.record.add(response.url, links=len(links))
        yield from response.follow_all(self.unseen_links(links))
        if self.max_pages and self.record.pages >= self.max_pages:
            raise CloseSpider("max_pages")
