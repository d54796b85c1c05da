"""The requests of a job that have failed for good, until a commit lists them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from scrapy.utils.httpobj import urlparse_cached

from scrapy_bloom.job import serialize

if TYPE_CHECKING:
    from scrapy import Request, Spider

    from scrapy_bloom.job.database import Database
    from scrapy_bloom.job.records import FailedRow

MOST_LISTED = 100_000


class FailedRequests:
    """Lists the failed requests of one crawl, up to :data:`MOST_LISTED` with those of earlier runs."""

    def __init__(self, database: Database, spider: Spider | None) -> None:
        self._spider = spider
        self._listed = database.count_failed()
        self._waiting: list[FailedRow] = []

    def add(self, request: Request, reason: str) -> bool:
        """List *request* with the next commit. Return False if the list is full."""
        if self._listed >= MOST_LISTED:
            return False
        try:
            body = serialize.dumps(request, self._spider)
        except ValueError:  # it cannot be queued again; but a link to its page is new to the next run
            body = None
        self._listed += 1
        self._waiting.append((request.url, urlparse_cached(request).hostname or "", reason, time.time(), body))
        return True

    def taken(self) -> list[FailedRow]:
        """Return what came since the last call."""
        waiting, self._waiting = self._waiting, []
        return waiting
