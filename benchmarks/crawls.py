"""Crawls in this process, and that of a site by each of the programs that are compared, set up as they document it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from benchmarks import measure

if TYPE_CHECKING:
    from scrapy import Spider

SCRAPY, REDIS, FLEET = measure.SCRAPY, "scrapy-redis", "scrapy-bloom, fleet"
UNSEEN = "scrapy-bloom, UnseenLinkExtractor"
WAYS: dict[str, dict[str, Any]] = {
    SCRAPY: {"JOBDIR": "job"},
    REDIS: {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER_PERSIST": True,
        "REDIS_URL": "server",
    },
    measure.OURS: {"ADDONS": {"scrapy_bloom.Addon": 300}, "JOBDIR": "job"},
    FLEET: {"ADDONS": {"scrapy_bloom.Addon": 300}, "BLOOM_REDIS_URL": "server", "JOBDIR": "job"},
}
WAYS[UNSEEN] = WAYS[FLEET]
"""Settings by name. "job" stands for a directory of the crawl's own, and "server" for the URL of one."""
OURS = (measure.OURS, FLEET, UNSEEN)


def sides(ways: Mapping[str, str], old: Path | None) -> dict[str, tuple[str, Path | None]]:
    """Return the way and the package of each of *ways* that is installed; ours also from the folder *old*."""
    found: dict[str, tuple[str, Path | None]] = {name: (way, None) for name, way in ways.items()}
    if old:
        found |= {f"{name}, old": (way, old.resolve()) for name, way in ways.items() if way in OURS}
    if measure.installed(REDIS) == measure.MISSING:
        print(f"left out, since it is not installed: {found.pop(REDIS)[0]}\n")
    return found


def run_spider(spider: type[Spider], settings: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """Crawl in this process; return the seconds of CPU time, and the last stats."""
    from scrapy.crawler import CrawlerProcess

    process = CrawlerProcess({"LOG_LEVEL": "ERROR", "TELNETCONSOLE_ENABLED": False, **settings})
    crawler = process.create_crawler(spider)
    process.crawl(crawler)
    began = time.process_time()
    process.start()
    return time.process_time() - began, crawler.stats.get_stats() if crawler.stats else {}


def crawl(way: str, url: str, places: dict[str, str], settings: dict[str, Any], items: int = 0) -> measure.Figures:
    """Crawl all that is linked from *url*, print the URL of each page, and return CPU time and when pages came.

    Each page gives so many *items*; *places* are what the names in WAYS stand for.
    """
    from scrapy import Request, Spider
    from scrapy.linkextractors import LinkExtractor

    from scrapy_bloom import UnseenLinkExtractor

    links = (UnseenLinkExtractor if way == UNSEEN else LinkExtractor)(allow=urljoin(url, "/"))
    came: list[float] = []

    class SiteSpider(Spider):
        name = "site"

        async def start(self) -> Any:
            yield Request(url)  # filtered, unlike start_urls: or a link back would fetch it twice without any kill

        def parse(self, response: Any) -> Any:
            came.append(time.time())
            print(response.url, flush=True)
            yield from ({"item": f"{response.url} {number}"} for number in range(items))
            yield from response.follow_all(links.extract_links(response))

    logging.disable(logging.WARNING)
    own = {key: places.get(value, value) if isinstance(value, str) else value for key, value in WAYS[way].items()}
    cpu, _ = run_spider(SiteSpider, {**settings, **own})
    first, last = (came[0], came[-1]) if came else (time.time(), 0.0)
    return {"pages": len(came), "cpu": cpu, "first": first, "last": last}
