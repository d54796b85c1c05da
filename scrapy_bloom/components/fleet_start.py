"""One worker of a fleet runs start(): the engine draws from it when the server has told this worker to."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from scrapy import Request, signals
from scrapy.exceptions import CloseSpider
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.defer import Deferred

from scrapy_bloom.components.in_progress import CURRENT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scrapy.crawler import Crawler

    from scrapy_bloom.components.fleet_requests import FleetRequests
    from scrapy_bloom.components.spider_crawl import SpiderCrawl
    from scrapy_bloom.fleet.store import FleetStore
    from scrapy_bloom.frontier.page import Page


def has_start(crawler: Crawler) -> bool:
    """Return whether we can hold back start() in *crawler*. If not, each worker runs it."""
    return getattr(crawler.engine, "_start", None) is not None


class StartRun:
    """Takes the place of the output of start() in the engine of *crawl*, which *store* and *requests* belong to.

    The output waits until the store has the lease of start(). It ends when nothing is pending or in hand at any worker.
    In between, start() is run again if the server went back to a time before it had ended. All that start() gives
    belongs to one page, which is acknowledged when start() has ended and its items are through the pipelines.
    """

    def __init__(self, crawl: SpiderCrawl, store: FleetStore, requests: FleetRequests) -> None:
        self._engine: Any = crawl.crawler.engine
        self._store, self._requests, self._pages = store, requests, crawl.pages
        self._page: Page | None = None
        self._open_parts = 0  # of the page: start() itself, and items in pipelines
        self._waiting: Deferred[None] | None = None
        self._is_closed = False
        self._engine._start = self._outputs(self._engine._start)
        for signal in (signals.item_scraped, signals.item_dropped, signals.item_error):
            crawl.crawler.signals.connect(self._item_ended, signal=signal)

    def look(self) -> None:
        """Go on if there is a reason to. Call this whenever the engine asks for a request."""
        if self._waiting is not None and (self._is_closed or self._store.start.is_granted or not len(self._store)):
            waiting, self._waiting = self._waiting, None
            waiting.callback(None)

    def close(self) -> None:
        """End the output."""
        self._is_closed = True
        self.look()

    async def _outputs(self, outputs: AsyncIterator[Any] | None) -> AsyncIterator[Any]:
        while await self._is_granted():
            page = self._page = self._store.begin_start()
            self._requests.begin_start()
            self._pages.hand_out(page, Request("data:,"), "", None)
            self._open_parts = 1
            CURRENT.set(page)  # the engine handles the output in this context, which is its own for start()
            try:
                async for output in outputs or await self._anew():
                    self._open_parts += not isinstance(output, Request)
                    yield output
                    CURRENT.set(page)
            except CloseSpider:
                raise
            except Exception:
                self._end_part()
                raise
            outputs = None
            self._end_part()
            CURRENT.set(None)
        self._store.start.decline()

    async def _is_granted(self) -> bool:
        while not self._is_closed and not self._store.start.is_granted:
            if not len(self._store):
                return False
            self._waiting = Deferred()
            await maybe_deferred_to_future(self._waiting)
        return not self._is_closed

    async def _anew(self) -> AsyncIterator[Any]:
        process_start: Any = self._engine.scraper.spidermw.process_start
        parameter = inspect.signature(process_start).parameters.get("spider")
        is_needed = parameter is not None and parameter.default is parameter.empty  # in Scrapy 2.13
        outputs: AsyncIterator[Any] = await process_start(*([self._engine.spider] if is_needed else []))
        return outputs

    def _item_ended(self, response: object = None) -> None:
        if response is None and self._page is not None and CURRENT.get() is self._page:
            self._end_part()

    def _end_part(self) -> None:
        self._open_parts -= 1
        if not self._open_parts and self._page is not None:
            page, self._page = self._page, None
            self._pages.leave(page.request)
            self._store.done(page)
