"""The crawl of a Scrapy crawler: translates between requests, signals and errors of Scrapy and the crawl.

It knows which page each request and each call belongs to, and the outcome of each page.
"""

from __future__ import annotations

import logging
import time
from contextvars import ContextVar
from copy import copy
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from scrapy import Request, signals
from scrapy.exceptions import CloseSpider, DontCloseSpider, IgnoreRequest
from scrapy.http import Response
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.python import to_bytes

from scrapy_bloom.components.requests import asked_for
from scrapy_bloom.components.startup import engine_of, repeat
from scrapy_bloom.components.takeover import unblock_scrapys_scheduler
from scrapy_bloom.errors import BloomError
from scrapy_bloom.frontier.page import ANSWERED, FailedRow, Outcome, Result

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from scrapy.crawler import Crawler

    from scrapy_bloom.components.requests import Requests
    from scrapy_bloom.components.startup import StartUrls
    from scrapy_bloom.crawl.changes import GivenItem
    from scrapy_bloom.crawl.crawl import Crawl
    from scrapy_bloom.frontier.page import Page
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

TICK_SECONDS = 0.2
KEYS = ("bloom_delta_key", "delta_key", "deltafetch_key")
"""Names in ``meta`` of the key that delta crawls use instead of the fingerprint; the last is scrapy-deltafetch's."""

_ATTRIBUTE = "_scrapy_bloom_crawl"
"""Of a crawler: its crawl. So both are freed together."""
_open_crawls: WeakSet[SpiderCrawl] = WeakSet()


def crawl_of(crawler: Crawler) -> SpiderCrawl | None:
    """Return the crawl of *crawler*; None before it is opened, or if no filter and no scheduler of ours opens it."""
    crawl: SpiderCrawl | None = vars(crawler).get(_ATTRIBUTE)
    return crawl


def crawl_handling(request: Request | None) -> SpiderCrawl | None:
    """Return the open crawl that was handed *request*; with another scheduler, the only open one."""
    crawls = [crawl for crawl in _open_crawls if not crawl.core.is_closed]
    for crawl in crawls:
        if request is not None and crawl.of_request(request) is not None:
            return crawl
    return crawls[0] if len(crawls) == 1 and not crawls[0].core.keeps_requests else None


class NotModified(IgnoreRequest):
    """The answer to a conditional request of ours was 304. Nobody but us gets to see it."""


class SpiderCrawl:
    """The crawl of *crawler*, from now on: it listens to its signals. *core* is the same crawl in plain data.

    *missing_hooks* are private Scrapy APIs that we rely on and this Scrapy does not have. *fingerprints* are those of
    the filter.
    """

    def __init__(
        self,
        crawler: Crawler,
        core: Crawl,
        missing_hooks: Collection[str],
        fingerprints: Fingerprints,
        requests: Requests,
        start_urls: StartUrls,
        jobdir: Path | None,
    ) -> None:
        self.crawler, self.core, self.missing_hooks = crawler, core, missing_hooks
        self.fingerprints, self.requests = fingerprints, requests
        self.start_urls, self.jobdir = start_urls, jobdir
        self.store, self.job = core.store, core.job
        self._failing_statuses = {int(status) for status in crawler.settings.getlist("RETRY_HTTP_CODES")}
        # Otherwise no page is ever done, its items would wait, and we know of no page.
        self._is_watched = IN_PROGRESS not in missing_hooks
        self._pages: dict[int, Page] = {}  # by id() of the request, which the page keeps alive
        self.given_back: set[Request] = set()
        if core.keeps_requests:
            crawler.signals.connect(self._idle, signal=signals.spider_idle)
        if core.delta.is_on or core.changes.is_on:
            for signal in (signals.item_scraped, signals.item_error):
                crawler.signals.connect(self._note_item, signal=signal)
        self._timer = repeat(core.tick, TICK_SECONDS)
        vars(crawler)[_ATTRIBUTE] = self
        _open_crawls.add(self)

    def push(self, request: Request, fingerprint: bytes | None, parent: Page | None) -> bool | None:
        """Queue *request*, to which *parent* led; return whether it survives the process. None: the crawl has failed.

        Without a *fingerprint* it is not filtered.
        """
        mark = self.core.guard.mark(asked_for(request), parent, fingerprint)
        pending = self.requests.pending(request, fingerprint, mark)
        is_durable = self.core.push(pending, parent, request.meta.get("depth"))
        if parent is not None and not (fingerprint and is_durable):
            self.core.changes.needs_answer(parent)  # nothing else would make the request again
        return is_durable

    def pop(self) -> tuple[Request, Page] | None:
        """Return the next request and its page; None if none has a turn."""
        while (page := self.core.pop()) is not None:
            request, mark = page.request, page.mark
            if page.body is not None:
                try:
                    restored = self.requests.restored(page.body)
                except Exception as error:  # whatever unpickling or the user's classes raise
                    self.store.unreadable(page, error)
                    continue
                if isinstance(restored, list):
                    self._follow(restored, page)
                    continue
                request, mark = restored
            try:
                return self.hand_out(page, request, asked_for(request), mark), page
            except BloomError as error:  # what earlier cycles know cannot be read
                self.core.fail(error)
        return None

    def _follow(self, led_to: list[tuple[Request, bytes | None]], page: Page) -> None:
        """Queue the requests that the start URL of *page* has *led_to*; it is acknowledged as their page."""
        for request, fingerprint in led_to:
            if fingerprint is None or self.store.add(fingerprint):
                self.push(request, fingerprint, page)
        self.store.done(page)

    def done(self, request: Request) -> None:
        """Note that the engine is done with *request*."""
        page = self.leave(request)
        if page is None:  # of engine.download(), such as robots.txt
            return
        if page.result.outcome is Outcome.FAILED:
            host = urlparse_cached(request).hostname or ""
            page.failed = FailedRow(request.url, host, page.result.reason, time.time(), page.body)
            self.take_back(request, page)
        elif self.core.delta.is_on and page.result.outcome is Outcome.ANSWERED and page.failed_items is False:
            page.key = self._key(request)
        self.core.done(page, request.meta.get("depth"))

    def forget(self, request: Request) -> None:
        """Take *request* back: in this run or a later one, the next one like it is new. Never raises."""
        for fingerprint in self._known_by([request]):
            self.core.decisions.forget(fingerprint)

    def _known_by(self, requests: Iterable[Request]) -> list[bytes]:
        """Return the fingerprints of *requests*, which are about to be taken back."""
        fingerprints = []
        for request in requests:
            try:
                fingerprints.append(self.fingerprints.of_request(request))
            except Exception:  # of a fingerprinter of the user's
                logger.exception("%s could not be taken back, and counts as seen", request)
        return fingerprints

    def hand_out(self, page: Page, request: Request, url: str, mark: Mark | None) -> Request:
        """Note that *request* of *page* goes to the engine; return the request to use.

        The loop guard judges the page by *url* and *mark*.

        One request object may be queued again, or several times, while a page of it is in progress. Each page gets its
        own.
        """
        if id(request) in self._pages:
            request = copy(request)
        page.request, page.url, page.mark = request, url, mark
        if self._is_watched:
            self._pages[id(request)] = page
        self.core.changes.hand_out(page)
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
        if self.core.decisions.forget_failed:
            redirected = map(Request, request.meta.get("redirect_urls", ()))
            self.core.decisions.take_back(page, self._known_by([request, *redirected]))

    def takes(self, page: Page | None, output: Any) -> bool:
        """Return whether *output* of the callback of *page* goes on; a request does."""
        return page is None or isinstance(output, Request) or self.core.changes.takes(page, output)

    def callback_raised(self, failure: Any, request: Request, *_: object) -> None:
        """Note that the callback or errback of *request* raised. To Scrapy, CloseSpider is not an error."""
        if isinstance(failure.value, CloseSpider):
            return
        page = self.of_request(request)
        if page is None:
            self.take_back(request)
        else:
            page.note_callback_error(failure.value)

    def skips(self, request: Request) -> bool:
        """Return whether a delta crawl skips *request*; an unfiltered start request is never skipped."""
        meta = request.meta
        is_wanted = meta.get("bloom_refetch") or meta.get("delta_skip") or not meta.get("deltafetch_enabled", True)
        if is_wanted or (request.dont_filter and meta.get("is_start_request")):
            return False
        key = self._key(request)
        return key is not None and self.core.delta.known([key], request)[0]

    def _key(self, request: Request) -> bytes | None:
        """Return what delta crawls know *request* by."""
        key = next(filter(None, map(request.meta.get, KEYS)), None)
        try:
            return to_bytes(key) if key else self.fingerprints.of_request(request)
        except Exception:  # no text, or a fingerprinter of the user's fails
            logger.warning("%s has no key, and is fetched in each run", request, exc_info=True)
            return None

    def _note_item(self, signal: object) -> None:
        """Note that the page of the present call has given an item, or that an error lost it."""
        is_lost = signal is signals.item_error
        if (page := self.current()) is not None:
            page.note_item(failed=is_lost)
        if is_lost and (given := ITEM.get()) is not None:
            given.is_lost = True

    def _idle(self) -> None:
        """Go on with requests of earlier cycles; if requests are left that this run does not fetch, give the reason."""
        if self.core.changes.sweep():
            raise DontCloseSpider
        if self.core.is_given_up():
            raise CloseSpider("loop_guard")
        if self.job is not None and self.job.left_unread:
            raise CloseSpider("unreadable_requests")

    def close(self, reason: str) -> None:
        """Write what is left, and set the final stats. Closing twice is harmless."""
        if self.core.is_closed:
            return
        self._timer.cancel()
        _open_crawls.discard(self)
        self.core.close(reason)
        is_alone = getattr(engine_of(self.crawler), "spider", None) is None
        if is_alone:  # a filter or a scheduler that is used without a crawl
            self.end()

    def end(self, *_: object) -> None:
        """Note that the crawl has ended, and let go of everything, now that feeds and extensions have ended."""
        if self.core.is_closed and self.core.end() and self.jobdir is not None:
            unblock_scrapys_scheduler(self.jobdir)
