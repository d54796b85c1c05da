"""The fleet's store behind the owner of a crawl: filter and queue are on a server, and shared by all workers."""

from __future__ import annotations

import io
import logging
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy_bloom.errors import counted
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.fleet.entry import PUSHED, url_of
from scrapy_bloom.fleet.messages import Done, Forget, Link, Note, Part, SlowDown, Ticket
from scrapy_bloom.fleet.queue import LOCAL_SHARE
from scrapy_bloom.frontier.page import ANSWERED, UNKNOWN, Outcome, Page, done, lead_to_memory
from scrapy_bloom.frontier.store import Store
from scrapy_bloom.settings import OTHERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import ExitStack

    from scrapy_bloom.fleet.lease import LeaseClient
    from scrapy_bloom.fleet.queue import Queue
    from scrapy_bloom.frontier.page import Pending
    from scrapy_bloom.frontier.store import Journal
    from scrapy_bloom.settings import BloomSettings

logger = logging.getLogger(__name__)

MOST_HELD = 1_000
"""Unfiltered requests that wait for the acknowledgement of their page. If the page is fetched again after a kill, these
are queued once. More are sent at once, and may come twice."""
LONGEST_SECONDS = 30.0
"""Seconds that they wait. Then they are sent without it, and may come twice, too."""


class Acknowledging(NamedTuple):
    """Collects the pages that are acknowledged together, each with the links that it held."""

    pages: list[tuple[Page, list[Link]]]

    def write(self, key: int, request: Link) -> None:
        """Do nothing: the link goes with its page."""

    def commit(self, page: Page) -> None:
        """Add *page*; the page that led to it comes before it."""
        self.pages.append((page, list(page.held.values())))


class FleetStore(Store):
    """What one worker knows, and its connection to the rest.

    A link that this process does not know is sent to the server, ahead of the acknowledgement of its page. The server
    enqueues it if it is new. Only closing waits for the server. *client* is open, and *on_close* ends the connection.
    *stats* are Scrapy's. *own_delays* returns the delays that this worker has found anew by itself, in seconds by slot.
    """

    commits: int = 0

    def __init__(
        self,
        client: LeaseClient,
        on_close: ExitStack,
        settings: BloomSettings,
        *,
        stats: Any,
        own_delays: Callable[[], Mapping[str, float]],
    ) -> None:
        self._client, self._on_close, self._stats, self._own_delays = client, on_close, stats, own_delays
        self._new_chain = partial(
            ScalableBloomFilter, settings.capacity, settings.error_rate * LOCAL_SHARE, max_age=settings.max_age
        )
        self.chain = self._new_chain()
        """What this process knows. A duplicate in here is dropped without asking."""
        self.in_flight: set[Page] = set()
        self._tickets: dict[Page, Ticket] = {}  # of pages that others fetch when this worker dies
        self.items = io.BytesIO()
        """For ``scrapy bloom crawl``: the items of the page that is being finished, a line each."""
        self.where, self.paused = self._queue.where, client.paused
        self.in_memory: deque[Page] = deque()
        self.start = client.start
        logger.info("Sharing the queue %s with all workers that are given the same key", self.where)

    @property
    def crawl_id(self) -> str:
        """An id that all workers of this crawl have, and no other crawl."""
        return self._queue.id

    @property
    def durable(self) -> LeaseClient:
        """The requests that are ready here; the server has them, too."""
        return self._client

    @property
    def journal(self) -> Journal:
        """The journal of this worker's own feeds."""
        return self._client.journal

    @property
    def _queue(self) -> Queue:
        return self._client.queue

    def add(self, fingerprint: bytes) -> bool:
        """Remember *fingerprint*, and return True if this process did not know it."""
        return self.chain.add(fingerprint)

    def push(self, pending: Pending, parent: Page | None = None) -> bool:
        """Send *pending* to the server, which keeps it if it is new there. False: it has to stay in this process."""
        fingerprint, entry = pending.fingerprint, pending.body
        if entry is None:
            # *parent* is in hand until this is done, so if the worker dies, another one fetches it again. If two have
            # fetched the same page, the items of the first that is done count.
            page = Page("", pending.request, fingerprint=fingerprint)
            lead_to_memory(parent, page)
            self.in_memory.append(page)
            self._stats.inc_value("bloom/fleet/in_memory")
            return False
        link = Link(self._queue.shard_of(fingerprint or entry), fingerprint, pending.lane, entry)
        if fingerprint is None and parent is not None and not parent.is_split and len(parent.held) < MOST_HELD:
            latest = next(reversed(parent.held), 0)
            parent.held[max(time.monotonic_ns(), latest + 1)] = link  # until its page is acknowledged
        else:
            self._client.send(link, is_root=parent is self.start.page or not self._comes_again(parent))
        return True

    def _comes_again(self, page: Page | None) -> bool:
        """Return whether *page*, or the page that led to it, is fetched again if it cannot be acknowledged."""
        while page is not None and page not in self._tickets:
            page = page.parent
        return page is not None

    def pop(self) -> Page | None:
        """Return the page of the next request, or of a start URL that was pushed; None if none is ready."""
        if self.in_memory:
            page = self.in_memory.popleft()
        elif (ready := self._client.next()) is not None:
            ticket, entry = ready
            went_back = self._client.counts["went_back"]
            if went_back != self.times_anew:  # the server may not know what this process knows
                self.chain.close()
                self.chain, self.times_anew = self._new_chain(), went_back
            page = Page(ticket.slot, body=entry, result=ANSWERED if entry[:1] == PUSHED else UNKNOWN)
            self._tickets[page] = ticket
        else:
            return None
        self.in_flight.add(page)
        return page

    def unreadable(self, page: Page, error: Exception) -> None:
        """Put the request of *page*, which cannot be read because of *error*, on the list of dead letters."""
        self.in_flight.discard(page)
        message = "%.500s cannot be read as a request by this worker: %.500r. It is dead-lettered."
        logger.error(message, url_of(page.body or b""), error)
        self._client.send(Done(self._tickets.pop(page), why="unreadable"))

    def _release(self) -> None:
        """Send what pages in progress have held for long: they may wait for it."""
        latest = time.monotonic_ns() - LONGEST_SECONDS * 1e9  # a key is the time at which the link came
        for page in self.in_flight:
            if page.held and min(page.held) < latest:
                for link in page.held.values():
                    self._client.send(link, is_root=not self._comes_again(page))
                page.held.clear()
        if (items_page := self.start.page_with_old_items(LONGEST_SECONDS)) is not None:
            self._client.send(Done(None, [self._part(items_page, [])]))

    def done(self, page: Page) -> None:
        """Acknowledge the request of *page*: a kill repeats the pages in progress, and few others."""
        self.in_flight.discard(page)
        if page is self.start.page:
            self._tickets[page] = self.start.end()
        try:
            self._end(page)
        except Exception as error:  # a feed cannot be written: the page is not acknowledged, and commit() raises this
            self._client.failure = error

    def _end(self, page: Page) -> None:
        """Note that *page* is done or dropped, and acknowledge what is complete now."""
        sink = Acknowledging([])
        done(page, sink)
        calls: list[tuple[Page, list[Part]]] = []  # pages with what is acknowledged together with them
        place_of: dict[Page | None, int] = {}  # of a page's part in its call
        for page, links in sink.pages:
            part = self._part(page, links)
            is_first = page.parent is None or page.parent.is_split
            if is_first:
                calls.append((page, []))
            parts = calls[-1][1]
            if is_first or page.fingerprint is not None:
                place_of[page] = len(parts)
                parts.append(part)
            else:  # an unfiltered request in memory counts if the part counts that led to it
                place_of[page] = place = place_of[page.parent]
                parts[place] = parts[place].joined(part)
        for page, parts in calls:
            ticket = self._tickets.pop(page, None)
            if ticket is not None or any(part != Part() for part in parts):
                failed = page.result.reason if page.result.outcome is Outcome.FAILED else ""
                self._client.send(Done(ticket, parts, is_page=page.result.has_answer, failed=failed))

    def _part(self, page: Page, links: list[Link]) -> Part:
        """Return what *page* gave that counts only together with an acknowledgement."""
        self._effects.take(page)
        items, feed_items = self._items_to_send(), self.journal.taken()
        return Part(page.fingerprint, items, links, feed_items)

    def begin_start(self) -> Page:
        """Return the page that the output of start() belongs to. Call :meth:`done` with it when start() has ended."""
        page = self.start.begin()
        self.in_flight.add(page)
        return page

    def _items_to_send(self) -> bytes:
        """Return the items for the server that were not returned before."""
        self._effects.flush()
        items = self.items.getvalue()
        self.items.seek(0)
        self.items.truncate()
        self._stats.inc_value("bloom/fleet/items", items.count(b"\n"))
        return items

    def pause(self, slot: str, until: float) -> None:
        """Let no worker be handed a request of *slot* before *until*."""
        self.paused[slot] = until
        self._slow_down(slot, until=until)

    def space_out(self, slot: str, delay: float) -> None:
        """Leave at least *delay* seconds between two requests of *slot*, of all workers."""
        delays = self._queue.politeness.delays
        self._slow_down(slot, delay=max(delay, delays.get(slot, delays.get(OTHERS, 0))))

    def _slow_down(self, slot: str, *, until: float = 0, delay: float = 0, is_root: bool = True) -> None:
        for shard in range(self._queue.shards):
            self._client.send(SlowDown(shard, slot, until, delay), is_root=is_root)

    def note_estimate(self, known: bytes) -> None:
        """Let the commands see what this worker knows for the estimate of pages left."""
        self._client.send(Note(self._client.process, known))

    def forget(self, fingerprint: bytes) -> bool:
        """Take *fingerprint* back on the server; return whether this worker knew it.

        Other workers that know the fingerprint still drop its links.
        """
        self._client.send(Forget(self._queue.shard_of(fingerprint), fingerprint), is_root=True)
        return self.chain.forget(fingerprint)

    def commit(self) -> None:
        """Commit the journal, and set the stats.

        Raises the exception because of which a page was not acknowledged, or which ended the thread of the lease
        client, if there was one: the crawl ends then.
        """
        self.commits += self._client.has_delivered_all
        self.journal.commit()
        self._release()
        for slot, delay in self._own_delays().items():
            self._slow_down(slot, delay=delay, is_root=False)
        self._set_stats()
        if self._client.failure is not None:
            raise self._client.failure

    def _set_stats(self) -> None:
        for name, value in dict(self._client.counts).items():  # a copy: the thread adds names
            self._stats.set_value(f"bloom/fleet/{name}", value)

    def flush(self) -> None:
        """Deliver what is left, and give back what was not begun; then write what came for this worker's own feeds."""
        if self._client.is_open:
            try:
                if items := self._items_to_send():  # of no page
                    self._client.send(Done(None, [Part(items=items)]))
            except OSError as error:  # the worker gives back its pages all the same
                logger.error("A feed cannot be written: %s", error)  # noqa: TRY400 - the error is part of it
            self._client.close()
            self.commits += self._client.has_delivered_all
            self._set_stats()
            if left := self._client.counts["left"]:
                logger.info("BLOOM_PAGES_PER_HOST: %s are left on the server", counted(left, "pending request"))
        self.journal.flush()

    def close(self, reason: str = "") -> None:
        """Let go of everything, and note in the journal that the crawl has ended for *reason*."""
        self.flush()
        with self._on_close:
            self.chain.close()
            self.journal.close(reason)

    def __len__(self) -> int:
        """Return how many requests are ready here; at least 1 while any are pending or in hand at any worker."""
        if self._queue.start_urls is not None:
            return max(1, len(self._client))
        return len(self.in_memory) + len(self._client)
