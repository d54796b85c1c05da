"""Decides whether a request or link is new, seen or over a limit."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy_bloom.crawl.delta import NoDelta
    from scrapy_bloom.crawl.failures import Failures
    from scrapy_bloom.crawl.guard import LoopGuard
    from scrapy_bloom.crawl.progress import Progress
    from scrapy_bloom.frontier.page import Page
    from scrapy_bloom.frontier.store import Store

logger = logging.getLogger(__name__)


class Decisions:
    """The decisions of one crawl, by what *store* and *delta* know and the limits of *guard*.

    Args:
        store: Remembers fingerprints.
        guard: Has limits for URLs, and counts links.
        delta: Knows pages of earlier runs.
        progress: Counts what is dropped.
        failures: Pages that have failed, and may be followed once more.
        answers_for_links: Whether links may be dropped: not if a filter of the user's has the last word on requests.

    """

    def __init__(
        self,
        store: Store,
        guard: LoopGuard,
        delta: NoDelta,
        progress: Progress,
        failures: Failures,
        *,
        answers_for_links: bool,
    ) -> None:
        self._store, self._guard, self._delta, self._progress = store, guard, delta, progress
        self._failures, self._answers_for_links = failures, answers_for_links
        self._forgotten = 0
        self.add: Callable[[bytes], bool] = guard.counting(failures.following_once(store.add))
        """Remembers a fingerprint, and returns whether it was new."""

    @property
    def forget_failed(self) -> bool:
        """``BLOOM_FORGET_FAILED``."""
        return self._failures.are_forgotten

    def take_back(self, page: Page | None, fingerprints: Sequence[bytes]) -> None:
        """Make *page*, which has failed and has these *fingerprints*, new again, at the latest with its commit.

        None: another scheduler keeps its request.
        """
        self._forgotten += 1
        self._failures.follow_again(fingerprints)
        if page is not None:
            self._store.take_back(page, fingerprints)
            return
        for fingerprint in fingerprints:
            self._store.forget(fingerprint)

    def forget(self, fingerprint: bytes) -> None:
        """Take *fingerprint* back: the next request with it is new."""
        self._forgotten += 1
        self._store.forget(fingerprint)

    # -- links -------------------------------------------------------------------------------------------------------

    def seen(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether it was seen. Remembers nothing, and never raises."""
        if not self._answers_for_links:
            return [False] * len(fingerprints)
        try:
            seen, known = self._store.seen(fingerprints), self._delta.known(fingerprints)
            return [either or other for either, other in zip(seen, known, strict=True)]
        except Exception:
            logger.exception("Links could not be checked for being seen, and pass")
            return [False] * len(fingerprints)

    @property
    def epoch(self) -> tuple[int, ...]:
        """What changes whenever something seen may have become new: taken back, forgotten by the server, or too old."""
        return self._forgotten, self._store.times_anew, self._store.chain.drops

    def within_limits(self, urls: Sequence[str]) -> list[bool]:
        """Return for each of *urls* whether the limits of the loop guard allow it; count those they do not."""
        objections = [self._guard.objection(url) for url in urls]
        for url, objection in zip(urls, objections, strict=True):
            if objection is not None:
                self._progress.beyond_limit(url, objection.limit, objection.reason)
        return [objection is None for objection in objections]

    def note_dropped(self, fingerprints: Sequence[bytes]) -> None:
        """Count links that were dropped because their pages, by *fingerprints*, were asked for before."""
        if fingerprints:
            self._progress.dropped_links(len(fingerprints))
        self._guard.count_links(fingerprints)
