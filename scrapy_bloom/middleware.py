"""LoopGuardMiddleware: shows the loop guard each page, and marks the requests that come from it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.exceptions import NotConfigured

from scrapy_bloom.crawl import Crawl
from scrapy_bloom.startup import log_start_errors
from scrapy_bloom.store import MARK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

    from scrapy_bloom.guard import LoopGuard

logger = logging.getLogger(__name__)


class LoopGuardMiddleware:
    """For ``SPIDER_MIDDLEWARES``; the add-on sets it with ``BLOOM_LOOP_GUARD``. Not configured without."""

    def __init__(self, guard: LoopGuard) -> None:
        self._guard = guard

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Find the guard of *crawler*.

        Raises:
            SettingsError: Names every wrong ``BLOOM_*`` setting.

        """
        with log_start_errors(logger):
            guard = Crawl.of(crawler).guard
        if guard is None:
            raise NotConfigured
        return cls(guard)

    # Scrapy 2.13 passes the spider to all of these, 2.14 and newer only where it has no default.

    def process_spider_input(self, response: Response, spider: Spider | None = None) -> None:  # noqa: ARG002 - see above
        """Show the guard what *response* brought, whatever its callback does with it."""
        if response.request is not None:
            response.request.meta[MARK] = self._guard.judge(response)

    def process_spider_output(
        self,
        response: Response,
        result: Iterable[Any],
        spider: Spider | None = None,  # noqa: ARG002 - see above
    ) -> Iterable[Any]:
        """Mark each request with what the guard needs to know of the page it comes from."""
        for found in result:
            _mark(found, response)
            yield found

    async def process_spider_output_async(
        self,
        response: Response,
        result: AsyncIterator[Any],
        spider: Spider | None = None,  # noqa: ARG002 - see above
    ) -> AsyncIterator[Any]:
        """Mark each request with what the guard needs to know of the page it comes from."""
        async for found in result:
            _mark(found, response)
            yield found


def _mark(found: Any, response: Response) -> None:
    if isinstance(found, Request) and response.request is not None:
        found.meta[MARK] = response.request.meta.get(MARK)
