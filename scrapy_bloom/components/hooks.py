"""The private Scrapy APIs that we rely on. Each is checked when a crawl opens; without it, a log line names the loss.

Scrapy has no signal for "done with a request", "replaced by another request" and "feeds and extensions have ended", nor
for the page that a request or an item came from.
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.core.downloader import Slot as DownloaderSlot
from scrapy.extensions.feedexport import FeedExporter
from scrapy.linkextractors import LinkExtractor
from scrapy.linkextractors.lxmlhtml import LxmlParserLinkExtractor

from scrapy_bloom.components.spider_crawl import CURRENT, IN_PROGRESS, NotModified
from scrapy_bloom.components.startup import engine_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from scrapy.crawler import Crawler

    from scrapy_bloom.components.spider_crawl import SpiderCrawl
    from scrapy_bloom.frontier.page import Page

logger = logging.getLogger(__name__)

DOWNLOADER_SLOTS = "engine.downloader.slots[...].queue, .delay"
SPIDER_CLOSED = "engine._spider_closed_callback"
LINK_EXTRACTOR = "LinkExtractor._link_allowed, LxmlParserLinkExtractor._iter_links"
LOSSES = {
    IN_PROGRESS: "the next run in a job directory fetches every page of this one again, and its items come twice",
    "engine._slot.nextcall": "a worker that waits for requests of others looks for them every 5 s only",
    DOWNLOADER_SLOTS: "Retry-After and Crawl-delay are ignored",
    "engine._download": "a kill may lose requests in memory only that downloader middlewares ask the engine for",
    "engine._handle_downloader_output": "no page counts as failed, pages per host are not counted, and a kill may lose "
    "items or give them twice",
    "engine.scraper.handle_spider_output_async": "after a kill, items of unfiltered requests may come twice",
    "engine.scraper.handle_spider_error": "pages whose callback raised do not count as failed",
    "FeedExporter.slots, FeedExporter._start_new_batch": "after a kill, items may be missing from feeds or come twice",
    LINK_EXTRACTOR: "UnseenLinkExtractor works like LinkExtractor",
    SPIDER_CLOSED: "no run in a job directory counts as ended, and the next one takes it for killed",
    "Request._url, ._meta, ._body": "fingerprints take 3 times as long",
}
"""What is lost without a private part of Scrapy, by its name."""


def missing_hooks(crawler: Crawler) -> list[str]:
    """Return the names of the private parts that the running Scrapy does not have as we know them."""
    engine = engine_of(crawler)
    if engine is None:
        return []
    slot, scraper = getattr(engine, "_slot", None), getattr(engine, "scraper", None)
    is_there = (
        type(getattr(slot, "inprogress", None)) is set,
        hasattr(getattr(slot, "nextcall", None), "schedule"),
        _has_queue_and_delay(),
        _takes(engine, "_download", "request"),
        _takes(engine, "_handle_downloader_output", "result", "request"),
        _takes(scraper, "handle_spider_output_async", "result", "request", "response"),
        _takes(scraper, "handle_spider_error", "_failure", "request", "response"),
        _takes(FeedExporter, "_start_new_batch", "self", "batch_id", "uri"),
        _takes(LinkExtractor, "_link_allowed", "self", "link") and hasattr(LxmlParserLinkExtractor, "_iter_links"),
        callable(getattr(engine, "_spider_closed_callback", None)),
        all(hasattr(Request("data:,"), name) for name in ("_url", "_meta", "_body")),
    )
    return [name for name, there in zip(LOSSES, is_there, strict=True) if not there]


def _has_queue_and_delay() -> bool:
    try:
        slot: Any = DownloaderSlot(1, 0.0, None)  # the third argument is another one in Scrapy 2.13
    except TypeError:
        return False
    return isinstance(getattr(slot, "queue", None), deque) and getattr(slot, "delay", None) == 0


def _takes(owner: object, method: str, *names: str) -> bool:
    """Return whether *owner* has a *method* whose first parameters have these *names*."""
    try:
        parameters = inspect.signature(getattr(owner, method)).parameters
    except (AttributeError, TypeError, ValueError):
        return False
    return tuple(parameters)[: len(names)] == names


def watch_engine(crawl: SpiderCrawl) -> None:
    """Have the engine report to *crawl* what becomes of requests, and when feeds and extensions have ended.

    The signal ``engine_stopped`` comes earlier if a crawl is stopped while it ends.
    """
    engine = engine_of(crawl.crawler)
    if engine is None:
        return
    missing = crawl.missing_hooks
    for name in missing:
        logger.warning("This Scrapy has no %s as scrapy-bloom knows it: %s. Please report it", name, LOSSES[name])
    if crawl.core.keeps_requests and IN_PROGRESS not in missing:
        engine._slot.inprogress = InProgress(crawl.done)
    if "engine._download" not in missing:
        engine._download = _downloading_in_context(crawl, engine._download)
    if "engine._handle_downloader_output" not in missing:
        engine._handle_downloader_output = _in_context(crawl, engine._handle_downloader_output)
    if "engine.scraper.handle_spider_output_async" not in missing:
        engine.scraper.handle_spider_output_async = _keeping_context(crawl, engine.scraper)
    if "engine.scraper.handle_spider_error" not in missing:
        engine.scraper.handle_spider_error = _after(crawl.callback_raised, engine.scraper.handle_spider_error)
    if SPIDER_CLOSED not in missing:
        engine._spider_closed_callback = _after(crawl.end, engine._spider_closed_callback)


def wake_engine(crawler: Crawler) -> None:
    """Have the engine of *crawler* ask the scheduler for a request now. Without this call it does so every 5 s."""
    next_call: Any = getattr(getattr(engine_of(crawler), "_slot", None), "nextcall", None)
    if hasattr(next_call, "schedule"):  # otherwise LOSSES says what is lost
        next_call.schedule()


class InProgress(set["Request"]):
    """The engine's set of requests in progress, which tells when one leaves.

    A request enters when the scheduler hands it out. It leaves after its callback's last output was taken, after a
    redirect or retry was scheduled in its place, or after an error was reported.
    """

    def __init__(self, left: Callable[[Request], None]) -> None:
        super().__init__()
        self._left = left

    def remove(self, request: Request) -> None:
        """Remove *request*, and report it; KeyError as for any set."""
        super().remove(request)
        self._left(request)


class _Within:
    """The context of *page*, for ``with``. A generator would take three times as long, at each output of a callback."""

    def __init__(self, page: Page | None) -> None:
        self._page = page

    def __enter__(self) -> None:
        self._token = CURRENT.set(self._page)

    def __exit__(self, *_: object) -> None:
        CURRENT.reset(self._token)


def _in_context(crawl: SpiderCrawl, original: Callable[..., Any]) -> Callable[..., Any]:
    """Have results processed in the context of their page: what *original* starts inherits it."""

    def handle_downloader_output(result: Any, request: Request) -> Any:
        crawl.result_came(request, result)
        if isinstance(getattr(result, "value", None), NotModified):
            return None
        with _Within(crawl.of_request(request)):
            return original(result, request)

    return handle_downloader_output


def _downloading_in_context(crawl: SpiderCrawl, original: Callable[..., Any]) -> Callable[..., Any]:
    """Have requests downloaded in the context of their page: what middlewares ask the engine for belongs to it.

    Before Scrapy 2.14, that is so until the request is sent.
    """

    def download(request: Request) -> Any:
        with _Within(crawl.of_request(request) or CURRENT.get()):  # or of the page whose callback downloads it
            return original(request)

    return download


def _keeping_context(crawl: SpiderCrawl, scraper: Any) -> Callable[..., Any]:
    """Have *scraper* draw and process outputs in the context of their page.

    Before Scrapy 2.14, and without asyncio, a Cooperator of Twisted does both, in a context of its own.
    """
    original = type(scraper).handle_spider_output_async

    async def handle_spider_output_async(result: Any, request: Request, response: Any) -> None:
        page = CURRENT.get()
        drawing: Callable[..., Any] = _drawing_async if isinstance(result, AsyncIterator) else _drawing
        of_page = copy(scraper)
        of_page._process_spidermw_output = partial(_processing, crawl, page, scraper._process_spidermw_output)
        if hasattr(scraper, "_process_spidermw_output_async"):  # from Scrapy 2.14 on
            processing = partial(_processing_async, crawl, page, scraper._process_spidermw_output_async)
            of_page._process_spidermw_output_async = processing
        await original(of_page, drawing(page, result), request, response)

    return handle_spider_output_async


def _processing(crawl: SpiderCrawl, page: Page | None, original: Callable[..., Any], output: Any, response: Any) -> Any:
    with _Within(page):
        return original(output, response) if crawl.takes(page, output) else None


async def _processing_async(
    crawl: SpiderCrawl, page: Page | None, original: Callable[..., Any], output: Any, response: Any
) -> None:
    if crawl.takes(page, output):
        await original(output, response)


def _drawing(page: Page | None, outputs: Iterable[Any]) -> Iterator[Any]:
    iterator = iter(outputs)
    while True:
        with _Within(page):
            output = next(iterator, iterator)
        if output is iterator:
            return
        yield output


async def _drawing_async(page: Page | None, outputs: AsyncIterator[Any]) -> AsyncIterator[Any]:
    while True:
        with _Within(page):
            try:
                output = await outputs.__anext__()
            except StopAsyncIteration:
                return
        yield output


def _after(call: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return *original*, which is called after *call* with the same arguments."""

    def both(*arguments: Any) -> Any:
        call(*arguments)
        return original(*arguments)

    return both
