"""The pages in progress: which page a request or the present call belongs to, and the outcome of each page."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from copy import copy
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Response

from scrapy_bloom.frontier.page import ANSWERED, Outcome, Page, Result

if TYPE_CHECKING:
    from collections.abc import Collection

    from scrapy_bloom.crawl.changes import GivenItem, NoChanges
    from scrapy_bloom.crawl.decisions import Decisions
    from scrapy_bloom.loops.share import Mark
    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)

CURRENT: ContextVar[Page | None] = ContextVar("scrapy_bloom_page", default=None)
"""The page whose result is being processed: by middlewares, its callback, item pipelines and signal handlers. Tasks and
timers that these start inherit it."""

ITEM: ContextVar[GivenItem | None] = ContextVar("scrapy_bloom_item", default=None)
"""With ``BLOOM_CHANGES``, the item that is being processed by pipelines and signal handlers."""


IN_PROGRESS = "engine._slot.inprogress"
"""The private API of Scrapy that reports when the engine is done with a request."""


class NotModified(IgnoreRequest):
    """The answer to a conditional request of ours was 304. Nobody but us gets to see it."""


class PagesInProgress:
    """The pages that the engine works on, which :mod:`scrapy_bloom.components.hooks` watches.

    *missing_hooks* are private Scrapy APIs that we rely on and this Scrapy does not have. *failing_statuses* are
    ``RETRY_HTTP_CODES``. *fingerprints* are those of the *decisions*.
    """

    def __init__(
        self,
        missing_hooks: Collection[str],
        failing_statuses: Collection[int],
        decisions: Decisions,
        fingerprints: Fingerprints,
        changes: NoChanges,
    ) -> None:
        self.missing_hooks = missing_hooks
        self._failing_statuses, self._decisions, self.fingerprints = failing_statuses, decisions, fingerprints
        self._changes = changes
        # Otherwise no page is ever done, its items would wait, and we know of no page.
        self._is_watched = IN_PROGRESS not in missing_hooks
        self._pages: dict[int, Page] = {}  # by id() of the request, which the page keeps alive
        self.given_back: set[Request] = set()

    def hand_out(self, page: Page, request: Request, url: str, mark: Mark | None) -> Request:
        """Note that *request* of *page* goes to the engine; return the request to use.

        The loop guard judges the page by *url* and *mark*.

        One request object may be queued again, or several times, while a page of it is in progress. Each page gets its
        own.
        """
        if id(request) in self._pages:
            request = copy(request)
        page.handed_out(request, url, mark)
        if self._is_watched:
            self._pages[id(request)] = page
        self._changes.hand_out(page)
        return request

    def leave(self, request: Request) -> Page | None:
        """Return the page of *request*, with which the engine is done; None if it is not our scheduler's."""
        return self._pages.pop(id(request), None)

    def of_request(self, request: Request) -> Page | None:
        """Return the page of *request*; None if it is not our scheduler's, or the engine is done with it."""
        return self._pages.get(id(request))

    def current(self) -> Page | None:
        """Return the page that the present call belongs to; None if there is none, or the engine is done with it."""
        page = CURRENT.get()
        return page if page is not None and self._pages.get(id(page.request)) is page else None

    def give_back(self, request: Request) -> Request:
        """Return a copy of *request* that goes back to the queue unfiltered: the filter knows it."""
        again = request.copy()
        if (page := self.of_request(request)) is not None:
            page.is_judged = True
            self.given_back.add(again)
        return again

    def result_came(self, request: Request, downloaded: object) -> None:
        """Note that *downloaded*, a Response, a Failure or another Request, is the result of *request*."""
        result = self._result_of(downloaded)
        page = self.of_request(request)
        if page is not None:
            page.result = result
        elif result.outcome is Outcome.FAILED:  # of another scheduler
            self.take_back(request)

    def _result_of(self, downloaded: object) -> Result:
        if isinstance(downloaded, Response):
            if downloaded.status in self._failing_statuses:  # the retries are used up
                return Result(Outcome.FAILED, f"status {downloaded.status}", has_answer=True)
            return ANSWERED
        if isinstance(downloaded, Request):
            return Result(Outcome.REPLACED)
        exception = getattr(downloaded, "value", downloaded)
        if isinstance(exception, IgnoreRequest):
            return Result(Outcome.REFUSED, has_answer=isinstance(exception, NotModified))
        return Result(Outcome.FAILED, type(exception).__name__)

    def take_back(self, request: Request, page: Page | None = None) -> None:
        """With ``BLOOM_FORGET_FAILED``, make *request* of *page*, which has failed, new again."""
        if not self._decisions.forget_failed:
            return
        fingerprints = []
        for failed in (request, *map(Request, request.meta.get("redirect_urls", ()))):
            try:
                fingerprints.append(self.fingerprints.of_request(failed))
            except Exception:  # of a fingerprinter of the user's
                logger.exception("%s could not be taken back, and counts as seen", failed)
        self._decisions.take_back(page, fingerprints)

    def takes(self, page: Page | None, output: Any) -> bool:
        """Return whether *output* of the callback of *page* goes on; a request does."""
        return page is None or isinstance(output, Request) or self._changes.takes(page, output)

    def callback_raised(self, request: Request, exception: BaseException) -> None:
        """Note that the callback or errback of *request* raised *exception*. To Scrapy, CloseSpider is not an error."""
        if isinstance(exception, CloseSpider):
            return
        page = self.of_request(request)
        if page is None:
            self.take_back(request)
        else:
            page.note_callback_error(exception)
