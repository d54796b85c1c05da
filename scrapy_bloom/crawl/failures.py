"""The list of requests that have failed for good."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.utils.httpobj import urlparse_cached

from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.frontier import serialize
from scrapy_bloom.frontier.page import FailedRow
from scrapy_bloom.job.store import JobStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler

    from scrapy_bloom.frontier.store import Store
    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)

MOST_LISTED = 100_000
"""Failed requests that a job lists, over all its runs."""


class Failures:
    """The failed requests of one crawl."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._listed: int | None = None  # how many requests a job lists
        self.statuses = {int(status) for status in crawler.settings.getlist("RETRY_HTTP_CODES")}
        """Statuses of an answer that count as a failure: by then the retries are used up."""
        self._failed = ScalableBloomFilter(1_000, 1e-3)
        self._followed_again: set[bytes] = set()

    def begin(self, store: Store) -> None:
        """Begin to list what fails, if *store* is a job's."""
        if isinstance(store, JobStore):
            self._listed = store.database.count_failed()

    def take_back(self, request: Request, fingerprints: Fingerprints) -> list[bytes]:
        """Return the fingerprints of *request*, which has failed, and of those redirected to it: they are new again."""
        taken_back = []
        for failed in (request, *map(Request, request.meta.get("redirect_urls", ()))):
            try:
                taken_back.append(fingerprints.of_request(failed))
            except Exception:  # of a fingerprinter of the user's
                logger.exception("%s could not be taken back, and counts as seen", failed)
        self._failed.update(taken_back)
        return taken_back

    def following_once(self, add: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
        """Return *add*, so that a link to a page that has failed in this run is followed once.

        Otherwise failing pages that link to each other would be fetched for ever.
        """

        def add_once(fingerprint: bytes) -> bool:
            if fingerprint in self._followed_again or not add(fingerprint):
                return False
            if fingerprint in self._failed:
                self._followed_again.add(fingerprint)
            return True

        return add_once

    def rows_of(self, request: Request, reason: str) -> list[FailedRow]:
        """Count *request*, which has failed for good, and return its row for the job's list, if the job lists it."""
        stats = self._crawler.stats
        assert stats is not None  # noqa: S101 - the owner has checked
        stats.inc_value("bloom/failed")
        if self._listed is None:
            return []
        if self._listed >= MOST_LISTED:
            stats.inc_value("bloom/failed/unlisted")
            if stats.get_value("bloom/failed/unlisted") == 1:
                logger.warning(
                    "The job lists %s failed requests, and no more: bloom/failed/unlisted counts the others. Put the "
                    "listed requests back with: scrapy bloom requeue JOBDIR --failed",
                    f"{MOST_LISTED:,}",
                )
            return []
        self._listed += 1
        try:
            body = serialize.dumps(request, self._crawler.spider)
        except ValueError:  # it cannot be queued again; but a link to its page is new to the next run
            body = None
        return [FailedRow(request.url, urlparse_cached(request).hostname or "", reason, time.time(), body)]
