"""The items of pages that are not done yet, which wait for that before they go to the feeds."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy import Request

    from scrapy_bloom.store import Feed

logger = logging.getLogger(__name__)

MOST_ITEMS_WAITING = 10_000
"""Items of one page that wait for it to be done; a page with more is written as it comes."""


class Staging:
    """The items of one crawl's pages in hand."""

    def __init__(self) -> None:
        self.waiting: dict[int, list[tuple[Feed, Any]] | None] = {}
        """Items and their feeds, by id() of the request."""

    def stage(self, request: Request, feed: Feed, item: Any) -> None:
        """Keep *item* for *feed* until *request*, whose page it is of, is done."""
        waiting = self.waiting.setdefault(id(request), [])
        if waiting is None:  # the page had too many
            feed.export(item)
            return
        waiting.append((feed, item))
        if len(waiting) > MOST_ITEMS_WAITING:
            logger.warning(
                "%s has given more than %d items, which are written as they come: if the crawl is killed before the "
                "page is done, it is fetched again, and those written come twice",
                request,
                MOST_ITEMS_WAITING,
            )
            self.done(request)
            self.waiting[id(request)] = None

    def done(self, request: Request) -> bool:
        """Write the items of *request*'s page to their feeds. Return False if one cannot be written."""
        are_written = True
        for feed, item in self.waiting.pop(id(request), None) or ():
            try:
                feed.export(item)
            except Exception:  # as Scrapy does; other items wait to be written
                logger.exception("An item could not be written to the feeds: %r", item)
                are_written = False
        return are_written
