"""A crawl's memory in its process: filter and pending requests go with it, unless a job keeps them, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_bloom.frontier.lanes import Frontier
from scrapy_bloom.frontier.order import key_of
from scrapy_bloom.frontier.page import Page, State
from scrapy_bloom.frontier.paused import Paused
from scrapy_bloom.frontier.store import PageEffects

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Sized

    from scrapy import Request

    from scrapy_bloom.filter.chain import ScalableBloomFilter
    from scrapy_bloom.frontier.order import Order
    from scrapy_bloom.frontier.pages_per_host import PagesPerHost
    from scrapy_bloom.loops.share import Mark, Share


class MemoryStore:
    """Filter and frontier in memory.

    Args:
        chain: The filter, open.
        order: The order in which requests are handed out.
        share: Shares the crawl among kinds of URLs, within that order; None: nothing does.
        pages: Limits the pages of hosts; None: nothing does.
        where: Where the filter is, for messages.
        effects: Takes what pages have given.

    """

    finish_reason = ""
    times_anew = 0

    def __init__(
        self,
        chain: ScalableBloomFilter,
        order: Order,
        share: Share | None = None,
        pages: PagesPerHost | None = None,
        where: str = "in memory",
        *,
        effects: PageEffects | None = None,
    ) -> None:
        self.chain, self.where = chain, where
        self.add: Callable[[bytes], bool] = chain.add
        self._order = order
        self._effects = effects or PageEffects()
        self.pages = pages
        self.paused = Paused()
        self.frontier = self.in_memory = Frontier(is_lifo=order.is_lifo, share=share, pages=pages, paused=self.paused)
        """The pending requests. Both names mean one frontier here; a job has a second one for memory-only requests."""
        self._last_id = 0
        self.in_flight: dict[int, Page] = {}
        """The pages in progress, by id() of the request, which the page keeps alive."""

    @property
    def crawl_id(self) -> str:
        """An id that all runs of this crawl have, and no other crawl."""
        return self.chain.chain_id

    @property
    def durable(self) -> Sized | None:
        """The pending requests that survive the process; None: none does."""
        return None

    @property
    def commits(self) -> int | None:
        """How many commits have ended; None: there are none."""
        return None

    def __len__(self) -> int:
        return self.frontier.size

    def is_over(self) -> bool:
        """Return whether requests are pending, and all of them are in slots that are full or given up."""
        return self.frontier.is_over()

    def seen(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether it was added before. Remembers nothing."""
        return [fingerprint in self.chain for fingerprint in fingerprints]

    def push(
        self,
        request: Request,
        fingerprint: bytes | None,  # noqa: ARG002 - as in every store
        parent: Page | None = None,  # noqa: ARG002
        mark: Mark | None = None,
    ) -> bool:
        """Take in *request*, and return False: it does not survive the process."""
        self._last_id += 1
        entry = request if mark is None else (request, mark)
        self.in_memory.push(key_of(request, self._order, mark), self._last_id, entry)
        return False

    def pop(self) -> tuple[Request, bool] | None:
        """Return the next request, and False: it does not survive the process. None if nothing is pending."""
        popped = self.in_memory.pop()
        if popped is None:
            return None
        lane, _, entry = popped
        request, mark = entry if type(entry) is tuple else (entry, None)
        page = Page(request, lane.key.slot, mark=mark)
        request = page.own_request(self.in_flight)
        self.in_flight[id(request)] = page
        return request, False

    def done(self, page: Page) -> None:
        """Note that the engine is done with *page*."""
        del self.in_flight[id(page.request)]
        self.frontier.done(page.slot, is_page=page.result.has_answer)
        page.state = State.COMMITTED
        self._effects.take(page)

    def pause(self, slot: str, until: float) -> None:
        """Hand out no request of *slot* before *until*."""
        self.paused[slot] = until

    def note_estimate(self, known: bytes) -> None:
        """Do nothing: nobody else crawls with this process."""

    def end_pauses(self) -> bool:
        """Hand out requests again of slots whose pause is over; return whether there are any."""
        over = self.paused.end()
        for slot in over:
            self.frontier.end_pause(slot)
            self.in_memory.end_pause(slot)
        return bool(over)

    def space_out(self, slot: str, delay: float) -> None:
        """Do nothing: the downloader keeps *delay*, and there is no other process."""

    def take_back(self, page: Page, fingerprints: Sequence[bytes]) -> None:  # noqa: ARG002 - as in every store
        """Take back *fingerprints* of *page*, which has failed."""
        for fingerprint in fingerprints:
            self.forget(fingerprint)

    def forget(self, fingerprint: bytes) -> bool:
        """Take *fingerprint* back; return False if it was not known."""
        return self.chain.forget(fingerprint)

    def check(self) -> None:
        """Assert what always holds, for tests."""
        self.frontier.check()
        self.in_memory.check()
        assert all(id(page.request) == key for key, page in self.in_flight.items())  # noqa: S101 - for tests

    def commit(self) -> None:
        """Do nothing: there is no disk."""

    def flush(self) -> None:
        """Do nothing: there is no disk."""

    def close(self) -> None:
        """Let go of everything."""
        self.chain.close()
