"""What a crawl's memory does, wherever it is: in the process, in a job directory, on a server."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from scrapy_bloom.frontier.lanes import Frontier
from scrapy_bloom.frontier.page import Page, State

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence, Sized

    from scrapy_bloom.filter.chain import ScalableBloomFilter
    from scrapy_bloom.frontier.order import Order, PagesPerHost
    from scrapy_bloom.frontier.page import Pending
    from scrapy_bloom.loops.share import Share


LONGEST_PAUSE = 86_400.0
"""Seconds. A host that asks for more is asked again after these."""
_NOTE = "paused"


class Paused(dict[str, float]):
    """Paused slots, and until when, in seconds since 1970. A job keeps them."""

    def end(self) -> list[str]:
        """Remove the slots whose pause is over, and return them."""
        now = time.time()
        # A clock that went back must not prolong a pause.
        over = [slot for slot, until in self.copy().items() if not now < until <= now + LONGEST_PAUSE]
        for slot in over:
            del self[slot]
        return over

    def restore(self, notes: dict[str, bytes]) -> None:
        """Take in what the last commit noted."""
        if _NOTE in notes:
            self.update(json.loads(notes[_NOTE]))

    def note(self) -> dict[str, bytes]:
        """Return the note of a commit."""
        return {_NOTE: json.dumps(self).encode() if self else b""}


class PageEffects:
    """Takes what pages have given, and adds to a job's commits what belongs to them. This class drops all of it."""

    def take(self, page: Page, batch: Any = None) -> None:
        """Take the items of *page*, and if a job commits it with *batch*, add to that what it holds of the page."""

    def flush(self) -> None:
        """Hand what was written to the operating system: a kill does not lose it."""

    def add_to(self, batch: Any) -> None:
        """Add all parts of this moment to *batch*, which a job's commit that begins writes."""

    def written(self) -> None:
        """Note that the transaction of the last batch is written."""


class Store:
    """Where a crawl's memory lives. What a store does not override suits one in this process alone."""

    chain: ScalableBloomFilter
    """The filter, or what this process knows of it."""
    where: str
    """Where the filter is, to be read after "the filter"."""
    paused: Paused
    """Slots of which no request is handed out, and until when, in seconds since 1970."""
    in_memory: Sized
    """The pending requests that end with the process."""
    commits: int | None = None
    """How many commits have ended. Each makes all that was done before it durable. None if nothing is durable."""
    times_anew = 0
    """How often the filter was begun anew, because the server had forgotten what it knew."""
    add: Callable[[bytes], bool]
    """Remembers a fingerprint, and returns True if it was new."""
    _effects = PageEffects()

    @property
    def crawl_id(self) -> str:
        """An id that all runs and workers of one crawl have, and no other crawl."""
        return self.chain.chain_id

    @property
    def durable(self) -> Sized | None:
        """The pending requests that survive the process, as far as it knows them; None if it ends with all."""
        return None

    def begin(self, effects: PageEffects) -> None:
        """Begin the crawl; *effects* takes what pages have given."""
        self._effects = effects

    def seen(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether it was added before. Remembers nothing."""
        return [fingerprint in self.chain for fingerprint in fingerprints]

    def push(self, pending: Pending, parent: Page | None = None) -> bool:
        """Take in a request, to which *parent* led, and return whether it survives the process."""
        raise NotImplementedError

    def pop(self) -> Page | None:
        """Return the page of the next request, which is in progress now; None if there is none to hand out now."""
        raise NotImplementedError

    def unreadable(self, page: Page, error: Exception) -> None:
        """Take back *page*, whose body cannot be made a request because of *error*."""
        raise AssertionError(page) from error

    def done(self, page: Page) -> None:
        """Note that the engine is done with *page*; its items go to the feeds when it is committed."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """Return whether requests are pending, and this run hands out none of them."""
        return False

    def pause(self, slot: str, until: float) -> None:
        """Hand out no request of *slot* before *until*, in seconds since 1970."""
        self.paused[slot] = until

    def end_pauses(self) -> bool:
        """Hand out requests again of slots whose pause is over; return whether there are any."""
        return bool(self.paused.end())

    def space_out(self, slot: str, delay: float) -> None:
        """Leave at least *delay* seconds between two requests of *slot*, in all processes that share the store."""

    def note_estimate(self, known: bytes) -> None:
        """Let others see what this process knows for the estimate of pages left, if others crawl with it."""

    def take_back(self, page: Page, fingerprints: Sequence[bytes]) -> None:  # noqa: ARG002 - a job notes it there
        """Take back *fingerprints* of *page*, which has failed and is about to be done, when it is committed."""
        for fingerprint in fingerprints:
            self.forget(fingerprint)

    def forget(self, fingerprint: bytes) -> bool:
        """Take *fingerprint* back; return False if it was not known."""
        return self.chain.forget(fingerprint)

    def commit(self) -> None:
        """Write what is due, without waiting. A timer calls this every ``TICK_SECONDS``."""

    def flush(self) -> None:
        """Write what is left, and wait until that is done: the crawl ends. May be called again, for what came since."""

    def close(self, reason: str = "") -> None:  # noqa: ARG002 - nothing outlives this store
        """Note that the crawl has ended for *reason*, and let go of everything: Scrapy and the spider have done all."""
        self.chain.close()

    def __len__(self) -> int:
        """Return how many requests are pending."""
        raise NotImplementedError


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


class Journal:
    """The journal of a worker without a job directory: there is nothing to note."""

    @property
    def in_doubt(self) -> Sequence[str]:
        """The calls that have begun and not ended: at first, those of earlier runs."""
        return ()

    def taken(self) -> Sequence[Any]:
        """Return the items of the page that is being acknowledged."""
        return ()

    def begin(self, call: str, pages: Mapping[int, Sequence[Any]]) -> None:
        """Note that *call* is about to be made, which acknowledges *pages*, by their place in it."""

    def end(self, call: str, refused: Collection[int]) -> None:
        """Note that the server has taken *call*, but for the pages *refused*."""

    def drop(self, call: str) -> None:
        """Note that the server does not know of *call*: its pages are fetched again."""

    def commit(self) -> None:
        """Begin a commit if one is due, and end the last one if it is written."""

    def write(self) -> None:
        """Write the commit that has begun, if one has."""

    def flush(self) -> None:
        """Write what is left."""

    def close(self, reason: str) -> None:
        """Let go of everything; *reason* is why the crawl has ended."""
