"""Which requests have failed for good.

- The downloader raised, and no retry was queued in its place: connection refused, time-out, DNS. So did a middleware;
  but an ``IgnoreRequest``, by robots.txt for example, is a decision and no failure.
- The response that reached the spider has a status of ``RETRY_HTTP_CODES``: by then the retries are used up.
- The callback raised.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from scrapy import Request, signals
from scrapy.exceptions import IgnoreRequest
from scrapy.utils.httpobj import urlparse_cached

from scrapy_bloom.job import serialize
from scrapy_bloom.job.records import FailedRow
from scrapy_bloom.job.store import JobStore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from twisted.python.failure import Failure

    from scrapy_bloom.store import Store

logger = logging.getLogger(__name__)

MOST_LISTED = 100_000
"""Failed requests that a job lists, over all its runs."""
REPLACING = frozenset({"retry_times", "redirect_urls"})
"""What Scrapy puts into the meta of a retry or a redirect."""
WELL, REPLACED, NO_RESPONSE = "", "replaced", "no response"


class FailureWatch:
    """Watches one crawl from :meth:`begin` on. Keep a reference to it: signals do not.

    Args:
        crawler: The crawl.
        forget: Takes a request that has failed back; None: none is.

    """

    def __init__(self, crawler: Crawler, forget: Callable[[Request], None] | None) -> None:
        self._crawler, self._forget = crawler, forget
        self._listed: int | None = None  # how many requests a job lists
        self._unwritten: list[FailedRow] = []  # of these, what the next commit is to write
        self._hopeless_statuses = {int(status) for status in crawler.settings.getlist("RETRY_HTTP_CODES")}
        self.under_way: Collection[Request] = ()
        """Requests that the engine has."""
        self.ends: dict[int, str] = {}
        """What became of these, by id(): the reason of a failure, or one of the first two above."""

    def begin(self, store: Store) -> None:
        """Begin to watch; the *store* of a job is to list what has failed."""
        if isinstance(store, JobStore):
            self._listed = store.database.count_failed()
        self._crawler.signals.connect(self._response_received, signal=signals.response_received)
        self._crawler.signals.connect(self._spider_error, signal=signals.spider_error)

    def came(self, request: Request) -> dict[int, str]:
        """Return the :attr:`ends` of those under way, once *request*, which has a key of :data:`REPLACING`, is queued.

        Until then they are done: its page may have been seen. A link that carries its page's meta replaces none.
        """
        for url in (*request.meta.get("redirect_urls", ())[-1:], request.url):
            if replaced := [id(each) for each in self.under_way if each.url == url]:
                break
        for each in replaced:
            self.ends.setdefault(each, WELL)
        return dict.fromkeys(replaced, REPLACED)

    def raised(self, request: Request, exception: Exception, spider: Any = None) -> None:  # noqa: ARG002 - Scrapy's
        """Note that *exception* is what became of *request*: as the last of the downloader middlewares is told."""
        self._end(request, WELL if isinstance(exception, IgnoreRequest) else type(exception).__name__)

    def callback_raised(self, response: Response, exception: Exception, spider: Any = None) -> None:  # noqa: ARG002
        """Note that the callback of *response* raised *exception*: also ``CloseSpider``, of which no signal tells."""
        if response.request is not None:
            self._end(response.request, f"{type(exception).__name__} in the callback")

    def _response_received(self, response: Response, request: Request) -> None:
        if response.status in self._hopeless_statuses:
            self._end(request, f"status {response.status}")
        elif request in self.under_way:
            self.ends[id(request)] = WELL

    def _spider_error(self, failure: Failure, response: Response) -> None:
        if response is not None and response.request is not None:  # without a response, start() raised
            self._end(response.request, f"{type(failure.value).__name__} in the callback")

    def _end(self, request: Request, end: str) -> None:
        if request in self.under_way:
            self.ends[id(request)] = end
        elif end != WELL:  # another scheduler's, or never queued, such as robots.txt
            self._take_back(request)

    def failed(self, request: Request, reason: str) -> None:
        """List and count *request*, which has failed for good; with ``BLOOM_FORGET_FAILED``, take it back."""
        stats = self._crawler.stats
        assert stats is not None  # noqa: S101 - the owner has checked
        stats.inc_value("bloom/failed")
        if self._listed is not None and self._listed < MOST_LISTED:
            self._listed += 1
            try:
                body = serialize.dumps(request, self._crawler.spider)
            except ValueError:  # it cannot be queued again; but a link to its page is new to the next run
                body = None
            host = urlparse_cached(request).hostname or ""
            self._unwritten.append(FailedRow(request.url, host, reason, time.time(), body))
        elif self._listed is not None:
            stats.inc_value("bloom/failed/unlisted")
            if stats.get_value("bloom/failed/unlisted") == 1:
                logger.warning(
                    "The job lists %s failed requests, and no more: bloom/failed/unlisted counts the others. Put those "
                    "that are listed back with: scrapy bloom requeue --failed",
                    f"{MOST_LISTED:,}",
                )
        self._take_back(request)

    def taken(self) -> list[FailedRow]:
        """Return what the next commit is to list."""
        taken, self._unwritten = self._unwritten, []
        return taken

    def _take_back(self, request: Request) -> None:
        if self._forget is not None:  # links to the URLs that led here must be followed again, too
            for each in (request, *map(Request, request.meta.get("redirect_urls", ()))):
                self._forget(each)
