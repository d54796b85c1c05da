"""Reads from Scrapy's settings what a fleet has to know of a crawl."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_bloom.components.requests import scrapys_order
from scrapy_bloom.fleet.connection import WorkerOptions
from scrapy_bloom.fleet.messages import Politeness
from scrapy_bloom.fleet.server import DEFAULT_URL
from scrapy_bloom.fleet.takeover import ScrapyRedis, ScrapyRedisFingerprinter
from scrapy_bloom.frontier.pages_per_host import PagesPerHost

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

    from scrapy_bloom.frontier.order import Order
    from scrapy_bloom.settings import BloomSettings

ITEMS = "_BLOOM_FLEET_ITEMS"
"""Setting by which ``scrapy bloom crawl`` names the list on the server that its workers' items go to: not for users."""
_UNLIMITED = 100
"""Number of concurrent requests that is assumed if ``CONCURRENT_REQUESTS`` is 0, which means no limit."""
_SCRAPY_REDIS = {"REDIS_URL": "url", "REDIS_HOST": "host", "REDIS_PORT": "port", "REDIS_DB": "db"}


def worker_options(crawler: Crawler, bloom: BloomSettings, order: Order, *, has_start: bool) -> WorkerOptions:
    """Return how the worker of *crawler* joins its fleet. *has_start*: it can run start()."""
    settings, name = crawler.settings, spider_name(crawler)
    return WorkerOptions(
        spider=name,
        address=address_of(bloom.redis_url, settings),
        directory=Path(settings["JOBDIR"]).absolute() / "requests.bloom" if settings["JOBDIR"] else None,
        ahead=2 * (settings.getint("CONCURRENT_REQUESTS") or _UNLIMITED),
        per_slot=settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN"),
        politeness=politeness_of(settings, crawler.spider),
        pages=PagesPerHost.of(bloom.pages_per_host, order),
        items=settings.get(ITEMS, ""),
        has_start=has_start,
        scrapy_redis=scrapy_redis_of(settings, name),
    )


def spider_name(crawler: Crawler) -> str:
    """Return the name of the spider of *crawler*; "spider" if it has none."""
    return crawler.spider.name if crawler.spider is not None else "spider"


def address_of(url: str | None, settings: BaseSettings) -> dict[str, Any]:
    """Return how a server is reached, as arguments of :class:`Server`. They may hold a password.

    It is at *url*; if that is None, it is the one of scrapy-redis' *settings*, or else the local one.
    """
    if url:
        return {"url": url}
    options = dict(settings.getdict("REDIS_PARAMS"))
    options |= {option: settings.get(name) for name, option in _SCRAPY_REDIS.items() if settings.get(name)}
    return options or {"url": DEFAULT_URL}


def politeness_of(settings: BaseSettings, spider: Spider | None) -> Politeness:
    """Return what *settings* and *spider* allow at the beginning."""
    delay = max(settings.getfloat("DOWNLOAD_DELAY"), getattr(spider, "download_delay", None) or 0)
    if settings.getbool("AUTOTHROTTLE_ENABLED"):
        delay = max(delay, settings.getfloat("AUTOTHROTTLE_START_DELAY"))
    slots = settings.getdict("DOWNLOAD_SLOTS")
    delays = {name: float(slot["delay"]) for name, slot in slots.items() if "delay" in slot}
    shares = {name: int(slot["concurrency"]) for name, slot in slots.items() if slot.get("concurrency")}
    return Politeness({"*": delay, **delays}, shares)


def order_of(settings: BaseSettings, spider: Spider | None) -> Order:
    """Return the order of the fleet's requests. It keeps slots apart if any slot has a delay or a share."""
    order, politeness = scrapys_order(settings, in_job=True), politeness_of(settings, spider)
    return order._replace(by_slot=True) if any(politeness.delays.values()) or politeness.shares else order


class Throttle:
    """The delays that AutoThrottle has found in *crawler*, if it is on."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._is_on = crawler.settings.getbool("AUTOTHROTTLE_ENABLED")
        self._returned: dict[str, float] = {}

    def changed(self) -> dict[str, float]:
        """Return the delays that have changed by a tenth since they were returned, in seconds by slot."""
        if not self._is_on:
            return {}
        engine: Any = self._crawler.engine
        delays = {name: slot.delay for name, slot in engine.downloader.slots.items()}
        before = self._returned
        changed = {slot: delay for slot, delay in delays.items() if abs(delay - before.get(slot, 0)) > 0.1 * delay}
        before |= changed
        return changed


def scrapy_redis_of(settings: BaseSettings, spider: str) -> ScrapyRedis:
    """Return where scrapy-redis has requests and filter of *spider*, and how it orders them."""
    names = (
        settings.get("SCHEDULER_QUEUE_KEY") or "%(spider)s:requests",
        settings.get("SCHEDULER_DUPEFILTER_KEY") or "%(spider)s:dupefilter",
    )
    return ScrapyRedis(
        spider,
        [name % {"spider": spider} for name in names],
        is_fifo="Lifo" not in str(settings.get("SCHEDULER_QUEUE_CLASS")),
        has_its_fingerprints=settings["REQUEST_FINGERPRINTER_CLASS"]
        in {ScrapyRedisFingerprinter.PATH, ScrapyRedisFingerprinter},
    )
