"""The downloader middleware of BLOOM_CHANGES."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_bloom.crawl.crawl import Crawl

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self


class ChangesMiddleware:
    """Downloader middleware, next to the downloader, that asks whether a page is as it was in the last cycle."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawl = Crawl.of(crawler)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware of *crawler*."""
        return cls(crawler)

    def process_request(self, request: Request) -> None:
        """Add a validator to *request*, if its page need not be answered in full."""
        watch, page = self._crawl.changes, self._crawl.pages.of_request(request)
        if watch is None:
            return
        if page is not None:
            watch.ask(page, request)
        elif (parent := self._crawl.pages.current()) is not None:  # of engine.download() in its callback or a pipeline
            watch.of(parent).needs_answer = True

    def process_response(self, request: Request, response: Response) -> Response:
        """Note *response*; end here with NotModified if it says that the page is as it was."""
        self._answered(request, response)
        return response

    def process_exception(self, request: Request, exception: Exception) -> None:  # noqa: ARG002 - Scrapy's arguments
        """Take the validator off *request*, which was not answered."""
        self._answered(request, None)

    def _answered(self, request: Request, response: Response | None) -> None:
        watch, page = self._crawl.changes, self._crawl.pages.of_request(request)
        if watch is not None and page is not None:
            watch.answered(page, request, response)
