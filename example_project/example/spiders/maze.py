"""Crawl a made-up site that the crawl itself serves on 127.0.0.1: no internet needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from scrapy import Request, Spider
from scrapy.linkextractors import LinkExtractor

from example.record import PageRecord
from example.site import HOME, build_site, page_address
from scrapy_bloom import UnseenLinks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from scrapy.crawler import Crawler
    from scrapy.http import HtmlResponse


MIN_COMPARED, MAX_COMPARED = 100, 1_000
"""Pages for which the comparison takes seconds and says something."""


class MazeSpider(UnseenLinks, Spider):
    """Crawls all pages of the maze; ``-a pages=5000`` makes it larger.

    Afterwards, without a job directory, the same site is crawled in both ways, with us and with plain Scrapy;
    ``-a compare=no`` leaves that out. ``-a calendar=yes`` puts an endless calendar on the site. Workers of a fleet are
    told by ``-a served_at=http://127.0.0.1:...`` where the one site is that they share, and by ``-a first=17`` on which
    page to start.
    """

    name = "maze"
    custom_settings = {  # noqa: RUF012 - Scrapy's way of declaring them
        "DOWNLOADER_MIDDLEWARES": {"example.loopback.LoopbackSite": 740},  # before HttpProxyMiddleware at 750
        "BLOOM_CAPACITY": 1_000,  # small, so that a larger maze shows the filter growing
    }
    links = LinkExtractor()
    record: PageRecord

    def __init__(
        self,
        pages: str = "300",
        served_at: str = "",
        first: str = "0",
        calendar: str = "no",
        compare: str = "yes",
        filter_start: str = "yes",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if not pages.isdecimal() or not int(pages):
            raise SystemExit(f"maze: pages={pages} is not a number of pages, which is what it needs: -a pages=500")
        self.site = build_site(int(pages), calendar=calendar == "yes")
        self.served_at = served_at
        self.compares = compare == "yes" and not served_at and MIN_COMPARED <= len(self.site) <= MAX_COMPARED
        self.filter_start = filter_start == "yes"
        self.start_url = urljoin(HOME, list(self.site)[int(first)])

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> MazeSpider:
        """Build the spider with the record of its job directory."""
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.record = PageRecord.of(crawler, f"maze of {len(spider.site)} pages")
        return spider

    async def start(self) -> AsyncIterator[Request]:
        """Start at the home page, or where ``first`` says.

        Scrapy's own `start` sets ``dont_filter``: the home page would not be remembered, and be crawled once more
        for the links to it, and again on every resumed run. ``-a filter_start=no`` does as Scrapy does.
        """
        yield Request(self.start_url, dont_filter=not self.filter_start)

    def parse(self, response: HtmlResponse) -> Iterator[Request]:
        """Record the page and follow its links."""
        links = self.links.extract_links(response)
        self.record.add(page_address(response.url), links=len(links))
        yield from response.follow_all(self.unseen_links(links))
