"""Tells which requests have failed for good, so that their fingerprints can be taken back.

Knows Scrapy's signals. Does not know the filter: it calls what it is given.

A request counts as failed

- when its download ended without a response: connection refused, time-out, DNS, refused by a downloader middleware;
- when the response that reaches the spider has a status of ``RETRY_HTTP_CODES``, because by then the retries are used
  up;
- when its callback raised.

Between a failed download and its retry the request also counts as failed, until the retry is scheduled: a kill just
then costs one more fetch, not a page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy import Request, signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from twisted.python.failure import Failure


class FailureWatch:
    """Listens to one crawl from construction on. Keep a reference to it: signals do not."""

    def __init__(
        self, crawler: Crawler, failed: Callable[[Request], None], pending_again: Callable[[Request], None]
    ) -> None:
        """Call *failed* with each request that has failed, *pending_again* when a retry is scheduled after all."""
        self._failed = failed
        self._pending_again = pending_again
        self._hopeless_statuses = {int(status) for status in crawler.settings.getlist("RETRY_HTTP_CODES")}
        self._downloaded: set[int] = set()  # id() of requests that got a response and have not left the downloader
        for receiver, signal in (
            (self._response_downloaded, signals.response_downloaded),
            (self._request_left_downloader, signals.request_left_downloader),
            (self._response_received, signals.response_received),
            (self._spider_error, signals.spider_error),
            (self._request_scheduled, signals.request_scheduled),
        ):
            crawler.signals.connect(receiver, signal=signal)

    def _response_downloaded(self, request: Request) -> None:
        self._downloaded.add(id(request))

    def _request_left_downloader(self, request: Request) -> None:
        if id(request) in self._downloaded:
            self._downloaded.discard(id(request))
        else:
            self._fail(request)

    def _response_received(self, response: Response, request: Request) -> None:
        if response.status in self._hopeless_statuses:
            self._fail(request)

    def _spider_error(self, failure: Failure, response: Response) -> None:  # noqa: ARG002 - Scrapy's arguments
        if response is not None and response.request is not None:  # without a response, start() raised
            self._fail(response.request)

    def _request_scheduled(self, request: Request) -> None:
        # Scrapy does not filter retries. A link may have the count as well, from the meta of the page that it is on.
        if request.dont_filter and request.meta.get("retry_times"):
            self._pending_again(request)

    def _fail(self, request: Request) -> None:
        self._failed(request)
        # Links to the URLs that redirected here must be followed again, too.
        for url in request.meta.get("redirect_urls", ()):
            self._failed(Request(url))
