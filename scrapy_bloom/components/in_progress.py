"""Which page the present call belongs to, and the names that the hooks and the crawl share."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from scrapy.exceptions import IgnoreRequest

if TYPE_CHECKING:
    from scrapy_bloom.crawl.changes import GivenItem
    from scrapy_bloom.frontier.page import Page

CURRENT: ContextVar[Page | None] = ContextVar("scrapy_bloom_page", default=None)
"""The page whose result is being processed: by middlewares, its callback, item pipelines and signal handlers. Tasks and
timers that these start inherit it."""

ITEM: ContextVar[GivenItem | None] = ContextVar("scrapy_bloom_item", default=None)
"""With ``BLOOM_CHANGES``, the item that is being processed by pipelines and signal handlers."""


IN_PROGRESS = "engine._slot.inprogress"
"""The private API of Scrapy that reports when the engine is done with a request."""


class NotModified(IgnoreRequest):
    """The answer to a conditional request of ours was 304. Nobody but us gets to see it."""
