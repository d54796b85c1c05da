"""Puts the stores of a fleet together: reads from Scrapy's settings what they have to know of a crawl."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.utils.reactor import is_reactor_installed

from scrapy_bloom.components.fleet_requests import FleetRequests
from scrapy_bloom.components.hooks import wake_engine
from scrapy_bloom.components.requests import scrapys_order
from scrapy_bloom.fleet.connection import connect
from scrapy_bloom.fleet.lease import LeaseClient
from scrapy_bloom.fleet.messages import Politeness
from scrapy_bloom.fleet.queue import Queue
from scrapy_bloom.fleet.server import DEFAULT_URL, Server, key_of
from scrapy_bloom.fleet.shared_filter import SharedFilter
from scrapy_bloom.fleet.store import FleetStore
from scrapy_bloom.fleet.takeover import ScrapyRedis
from scrapy_bloom.frontier.order import PagesPerHost
from scrapy_bloom.job.feeds import FeedJournal

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

    from scrapy_bloom.frontier.order import Order
    from scrapy_bloom.frontier.store import Journal
    from scrapy_bloom.job.records import Feeds
    from scrapy_bloom.settings import BloomSettings
    from scrapy_bloom.url.fingerprint import Fingerprints

ITEMS = "_BLOOM_FLEET_ITEMS"
"""Setting by which ``scrapy bloom crawl`` names the list on the server that its workers' items go to: not for users."""
_UNLIMITED = 100
"""Number of concurrent requests that is assumed if ``CONCURRENT_REQUESTS`` is 0, which means no limit."""
_SCRAPY_REDIS = {"REDIS_URL": "url", "REDIS_HOST": "host", "REDIS_PORT": "port", "REDIS_DB": "db"}


def fleet_store(
    crawler: Crawler, bloom: BloomSettings, fingerprints: Fingerprints, feeds: Feeds
) -> tuple[FleetStore, FleetRequests]:
    """Return the store of a worker with *feeds* of its own, and how it holds requests."""
    settings, spider, name = crawler.settings, crawler.spider, getattr(crawler.spider, "name", "spider")
    order = order_of(settings, spider)
    # If we cannot hold back start(), each worker runs it.
    has_start = getattr(crawler.engine, "_start", None) is not None

    def client_at(server: Server, worker: str, journal: Journal) -> LeaseClient:
        ScrapyRedis.of(name, settings).warn(server)
        queue = Queue.of(
            server,
            bloom,
            fingerprints,
            name,
            lease_seconds=bloom.fleet_lease,
            politeness=politeness_of(settings, spider),
            pages=PagesPerHost.of(bloom.pages_per_host, order),
            start_urls=key_of(bloom.fleet_start_urls, name) if bloom.fleet_start_urls else None,
            items=settings.get(ITEMS, ""),
            has_start=has_start,
        )
        return LeaseClient(
            queue,
            worker,
            journal,
            ahead=2 * (settings.getint("CONCURRENT_REQUESTS") or _UNLIMITED),
            per_slot=settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN"),
            news=_in_crawl(partial(wake_engine, crawler)),
        )

    address = address_of(bloom.redis_url, settings)
    directory = Path(settings["JOBDIR"]).absolute() / "requests.bloom" if settings["JOBDIR"] else None
    client, on_close = connect(address, directory, partial(FeedJournal, feeds=feeds), client_at)
    store = FleetStore(client, on_close, bloom, stats=crawler.stats, own_delays=_delays_of(crawler))
    return store, FleetRequests(spider, bloom.fleet_secret, order, fingerprints)


def shared_filter(crawler: Crawler, bloom: BloomSettings, fingerprints: Fingerprints) -> SharedFilter:
    """Return the store of *crawler* whose filter is on a server."""
    server = Server(**address_of(bloom.redis_url, crawler.settings))
    name = getattr(crawler.spider, "name", "spider")
    return SharedFilter(Queue.of(server, bloom, fingerprints, name, kind="filter 1"), bloom, crawler.stats)


def _in_crawl(call: Callable[[], None]) -> Callable[[], object]:
    """Return a function that makes the crawl's thread call *call*, whichever thread calls it."""
    try:
        return partial(asyncio.get_running_loop().call_soon_threadsafe, call)
    except RuntimeError:
        if not is_reactor_installed():  # a store that is used on its own
            return lambda: None
        from twisted.internet import reactor

        of_reactor: Any = reactor  # its type depends on which one is installed
        return partial(of_reactor.callFromThread, call)


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


def _delays_of(crawler: Crawler) -> Callable[[], dict[str, float]]:
    """Return a function that returns which delays AutoThrottle has changed by a tenth since its last call.

    They are in seconds, by slot.
    """
    before: dict[str, float] = {}

    def changed() -> dict[str, float]:
        engine: Any = crawler.engine
        delays = {name: slot.delay for name, slot in engine.downloader.slots.items()}
        new = {slot: delay for slot, delay in delays.items() if abs(delay - before.get(slot, 0)) > 0.1 * delay}
        before.update(new)
        return new

    return changed if crawler.settings.getbool("AUTOTHROTTLE_ENABLED") else dict
