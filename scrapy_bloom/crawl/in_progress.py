"""The pages in progress: which one a response or a new request belongs to, and what became of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.exceptions import CloseSpider

from scrapy_bloom.frontier.page import Outcome, Page, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

NOBODY = (None, None)


class PagesInProgress:
    """The pages that the engine works on. Scrapy's engine tells it by way of :mod:`scrapy_bloom.crawl.hooks`.

    Args:
        failing_statuses: ``RETRY_HTTP_CODES``.
        take_back: Called with a request of another scheduler that has failed.

    """

    def __init__(self, failing_statuses: Collection[int], take_back: Callable[[Request], None]) -> None:
        self._failing_statuses, self._take_back = failing_statuses, take_back
        self.missing_hooks: list[str] = []
        """Private parts of Scrapy that we use and this Scrapy does not have."""
        self.in_flight: Mapping[int, Page] = {}
        """The pages that our scheduler has handed out, by id() of the request."""
        self.parents: dict[int, tuple[Request | None, Page | None]] = {}
        """Requests that are about to be enqueued, by id(), each with the page that led to it."""
        self.by_response: dict[int, Page] = {}
        """Pages by id() of their Response or Failure, which the page keeps alive."""

    def of_request(self, request: Request) -> Page | None:
        """Return the page of *request*; None if it is not our scheduler's, or the engine is done with it."""
        return self.in_flight.get(id(request))

    def of_response(self, response: object) -> Page | None:
        """Return the page whose Response, or whose Failure, is *response*."""
        return self.by_response.get(id(response))

    def result_came(self, request: Request, downloaded: object) -> None:
        """Note that *downloaded*, a Response, a Failure or another Request, is what came of *request*."""
        result = Result.of(downloaded, self._failing_statuses)
        page = self.of_request(request)
        if page is None:
            if result.outcome is Outcome.FAILED:
                self._take_back(request)
            return
        page.result = result
        if isinstance(downloaded, Request):
            self.leads_to(page, downloaded)
        else:
            page.response = downloaded
            self.by_response[id(downloaded)] = page

    def leads_to(self, page: Page, request: Request) -> None:
        """Note that *request* comes from *page*. Scrapy enqueues it next."""
        self.parents[id(request)] = request, page

    def callback_raised(self, request: Request, exception: BaseException) -> None:
        """Note that the callback or errback of *request* raised *exception*. To Scrapy, CloseSpider is no error."""
        if isinstance(exception, CloseSpider):
            return
        page = self.of_request(request)
        if page is None:
            self._take_back(request)
        else:
            page.note_callback_error(exception)

    def forget_requests_of(self, page: Page) -> None:
        """Forget requests of *page*, with which the engine is done, that a ``request_scheduled`` handler stopped."""
        self.parents = {key: entry for key, entry in self.parents.items() if entry[1] is not page}
