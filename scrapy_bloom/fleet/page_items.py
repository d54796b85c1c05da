"""The items of a worker's pages, which go with the acknowledgement of their page."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy_bloom.frontier.journal import Journal
    from scrapy_bloom.frontier.page import Page


class PageItems:
    """Items for the file of ``scrapy bloom crawl``, and those that *journal* holds for feeds of this worker.

    *flush* writes what is buffered of items; *count* is told how many go to the server.
    """

    def __init__(self, flush: Callable[[], None], journal: Journal, count: Callable[[int], None]) -> None:
        self._flush, self._journal, self._count = flush, journal, count
        self.buffer = io.BytesIO()
        """For ``scrapy bloom crawl``: the items of the page that is being finished, a line each."""

    def of(self, page: Page) -> tuple[bytes, Sequence[Any]]:
        """Return the items of *page*: those for the server, and those for feeds of this worker."""
        page.write_items()
        return self.rest(), self._journal.taken()

    def rest(self) -> bytes:
        """Return the items for the server that were not returned before."""
        self._flush()
        items = self.buffer.getvalue()
        self.buffer.seek(0)
        self.buffer.truncate()
        self._count(items.count(b"\n"))
        return items
