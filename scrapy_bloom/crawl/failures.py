"""The list of requests that have failed for good."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.utils.httpobj import urlparse_cached

from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.frontier import serialize
from scrapy_bloom.job.records import FailedRow
from scrapy_bloom.job.store import JobStore

if TYPE_CHECKING:
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
        self.to_commit: list[FailedRow] = []
        """Rows of done pages for the next commit."""
        self._once = ScalableBloomFilter(1_000, 1e-3)
        self.twice: set[bytes] = set()
        """Fingerprints of requests that count as seen until this run ends: they failed a second time in it."""

    def begin(self, store: Store) -> None:
        """Begin to list what fails, if *store* is a job's."""
        if isinstance(store, JobStore):
            self._listed = store.database.count_failed()

    def new_again(self, request: Request, fingerprints: Fingerprints) -> list[Request]:
        """Return the requests that are new again because *request* has failed: itself, and those redirected to it.

        A later link to such a page is followed once in this run. Otherwise failing pages that link to each other would
        be fetched for ever.
        """
        requests = [request, *map(Request, request.meta.get("redirect_urls", ()))]
        for failed in requests:
            with suppress(Exception):  # of a fingerprinter of the user's: Decisions.forget() reports it
                fingerprint = fingerprints.of_request(failed)
                if not self._once.add(fingerprint):
                    self.twice.add(fingerprint)
        return requests

    def add(self, request: Request, reason: str) -> FailedRow | None:
        """Count *request*, which has failed for good, and return its row for the job's list, if the job lists it."""
        stats = self._crawler.stats
        assert stats is not None  # noqa: S101 - the owner has checked
        stats.inc_value("bloom/failed")
        if self._listed is None:
            return None
        if self._listed >= MOST_LISTED:
            stats.inc_value("bloom/failed/unlisted")
            if stats.get_value("bloom/failed/unlisted") == 1:
                logger.warning(
                    "The job lists %s failed requests, and no more: bloom/failed/unlisted counts the others. Put the "
                    "listed requests back with: scrapy bloom requeue JOBDIR --failed",
                    f"{MOST_LISTED:,}",
                )
            return None
        self._listed += 1
        try:
            body = serialize.dumps(request, self._crawler.spider)
        except ValueError:  # it cannot be queued again; but a link to its page is new to the next run
            body = None
        return FailedRow(request.url, urlparse_cached(request).hostname or "", reason, time.time(), body)
