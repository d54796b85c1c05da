"""Ends a crawl from within, as extensions do: everything pending is kept, and the job can be resumed.

Knows the engine. Does not know why the crawl ends: the caller has logged that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.utils.defer import deferred_from_coro

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


def end_crawl(crawler: Crawler, reason: str) -> None:
    """Close the spider of *crawler* as soon as the present call into Scrapy has returned.

    Args:
        crawler: The crawl to end.
        reason: Its ``finish_reason``, one word such as ``frontier_damaged``.

    Does nothing if no spider is open: before the start, after the end, or without an engine. Calling it twice is
    harmless.

    """
    engine: Any = crawler.engine
    if engine is None or getattr(engine, "spider", None) is None:
        return

    def end() -> Any:
        if engine.spider is None:  # the crawl has ended meanwhile
            return None
        if hasattr(engine, "close_spider_async"):  # Scrapy 2.14 and newer
            return deferred_from_coro(engine.close_spider_async(reason=reason))
        return engine.close_spider(engine.spider, reason)

    _soon(end)


def _soon(call: Any) -> None:
    try:
        from scrapy.utils.asyncio import call_later
    except ImportError:  # Scrapy before 2.14, which always has a Twisted reactor
        from twisted.internet import reactor

        of_reactor: Any = reactor  # its type depends on which one is installed
        of_reactor.callLater(0, call)
    else:
        call_later(0, call)
