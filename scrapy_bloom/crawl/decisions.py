"""What becomes of requests and links: new, seen before, or beyond a limit."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy import Request

    from scrapy_bloom.crawl.delta import Delta
    from scrapy_bloom.crawl.failures import Failures
    from scrapy_bloom.crawl.guard import LoopGuard
    from scrapy_bloom.crawl.progress import Progress
    from scrapy_bloom.frontier.page import Page
    from scrapy_bloom.frontier.store import Store
    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)


class Decision(NamedTuple):
    """What becomes of a request, and why."""

    is_new: bool
    """Whether to fetch it."""
    fingerprint: bytes | None = None
    limit: str = ""
    """Name of the limit that it is beyond; "": if it is not new, it is a duplicate."""
    reason: str = ""


class Decisions:
    """The decisions of one crawl, by *fingerprints* and the limits of *guard*.

    *open_crawl* opens the store. *failures* are taken back: ``BLOOM_FORGET_FAILED``.
    """

    def __init__(
        self,
        fingerprints: Fingerprints,
        guard: LoopGuard | None,
        progress: Progress,
        open_crawl: Callable[[], None],
        failures: Failures | None,
    ) -> None:
        self.fingerprints, self._guard, self._progress, self._open_crawl = fingerprints, guard, progress, open_crawl
        self._failures = failures
        self.answers_for_links = False
        """Whether links may be dropped: not if a subclass of our filter has the last word on requests."""
        self.last: Decision | None = None
        """The last decision about a request."""
        self._add: Callable[[bytes], bool] = self._open_and_add
        self._forgotten = 0
        self._store: Store | None = None
        self._delta: Delta | None = None

    def _open_and_add(self, fingerprint: bytes) -> bool:
        self._open_crawl()  # for schedulers that never open their filter
        return self._add(fingerprint)

    def begin(self, store: Store, delta: Delta | None) -> None:
        """Decide by what *store* and *delta* know."""
        self._store, self._delta, add = store, delta, store.add
        if self._failures is not None:
            add = self._failures.following_once(add)
        self._add = add if self._guard is None else self._guard.counting(add)

    def decide(self, request: Request) -> Decision:
        """Decide whether to fetch *request*, and remember it if so."""
        if self._guard is not None and (objection := self._guard.objection(request.url)) is not None:
            # A trap's URLs take no room in the filter.
            self.last = Decision(False, None, objection.limit, objection.reason)
        else:
            fingerprint = self.fingerprints.of_request(request)
            # Decision() itself takes 0.2 us of 3.5.
            self.last = tuple.__new__(Decision, (self._add(fingerprint), fingerprint, "", ""))
        return self.last

    def made_by(self, request_seen: Callable[[Request], bool], request: Request) -> tuple[bool, bytes | None]:
        """Return the answer of *request_seen*, and the fingerprint that this call has remembered, if it did.

        A filter of the user's may decide by itself, or ask us about another request.
        """
        self.last = None
        seen = request_seen(request)
        decision: Decision | None = self.last
        return seen, decision.fingerprint if decision is not None and decision.is_new else None

    def take_back(self, page: Page) -> None:
        """With ``BLOOM_FORGET_FAILED``, make *page*, which has failed, new again, at the latest with its commit."""
        if self._failures is not None and self._store is not None:
            self._forgotten += 1
            self._store.take_back(page, self._failures.take_back(page.request, self.fingerprints))

    def take_back_of_others(self, request: Request) -> None:
        """Make *request* of another scheduler, which has failed, new again with ``BLOOM_FORGET_FAILED``."""
        if self._failures is not None and self._store is not None:
            self._forgotten += 1
            for fingerprint in self._failures.take_back(request, self.fingerprints):
                self._store.forget(fingerprint)

    def forget(self, request: Request) -> None:
        """Take *request* back: in this run or a later one, the next one like it is new. Never raises."""
        self._forgotten += 1
        try:
            if self._store is not None:
                self._store.forget(self.fingerprints.of_request(request))
        except Exception:  # Scrapy would log it without saying what it means
            logger.exception("%s could not be taken back, and counts as seen", request)

    # -- links -------------------------------------------------------------------------------------------------------

    def seen(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether it was seen. Remembers nothing, and never raises."""
        if self._store is None or not self.answers_for_links:
            return [False] * len(fingerprints)
        try:
            seen = self._store.seen(fingerprints)
            known = seen if self._delta is None else self._delta.known(fingerprints)
            return [either or other for either, other in zip(seen, known, strict=True)]
        except Exception:
            logger.exception("Links could not be checked for being seen, and pass")
            return [False] * len(fingerprints)

    @property
    def epoch(self) -> tuple[int, ...]:
        """What changes whenever something seen may have become new: taken back, forgotten by the server, or too old."""
        store = self._store
        return (self._forgotten,) if store is None else (self._forgotten, store.times_anew, store.chain.drops)

    def within_limits(self, urls: Sequence[str]) -> list[bool]:
        """Return for each of *urls* whether the limits of the loop guard allow it; count those they do not."""
        if self._guard is None:
            return [True] * len(urls)
        objections = [self._guard.objection(url) for url in urls]
        for url, objection in zip(urls, objections, strict=True):
            if objection is not None:
                self._progress.beyond_limit(url, objection.limit, objection.reason)
        return [objection is None for objection in objections]

    def note_dropped(self, fingerprints: Sequence[bytes]) -> None:
        """Count links that were dropped because their pages, by *fingerprints*, were asked for before."""
        if fingerprints:
            self._progress.dropped_links(len(fingerprints))
        if self._guard is not None:
            self._guard.count_links(fingerprints)
