"""The pages in progress: which page a request or the present call belongs to, and the outcome of each page."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Response

from scrapy_bloom.frontier.page import ANSWERED, Outcome, Page, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from scrapy_bloom.crawl.changes import GivenItem

CURRENT: ContextVar[Page | None] = ContextVar("scrapy_bloom_page", default=None)
"""The page whose result is being processed: by middlewares, its callback, item pipelines and signal handlers. Tasks and
timers that these start inherit it."""

ITEM: ContextVar[GivenItem | None] = ContextVar("scrapy_bloom_item", default=None)
"""With ``BLOOM_CHANGES``, the item that is being processed by pipelines and signal handlers."""


class PagesInProgress:
    """The pages that the engine works on, which :mod:`scrapy_bloom.crawl.hooks` watches.

    Args:
        failing_statuses: ``RETRY_HTTP_CODES``.
        take_back: Called with a request of another scheduler that has failed.
        takes_item: Returns whether an item that a page has given goes on to the pipelines.

    """

    def __init__(
        self,
        failing_statuses: Collection[int],
        take_back: Callable[[Request], None],
        takes_item: Callable[[Page, Any], bool],
    ) -> None:
        self._failing_statuses, self._take_back, self._takes_item = failing_statuses, take_back, takes_item
        self.missing_hooks: list[str] = []
        """Private Scrapy APIs that we rely on and this Scrapy does not have."""
        self.in_flight: Mapping[int, Page] = {}
        """The pages that our scheduler has handed out, by id() of the request, which no other page has."""
        self.given_back: set[Request] = set()
        """Requests on their way back to the queue because their slot is paused. The filter knows them."""

    def of_request(self, request: Request) -> Page | None:
        """Return the page of *request*; None if it is not our scheduler's, or the engine is done with it."""
        return self.in_flight.get(id(request))

    def current(self) -> Page | None:
        """Return the page that the present call belongs to; None if there is none, or the engine is done with it."""
        page = CURRENT.get()
        return page if page is not None and self.in_flight.get(id(page.request)) is page else None

    def result_came(self, request: Request, downloaded: object) -> None:
        """Note that *downloaded*, a Response, a Failure or another Request, is the result of *request*."""
        result = self._result_of(downloaded)
        page = self.of_request(request)
        if page is not None:
            page.result = result
        elif result.outcome is Outcome.FAILED:
            self._take_back(request)

    def _result_of(self, downloaded: object) -> Result:
        if isinstance(downloaded, Response):
            if downloaded.status in self._failing_statuses:  # the retries are used up
                return Result(Outcome.FAILED, f"status {downloaded.status}", has_answer=True)
            return ANSWERED
        if isinstance(downloaded, Request):
            return Result(Outcome.REPLACED)
        exception = getattr(downloaded, "value", downloaded)
        refused = isinstance(exception, IgnoreRequest)
        return Result(Outcome.REFUSED) if refused else Result(Outcome.FAILED, type(exception).__name__)

    def takes(self, page: Page | None, output: object) -> bool:
        """Return whether *output* of the callback of *page* goes on; a request does."""
        return page is None or isinstance(output, Request) or self._takes_item(page, output)

    def callback_raised(self, request: Request, exception: BaseException) -> None:
        """Note that the callback or errback of *request* raised *exception*. To Scrapy, CloseSpider is not an error."""
        if isinstance(exception, CloseSpider):
            return
        page = self.of_request(request)
        if page is None:
            self._take_back(request)
        else:
            page.note_callback_error(exception)
