"""Which requests have failed for good.

- No response reached the spider, and no retry or redirect was queued in its place: connection refused, time-out, DNS.
- The response that reached the spider has a status of ``RETRY_HTTP_CODES``: by then the retries are used up.
- The callback raised.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from scrapy import Request, signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from twisted.python.failure import Failure


class FailureWatch:
    """Watches one crawl from construction on. Keep a reference to it: signals do not.

    Args:
        crawler: The crawl.
        failed: Called with each request that has failed, and the reason.

    """

    def __init__(self, crawler: Crawler, failed: Callable[[Request, str], None]) -> None:
        self._failed = failed
        self._hopeless_statuses = {int(status) for status in crawler.settings.getlist("RETRY_HTTP_CODES")}
        self._answered: set[int] = set()  # id() of requests whose response reached the spider
        self._under_way: Counter[str] = Counter()  # URLs of requests that were handed out and are not done
        self._followed: set[str] = set()  # of those, in whose place others came: retries, redirects
        crawler.signals.connect(self._response_received, signal=signals.response_received)
        crawler.signals.connect(self._spider_error, signal=signals.spider_error)

    def came(self, request: Request) -> None:
        """Note that *request* came, perhaps in the place of one under way.

        A redirect to a page that was seen is filtered, and counts. A link that carries its page's meta does not.
        """
        before = request.meta.get("redirect_urls")
        url = before[-1] if before else request.url
        if (before or request.meta.get("retry_times")) and url in self._under_way:
            self._followed.add(url)

    def handed_out(self, request: Request) -> None:
        """Note that *request* is under way."""
        self._under_way[request.url] += 1

    def done(self, request: Request) -> None:
        """Note that the engine is done with *request*."""
        self._under_way[request.url] -= 1
        if not self._under_way[request.url]:
            del self._under_way[request.url]
        if id(request) in self._answered:
            self._answered.discard(id(request))
        elif request.url not in self._followed:
            self._fail(request, "no response")
        self._followed.discard(request.url)

    def _response_received(self, response: Response, request: Request) -> None:
        self._answered.add(id(request))
        if response.status in self._hopeless_statuses:
            self._fail(request, f"status {response.status}")

    def _spider_error(self, failure: Failure, response: Response) -> None:
        if response is not None and response.request is not None:  # without a response, start() raised
            self._fail(response.request, f"{type(failure.value).__name__} in the callback")

    def _fail(self, request: Request, reason: str) -> None:
        self._failed(request, reason)
        for url in request.meta.get("redirect_urls", ()):  # links to the URLs that led here must be followed again, too
            self._failed(Request(url), reason)
