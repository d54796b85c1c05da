"""Schedulers for tests, opened over a real engine that downloads nothing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.core.downloader import Slot
from scrapy.core.engine import _Slot
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.reactor import CallLaterOnce, install_reactor, is_reactor_installed
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomDupeFilter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DURABLE = "scrapy_bloom.DurableScheduler"
SCRAPY = "scrapy.core.scheduler.Scheduler"


if not is_reactor_installed():  # by the tests' conftest, but not for a benchmark
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")

NOTHING_ELSE = {
    name: {}
    for name in ("DOWNLOAD_HANDLERS_BASE", "EXTENSIONS_BASE", "DOWNLOADER_MIDDLEWARES_BASE", "SPIDER_MIDDLEWARES_BASE")
}


class PlainSpider(Spider):
    name = "site"  # as that of killed_crawl.py, which goes on with jobs begun here

    def parse_other(self, response: Any) -> None:
        pass


class EngineCalls:
    """A scheduler with an engine around it, whose part the test plays: it hands requests to the downloader and back."""

    def __init__(self, jobdir: Path | None, scheduler: str = DURABLE, **settings: Any) -> None:
        self.crawler = get_crawler(
            PlainSpider,
            {
                "SCHEDULER": scheduler,
                "DUPEFILTER_CLASS": "tests.old.support.exactfilter.ExactFilter",
                "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
                "JOBDIR": str(jobdir) if jobdir else None,
                **NOTHING_ELSE,
                **settings,
            },
        )
        self.crawler.spider = self.crawler._create_spider()
        self.engine = self.crawler.engine = self.crawler._create_engine()
        self.engine.spider = self.crawler.spider
        self.scheduler: Any = build_from_crawler(load_object(self.crawler.settings["SCHEDULER"]), self.crawler)
        self.engine._slot = _Slot(False, CallLaterOnce(lambda: None), self.scheduler)
        try:
            self.scheduler.open(self.crawler.spider)
        except BaseException:
            self.scheduler.df.close("refused")  # a process that ends closes its files
            raise
        self.stats = self.crawler.stats

    def push(self, *requests: Request) -> list[bool]:
        return [self.scheduler.enqueue_request(request) for request in requests]

    def start(self) -> Request | None:
        """What the engine does to download the next request: it is in progress, and active in its slot.

        Scrapy's scheduler answers None once for each empty queue that a request which cannot be serialized has left in
        its priority queue; the engine comes back later.
        """
        while (request := self.scheduler.next_request()) is None and self.scheduler.has_pending_requests():
            if getattr(self.scheduler, "_failed", False):
                return None
        if request is not None:
            self.engine._slot.add_request(request)
            self.slot(request).active.add(request)
        return request

    def end(self, request: Request) -> None:
        """What the engine does when it is done with *request*."""
        self.slot(request).active.discard(request)
        self.engine._slot.remove_request(request)

    def slot(self, request: Request) -> Slot:
        downloader = self.engine.downloader
        return downloader.slots.setdefault(downloader.get_slot_key(request), Slot(8, 0.0, 0.0))

    def drain(self) -> list[str]:
        """Crawl all that is left, one request at a time, and return the URLs in order."""
        urls = []
        while (request := self.start()) is not None:
            urls.append(request.url)
            self.end(request)
        return urls

    def commit(self) -> None:
        assert self.scheduler._journal.commit()

    def stop(self) -> None:
        """A clean stop, after all that was in progress has ended."""
        for request in list(self.engine._slot.inprogress):
            self.end(request)
        self.scheduler.close("finished")
        self.engine.downloader.close()

    def die(self) -> None:
        """What a kill leaves of it: the last commit, no close. (The locks go with the files, as with a process.)"""
        if self.scheduler._timer.running:
            self.scheduler._timer.stop()
        self.scheduler._journal._thread.shutdown()
        self.scheduler._journal.database.abandon()
        dupefilter = self.scheduler.df
        if isinstance(dupefilter, BloomDupeFilter):
            dupefilter._chain._store._stop.set()  # its thread goes with the process, too
            dupefilter._chain._store.abandon()
        else:
            dupefilter.file.close()
        self.engine.downloader.close()


@contextmanager
def opened(jobdir: Path | None, scheduler: str = DURABLE, **settings: Any) -> Iterator[EngineCalls]:
    calls = EngineCalls(jobdir, scheduler, **settings)
    try:
        yield calls
    finally:
        calls.stop()
