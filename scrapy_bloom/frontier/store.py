"""What a crawl's memory does, wherever it is: in the process, in a job directory, on a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence, Sized

    from scrapy_bloom.filter.chain import ScalableBloomFilter
    from scrapy_bloom.frontier.page import Page, Pending
    from scrapy_bloom.frontier.paused import Paused


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


class Store(Protocol):
    """Where a crawl's memory lives."""

    chain: ScalableBloomFilter
    """The filter, or what this process knows of it."""
    finish_reason: str
    """Why the crawl ends, to be set before :meth:`close`."""
    times_anew: int
    """How often the filter was begun anew, because the server had forgotten what it knew."""

    @property
    def where(self) -> str:
        """Where the filter is, to be read after "the filter"."""

    @property
    def crawl_id(self) -> str:
        """An id that all runs and workers of one crawl have, and no other crawl."""

    @property
    def paused(self) -> Paused:
        """Slots of which no request is handed out, and until when, in seconds since 1970."""

    @property
    def in_memory(self) -> Sized:
        """The pending requests that end with the process."""

    @property
    def durable(self) -> Sized | None:
        """The pending requests that survive the process, as far as it knows them; None if it ends with all."""

    @property
    def commits(self) -> int | None:
        """How many commits have ended. Each makes all that was done before it durable. None if nothing is durable."""

    def begin(self, effects: PageEffects) -> None:
        """Begin the crawl; *effects* takes what pages have given."""

    def add(self, fingerprint: bytes, /) -> bool:
        """Remember *fingerprint*, and return True if it was new."""

    def seen(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether it was added before. Remembers nothing."""

    def push(self, pending: Pending, parent: Page | None = None) -> bool:
        """Take in a request, to which *parent* led, and return whether it survives the process."""

    def pop(self) -> Page | None:
        """Return the page of the next request, which is in progress now; None if there is none to hand out now."""

    def unreadable(self, page: Page, error: Exception) -> None:
        """Take back *page*, whose body cannot be made a request because of *error*."""

    def done(self, page: Page) -> None:
        """Note that the engine is done with *page*; its items go to the feeds when it is committed."""

    def pause(self, slot: str, until: float) -> None:
        """Hand out no request of *slot* before *until*, in seconds since 1970."""

    def end_pauses(self) -> bool:
        """Hand out requests again of slots whose pause is over; return whether there are any."""

    def space_out(self, slot: str, delay: float) -> None:
        """Leave at least *delay* seconds between two requests of *slot*, in all processes that share the store."""

    def note_estimate(self, known: bytes) -> None:
        """Let others see what this process knows for the estimate of pages left, if others crawl with it."""

    def take_back(self, page: Page, fingerprints: Sequence[bytes]) -> None:
        """Take back *fingerprints* of *page*, which has failed and is about to be done, when it is committed."""

    def forget(self, fingerprint: bytes) -> bool:
        """Take *fingerprint* back; return False if it was not known."""

    def commit(self) -> None:
        """Write what is due, without waiting. A timer calls this every ``TICK_SECONDS``."""

    def flush(self) -> None:
        """Write what is left, and wait until that is done: the crawl ends. May be called again, for what came since."""

    def close(self) -> None:
        """Note that the crawl has ended, and let go of everything. Scrapy and the spider have done all by then."""

    def __len__(self) -> int:
        """Return how many requests are pending."""
