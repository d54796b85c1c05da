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

    from scrapy_bloom.frontier.page import Page


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
        for changes, page in self._watched(request):
            changes.ask(page, request)
            return
        for changes, parent in self._watched():  # of engine.download()
            if parent.result is not UNKNOWN:  # in its callback or a pipeline
                changes.needs_answer(parent)

    def process_response(self, request: Request, response: Response, spider: Spider | None = None) -> Response:
        """Note *response*; end here with NotModified if it says that the page is as it was."""
        for changes, page in self._watched(request):
            changes.answered(page, request, response)
        return response

    def process_exception(self, request: Request, exception: Exception, spider: Spider | None = None) -> None:
        """Take the validator off *request*, which was not answered."""
        for changes, page in self._watched(request):
            changes.answered(page, request, None)

    def process_spider_input(self, response: Response, spider: Spider | None = None) -> None:
        """Note that the callback gets *response*."""
        for changes, page in self._watched():
            known = changes.of(page)
            known.status, known.callback = response.status, "given"

    def process_spider_exception(self, response: Response, exception: Exception, spider: Spider | None = None) -> None:
        """Note that the callback raised *exception*, or was not given *response*, whatever others make of that."""
        for changes, page in self._watched():
            changes.of(page).callback = ""

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

    def _processed(self) -> None:
        for changes, page in self._watched():
            if changes.of(page).callback:
                changes.of(page).callback = "ended"

    def _watched(self, request: Request | None = None) -> Iterator[tuple[SpiderChanges, Page]]:
        """Yield the changes of the crawl and the page of *request*, or of the present call, if there is such a page."""
        crawl = crawl_of(self._crawler)
        if crawl is not None and isinstance(crawl.core.changes, SpiderChanges):
            page = crawl.pages.current() if request is None else crawl.pages.of_request(request)
            if page is not None:
                yield crawl.core.changes, page
