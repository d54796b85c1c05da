"""Scrapy's real scheduler with a filter in it, as a crawl makes it, without a crawl around it."""

from __future__ import annotations

from typing import Any

from scrapy import Request, Spider
from scrapy.core.scheduler import Scheduler
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.test import get_crawler

from scrapy_bloom import UnseenLinks

SCRAPYS = "scrapy.dupefilters.RFPDupeFilter"
OURS = "scrapy_bloom.BloomDupeFilter"


class AskingSpider(UnseenLinks, Spider):
    """A spider that can ask."""


class ByPath:
    """A fingerprinter of somebody's own."""

    def fingerprint(self, request: Request) -> bytes:
        return request.url.partition("?")[0].encode()


def open_scheduler(dupefilter: str = OURS, spider: type[Spider] = Spider, **settings: Any) -> Scheduler:
    """Return Scrapy's scheduler, open, as a crawler makes it."""
    # The default queue asks the engine's downloader for its slots, and there is no engine here.
    queue = {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"}
    crawler = get_crawler(spider, {"DUPEFILTER_CLASS": dupefilter, **queue, **settings})
    crawler.spider = crawler._create_spider("spider")
    scheduler = build_from_crawler(Scheduler, crawler)
    scheduler.open(crawler.spider)
    return scheduler


def finish(scheduler: Scheduler) -> None:
    """Take all requests, as a crawl that ends by itself does, and close."""
    while scheduler.next_request() is not None:
        pass
    scheduler.close("finished")


def stat(scheduler: Scheduler, name: str) -> Any:
    assert scheduler.stats is not None
    return scheduler.stats.get_value(name)
