"""A crawl's memory in its process: filter and pending requests go with it, unless a job keeps them, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_bloom.frontier.lanes import Frontier
from scrapy_bloom.frontier.page import Page, State
from scrapy_bloom.frontier.paused import Paused
from scrapy_bloom.frontier.store import Store

if TYPE_CHECKING:
    from scrapy_bloom.filter.chain import ScalableBloomFilter
    from scrapy_bloom.frontier.order import Order
    from scrapy_bloom.frontier.page import Pending
    from scrapy_bloom.frontier.pages_per_host import PagesPerHost
    from scrapy_bloom.loops.share import Share


class MemoryStore(Store):
    """Filter and frontier in memory.

    Args:
        chain: The filter, open.
        order: The order in which requests are handed out.
        share: Shares the crawl among kinds of URLs, within that order; None: nothing does.
        pages: Limits the pages of hosts; None: nothing does.
        where: Where the filter is, for messages.

    """

    in_memory: Frontier

    def __init__(
        self,
        chain: ScalableBloomFilter,
        order: Order,
        share: Share | None = None,
        pages: PagesPerHost | None = None,
        where: str = "in memory",
    ) -> None:
        self.chain, self.where = chain, where
        self.add = chain.add
        self.pages = pages
        self.paused = Paused()
        self.frontier = self.in_memory = Frontier(is_lifo=order.is_lifo, share=share, pages=pages, paused=self.paused)
        """The pending requests. Both names mean one frontier here; a job has a second one for memory-only requests."""
        self._last_id = 0

    def __len__(self) -> int:
        return self.frontier.size

    def is_over(self) -> bool:
        """Return whether requests are pending, and all of them are in slots that are full or given up."""
        return self.frontier.is_over()

    def push(self, pending: Pending, parent: Page | None = None) -> bool:  # noqa: ARG002 - as in every store
        """Take in *pending*, and return False: it does not survive the process."""
        self._last_id += 1
        entry = pending.request if pending.mark is None else (pending.request, pending.mark)
        self.in_memory.push(pending.lane, self._last_id, entry)
        return False

    def pop(self) -> Page | None:
        """Return the page of the next request; None if nothing is pending."""
        popped = self.in_memory.pop()
        if popped is None:
            return None
        lane, _, entry = popped
        request, mark = entry if type(entry) is tuple else (entry, None)
        return Page(lane.key.slot, request, mark=mark)

    def done(self, page: Page) -> None:
        """Note that the engine is done with *page*."""
        self.frontier.done(page.slot, is_page=page.result.has_answer)
        page.state = State.COMMITTED
        self._effects.take(page)

    def end_pauses(self) -> bool:
        """Hand out requests again of slots whose pause is over; return whether there are any."""
        over = self.paused.end()
        for slot in over:
            self.frontier.end_pause(slot)
            self.in_memory.end_pause(slot)
        return bool(over)

    def check(self) -> None:
        """Assert what always holds, for tests."""
        self.frontier.check()
        self.in_memory.check()
