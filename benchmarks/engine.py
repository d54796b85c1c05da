"""Calls a scheduler as Scrapy's engine does, without an event loop: nothing is downloaded."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from scrapy import Request, Spider
from scrapy.core.downloader import Slot
from scrapy.core.engine import _Slot
from scrapy.http import Response
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.reactor import CallLaterOnce, install_reactor, is_reactor_installed
from scrapy.utils.test import get_crawler

_BASES = ("DOWNLOAD_HANDLERS", "EXTENSIONS", "DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES")
NOTHING_ELSE: dict[str, Any] = {f"{name}_BASE": {} for name in _BASES}
"""Settings of a crawl without what Scrapy enables by itself."""
IN_FLIGHT = 16
"""Requests with the downloader: Scrapy's default for ``CONCURRENT_REQUESTS``."""

if not is_reactor_installed():
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")


class PlainSpider(Spider):
    """Owns the jobs."""

    name = "site"


def quiet_crawler(settings: Mapping[str, Any]) -> Any:
    """Return a crawler with *settings* and nothing that is not measured."""
    logging.disable(logging.WARNING)
    return get_crawler(PlainSpider, {**NOTHING_ELSE, **settings})


def begin(crawler: Any) -> Any:
    """Give *crawler* its spider and an engine that downloads nothing; return its scheduler, which is not open yet."""
    crawler.spider = crawler._create_spider()
    crawler.engine = crawler._create_engine()
    crawler.engine.spider = crawler.spider
    scheduler = build_from_crawler(load_object(crawler.settings["SCHEDULER"]), crawler)
    crawler.engine._slot = _Slot(False, CallLaterOnce(lambda: None), scheduler)
    return scheduler


class Engine:
    """A scheduler, open, with the engine that it looks at.

    Args:
        settings: Of the crawl; with ``SCHEDULER``.

    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        crawler = quiet_crawler(settings)
        self.scheduler = begin(crawler)
        self._engine = crawler.engine
        self.scheduler.open(crawler.spider)
        self._in_flight: deque[Request] = deque()

    def push(self, count: int, hosts: int = 3) -> None:
        """Let *count* requests to *hosts* hosts be pending."""
        for number in range(count):
            self.scheduler.enqueue_request(request_of(number, hosts))

    def start(self) -> None:
        """Hand the next request to the downloader."""
        request = self.scheduler.next_request()
        if request is None:
            raise AssertionError("nothing is pending")
        self._engine._slot.add_request(request)
        slots = self._engine.downloader.slots
        slot = slots.setdefault(self._engine.downloader.get_slot_key(request), Slot(8, 0.0, 0.0))
        slot.active.add(request)
        self._in_flight.append(request)

    def end(self) -> None:
        """Be done with the request that was handed out first."""
        request = self._in_flight.popleft()
        downloader = self._engine.downloader
        key = downloader.get_slot_key(request)
        downloader.slots[key].active.discard(request)
        if not downloader.slots[key].active:
            del downloader.slots[key]  # as Scrapy does in time
        if hasattr(self.scheduler, "crawl"):  # ours: as the engine tells it that a response came
            self.scheduler.crawl.result_came(request, ANSWER)
        self._engine._slot.remove_request(request)

    def flush(self) -> None:
        """Write all that is pending, if the scheduler does that before it is closed: its thread takes time, too."""
        if hasattr(self.scheduler, "crawl"):
            self.scheduler.crawl.store.flush()

    def stop(self) -> None:
        """Stop cleanly: all that is in flight is done, all that is pending is written."""
        while self._in_flight:
            self.end()
        self.scheduler.close("finished")
        if hasattr(self.scheduler, "crawl"):  # as the engine tells it that the spider is closed
            self.scheduler.crawl.end()


ANSWER = Response("data:,")
"""Of all requests: to make one takes as long as to hand out a request."""


def request_of(number: int, hosts: int) -> Request:
    """Return request *number*, one of many to *hosts* hosts, with the meta of an ordinary crawl."""
    url = f"http://www.host-{number % hosts}.example/products/{number}?page={number % 7}"
    return Request(url, meta={"depth": number % 9, "link_text": "a link"})
