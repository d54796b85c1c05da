"""The middleware of BLOOM_CHANGES, next to the downloader and next to the spider."""

# ruff: noqa: ARG002 - the arguments are those that Scrapy passes

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_bloom.components.spider_changes import SpiderChanges
from scrapy_bloom.components.spider_crawl import crawl_of
from scrapy_bloom.frontier.page import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

    from scrapy_bloom.components.in_progress import PagesInProgress
    from scrapy_bloom.crawl.changes import PageChanges


class ChangesMiddleware:
    """Downloader and spider middleware.

    Next to the downloader, it asks whether a page is as it was in the last cycle. Next to the spider, it notes which
    pages their callbacks processed as a whole: another spider middleware may have handled an exception.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware of *crawler*."""
        return cls(crawler)

    def process_request(self, request: Request, spider: Spider | None = None) -> None:
        """Add a validator to *request*, if its page need not be answered in full."""
        watch, pages = self._watch()
        if watch is None or pages is None:
            return
        if (page := pages.of_request(request)) is not None:
            watch.ask(page, request)
            return
        parent = pages.current()  # of engine.download()
        if parent is not None and parent.result is not UNKNOWN:  # in its callback or a pipeline
            watch.needs_answer(parent)

    def process_response(
        self,
        request: Request,
        response: Response,
        spider: Spider | None = None,
    ) -> Response:
        """Note *response*; end here with NotModified if it says that the page is as it was."""
        self._answered(request, response)
        return response

    def process_exception(
        self,
        request: Request,
        exception: Exception,
        spider: Spider | None = None,
    ) -> None:
        """Take the validator off *request*, which was not answered."""
        self._answered(request, None)

    def _answered(self, request: Request, response: Response | None) -> None:
        watch, pages = self._watch()
        page = None if pages is None else pages.of_request(request)
        if watch is not None and page is not None:
            watch.answered(page, request, response)

    def process_spider_input(self, response: Response, spider: Spider | None = None) -> None:
        """Note that the callback gets *response*."""
        if (known := self._known()) is not None:
            known.status, known.callback = response.status, "given"

    def process_spider_exception(self, response: Response, exception: Exception, spider: Spider | None = None) -> None:
        """Note that the callback raised *exception*, or was not given *response*, whatever others make of that."""
        if (known := self._known()) is not None:
            known.callback = ""

    def process_spider_output(
        self, response: Response, result: Iterable[Any], spider: Spider | None = None
    ) -> Iterator[Any]:
        """Yield *result*, and note that it has ended."""
        yield from result
        self._processed()

    async def process_spider_output_async(
        self,
        response: Response,
        result: AsyncIterator[Any],
        spider: Spider | None = None,
    ) -> AsyncIterator[Any]:
        """Yield *result*, and note that it has ended."""
        async for output in result:
            yield output
        self._processed()

    def _watch(self) -> tuple[SpiderChanges | None, PagesInProgress | None]:
        crawl = crawl_of(self._crawler)
        if crawl is None or not isinstance(crawl.core.changes, SpiderChanges):
            return None, None
        return crawl.core.changes, crawl.pages

    def _known(self) -> PageChanges | None:
        watch, pages = self._watch()
        page = None if pages is None else pages.current()
        return None if watch is None or page is None else watch.of(page)

    def _processed(self) -> None:
        if (known := self._known()) is not None and known.callback:
            known.callback = "ended"
