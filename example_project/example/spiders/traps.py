"""Crawl a made-up site full of crawl loops, with and without the loop guard: no internet needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.exceptions import CloseSpider
from scrapy.http import HtmlResponse, Response

from example.record import PageRecord
from example.traps.site import HOME, TrapSite, all_sections
from scrapy_bloom import UnseenLinks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from scrapy.crawler import Crawler

ORDERS = {
    "lifo": ("scrapy.squeues.LifoMemoryQueue", "scrapy.squeues.PickleLifoDiskQueue"),
    "fifo": ("scrapy.squeues.FifoMemoryQueue", "scrapy.squeues.PickleFifoDiskQueue"),
}


class TrapsSpider(UnseenLinks, Spider):
    """Crawls the site with traps and prints what was fetched of each section.

    ``-a guard=on`` or ``off`` sets ``BLOOM_LOOP_GUARD``; ``-a size=0.1`` takes a tenth of the honest pages;
    ``-a budget=`` ends the crawl after so many pages, by default twice the honest ones; ``-a order=fifo`` crawls
    breadth first; ``-a traps=tuning``, ``scoring`` or ``none`` leaves the others out; ``-a only=docs,map`` takes these
    sections.
    """

    name = "traps"
    custom_settings = {  # noqa: RUF012 - Scrapy's way of declaring them
        "DOWNLOADER_MIDDLEWARES": {"example.trap_server.TrapServer": 900},
        "EXTENSIONS": {"example.trap_report.TrapReport": 500},
        "ROBOTSTXT_OBEY": False,  # the site has none
        "URLLENGTH_LIMIT": 100_000,  # what is too long is for the guard to say
    }
    record: PageRecord

    def __init__(
        self,
        guard: str = "",
        size: str = "0.05",
        budget: str = "",
        order: str = "lifo",
        traps: str = "all",
        only: str = "",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.guard = _one_of("guard", guard, ("", "on", "off"))
        self.order = _one_of("order", order, tuple(ORDERS))
        _one_of("traps", traps, ("all", "tuning", "scoring", "none"))
        factor = _number("size", size)
        names = only.split(",") if only else None
        if traps != "all" and names is None:
            names = [s.name for s in all_sections(factor) if s.honest or traps == ("tuning" if s.tuning else "scoring")]
        self.site = TrapSite(factor, only=names)
        self.budget = int(_number("budget", budget)) if budget else 2 * self.site.honest_pages
        self.crawl_name = f"traps={traps} size={factor:g} only={only}"

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> TrapsSpider:
        """Build the spider, with the settings that its arguments stand for."""
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.record = PageRecord.of(crawler, spider.crawl_name)
        memory, disk = ORDERS[spider.order]
        settings = {
            "SCHEDULER_MEMORY_QUEUE": memory,
            "SCHEDULER_DISK_QUEUE": disk,
        }
        if spider.guard:
            settings["BLOOM_LOOP_GUARD"] = spider.guard == "on"
        crawler.settings.setdict(settings, priority="cmdline")
        return spider

    async def start(self) -> AsyncIterator[Request]:
        """Start at the home page, and let the filter remember it."""
        yield Request(HOME)

    def parse(self, response: Response) -> Iterator[Request]:
        """Record the page under its section and follow its links, until the budget is used up.

        Pages that are still under way then are not recorded. Links to sections that were left out lead nowhere, and
        cost nothing of the budget.
        """
        if not isinstance(response, HtmlResponse) or self.record.pages >= self.budget:
            return
        links = [response.urljoin(href) for href in response.xpath("//a/@href").getall()]
        self.record.add(f"{response.meta['section']}\t{response.url}", links=len(links))
        if self.record.pages >= self.budget:
            raise CloseSpider("budget")
        yield from response.follow_all(self.unseen_links(links))


def _one_of(name: str, value: str, words: tuple[str, ...]) -> str:
    if value not in words:
        raise SystemExit(f"traps: {name}={value} is none of {', '.join(filter(None, words))}")
    return value


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise SystemExit(f"traps: {name}={value} is not a number above 0")
    return number
