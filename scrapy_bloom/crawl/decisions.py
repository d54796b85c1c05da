"""Decides whether a request or link is new, seen or over a limit, and which failed requests a job lists."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from scrapy_bloom.filter.chain import ScalableBloomFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy_bloom.crawl.delta import NoDelta
    from scrapy_bloom.crawl.guard import LoopGuard
    from scrapy_bloom.crawl.progress import Progress
    from scrapy_bloom.frontier.page import FailedRow, Page
    from scrapy_bloom.frontier.store import Store

logger = logging.getLogger(__name__)

MOST_LISTED = 100_000
"""Failed requests that a job lists, over all its runs."""


class Decisions:
    """The decisions of one crawl, by what *store* and *delta* know and the limits of *guard*.

    *listed* is how many failed requests a job lists so far; None: there is no list. *answers_for_links*: links may be
    dropped. Not if a filter of the user's has the last word on requests.
    """

    def __init__(
        self,
        store: Store,
        guard: LoopGuard,
        delta: NoDelta,
        progress: Progress,
        stats: Any,
        listed: int | None,
        *,
        forget_failed: bool,
        answers_for_links: bool,
    ) -> None:
        self._store, self._guard, self._delta, self._progress = store, guard, delta, progress
        self._stats, self._listed, self._answers_for_links = stats, listed, answers_for_links
        self._forgotten = 0
        self._failed = ScalableBloomFilter(1_000, 1e-3)
        self._followed_again: set[bytes] = set()
        self.forget_failed = forget_failed
        self.add: Callable[[bytes], bool] = guard.counting(self._add_once if forget_failed else store.add)

    def _add_once(self, fingerprint: bytes) -> bool:
        """Add *fingerprint*. The page of one that has failed in this run is followed once.

        Otherwise failing pages that link to each other would be fetched for ever.
        """
        if fingerprint in self._followed_again or not self._store.add(fingerprint):
            return False
        if fingerprint in self._failed:
            self._followed_again.add(fingerprint)
        return True

    def is_listed(self, failed: FailedRow) -> bool:
        """Count *failed*, a request that has failed for good, and return whether the job lists it."""
        self._stats.inc_value("bloom/failed")
        if self._listed is None:
            return False
        if self._listed >= MOST_LISTED:
            self._stats.inc_value("bloom/failed/unlisted")
            if self._stats.get_value("bloom/failed/unlisted") == 1:
                logger.warning(
                    "The job lists %s failed requests, and no more: bloom/failed/unlisted counts the others, such as "
                    "%s. Put the listed requests back with: scrapy bloom requeue JOBDIR --failed",
                    f"{MOST_LISTED:,}",
                    failed.url,
                )
            return False
        self._listed += 1
        return True

    def take_back(self, page: Page | None, fingerprints: Sequence[bytes]) -> None:
        """Make *page*, which has failed and has these *fingerprints*, new again, at the latest with its commit.

        None: another scheduler keeps its request.
        """
        self._forgotten += 1
        self._failed.update(fingerprints)
        if page is not None:
            self._store.take_back(page, fingerprints)
            return
        for fingerprint in fingerprints:
            self._store.forget(fingerprint)

    def forget(self, fingerprint: bytes) -> None:
        """Take *fingerprint* back: the next request with it is new."""
        self._forgotten += 1
        self._store.forget(fingerprint)

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
