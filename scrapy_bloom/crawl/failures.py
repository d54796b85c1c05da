"""Requests that have failed for good: the list of a job, and pages that links may lead to once more."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy_bloom.filter.chain import ScalableBloomFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scrapy_bloom.crawl.stats import Stats
    from scrapy_bloom.frontier.page import FailedRow

logger = logging.getLogger(__name__)

MOST_LISTED = 100_000
"""Failed requests that a job lists, over all its runs."""


class Failures:
    """The failed requests of one crawl.

    Args:
        stats: Counts them.
        listed: How many a job lists so far; None: there is no list.
        are_forgotten: ``BLOOM_FORGET_FAILED``.

    """

    def __init__(self, stats: Stats, listed: int | None, *, are_forgotten: bool) -> None:
        self._stats, self._listed = stats, listed
        self.are_forgotten = are_forgotten
        self._failed = ScalableBloomFilter(1_000, 1e-3)
        self._followed_again: set[bytes] = set()

    def follow_again(self, fingerprints: Iterable[bytes]) -> None:
        """Note that the page with *fingerprints* has failed."""
        self._failed.update(fingerprints)

    def following_once(self, add: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
        """Return *add*, so that a link to a page that has failed in this run is followed once.

        Otherwise failing pages that link to each other would be fetched for ever.
        """
        if not self.are_forgotten:
            return add

        def add_once(fingerprint: bytes) -> bool:
            if fingerprint in self._followed_again or not add(fingerprint):
                return False
            if fingerprint in self._failed:
                self._followed_again.add(fingerprint)
            return True

        return add_once

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
