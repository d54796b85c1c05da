"""The fleet's store behind the owner of a crawl: filter and queue are on a server, and shared by all workers."""

from __future__ import annotations

import asyncio
import io
import logging
import secrets
from collections import Counter, deque
from contextlib import ExitStack
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.utils.reactor import is_reactor_installed

from scrapy_bloom.errors import counted
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.filter.lock import lock_directory
from scrapy_bloom.fleet.claims import Claims
from scrapy_bloom.fleet.entry import PUSHED, Entries, url_of
from scrapy_bloom.fleet.identity import identity_of
from scrapy_bloom.fleet.lease import LeaseClient
from scrapy_bloom.fleet.messages import Answer, Done, Forget, Lane, Link, Note, SlowDown, Ticket
from scrapy_bloom.fleet.politeness import Politeness
from scrapy_bloom.fleet.queue import LOCAL_SHARE, Queue
from scrapy_bloom.fleet.server import Server, address_of, key_of
from scrapy_bloom.fleet.takeover import warn_of_scrapy_redis
from scrapy_bloom.frontier.journal import Journal
from scrapy_bloom.frontier.order import key_of as lane_of
from scrapy_bloom.frontier.page import Outcome, Page
from scrapy_bloom.frontier.pages_per_host import PagesPerHost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Sized

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_bloom.frontier.paused import Paused
    from scrapy_bloom.loops.share import Mark
    from scrapy_bloom.settings import BloomSettings
    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)

ITEMS = "_BLOOM_FLEET_ITEMS"
"""Setting by which ``scrapy bloom crawl`` names the list on the server that its workers' items go to: not for users."""
MOST_HELD = 1_000
"""Unfiltered requests that wait for the acknowledgement of their page. If the page is fetched again after a kill, these
are queued once. More are sent at once, and may come twice."""


UNLIMITED = 100
"""What stands for ``CONCURRENT_REQUESTS = 0``, which is no limit, when requests are taken."""


class FleetStore:
    """What one worker knows, and its connection to the rest.

    A link that this process does not know goes to the server, which says whether it is new in the call that
    acknowledges its page. Nothing here waits for the server, but for opening and closing. *flush* writes what is
    buffered of items; it is called before pages are acknowledged. *wake* is called when
    other workers have changed something: the engine asks for a request then. *open_journal* opens the journal of this
    worker's own feeds in its job directory.

    Raises:
        BloomError: The server cannot be used, or its queue is not for this version or these settings.

    """

    def __init__(
        self,
        crawler: Crawler,
        settings: BloomSettings,
        fingerprints: Fingerprints,
        *,
        flush: Callable[[], None],
        wake: Callable[[], None],
        open_journal: Callable[[Path], Journal] | None = None,
    ) -> None:
        spider, own = crawler.spider, crawler.settings
        name = spider.name if spider is not None else "spider"
        politeness = Politeness.of(own, spider)
        self._order = politeness.order(own)
        self._throttle = politeness if own.getbool("AUTOTHROTTLE_ENABLED") else None
        self._crawler, self._fingerprints, self._flush = crawler, fingerprints, flush
        self._wake = wake
        self._stats: Any = crawler.stats
        self._entries = Entries(spider, settings.fleet_secret)
        self._new_chain = partial(
            ScalableBloomFilter, settings.capacity, settings.error_rate * LOCAL_SHARE, max_age=settings.max_age
        )
        self.chain = self._new_chain()
        """What this process knows. A duplicate in here is dropped without asking."""
        self.add: Callable[[bytes], bool] = self._remember
        self.times_anew = 0
        """How often that was begun anew, because the server had forgotten what it knew."""
        self.items = io.BytesIO()
        """For ``scrapy bloom crawl``: items of the page that is being finished, which go with its acknowledgement."""
        self.in_flight: dict[int, Page] = {}
        """The pages in progress, by id() of the request, which the page keeps alive."""
        self._tickets: dict[int, Ticket] = {}  # by id() of the request, if others have it when this worker dies
        self.in_memory: deque[Page] = deque()  # of requests that cannot be written to the server
        self.commits = 0
        self.claims: Claims
        """What may be in other workers' memory, too."""
        self.finish_reason = ""
        self._journal = Journal()
        self._process = secrets.token_hex(4)
        self._starts: Counter[bytes] = Counter()
        self._on_close = ExitStack()
        self._open(settings, name, politeness, open_journal)
        self.where = self._queue.where
        """Where filter and queue are, for messages."""
        logger.info("Sharing the queue %s with all workers that are given the same key", self.where)

    def _open(
        self,
        settings: BloomSettings,
        name: str,
        politeness: Politeness,
        open_journal: Callable[[Path], Journal] | None,
    ) -> None:
        own = self._crawler.settings
        with ExitStack() as on_error:
            jobdir = Path(own["JOBDIR"]).absolute() if own["JOBDIR"] else None
            if jobdir is not None:  # two workers of one name would take each other's requests
                on_error.enter_context(lock_directory(jobdir / "requests.bloom"))
                if open_journal is not None:
                    self._journal = open_journal(jobdir / "requests.bloom")
            server = Server(**address_of(settings.redis_url, own))
            on_error.callback(server.close)
            server.warn_if_it_forgets()
            warn_of_scrapy_redis(server, own, name)
            self._queue = Queue.of(
                server,
                settings,
                self._fingerprints,
                name,
                lease_seconds=settings.fleet_lease,
                politeness=politeness,
                pages=PagesPerHost.of(settings.pages_per_host, self._order),
                start_urls=key_of(settings.fleet_start_urls, name) if settings.fleet_start_urls else None,
                items=own.get(ITEMS, ""),
            )
            self._queue.begin()
            ahead = 2 * (own.getint("CONCURRENT_REQUESTS") or UNLIMITED)
            per_slot = own.getint("CONCURRENT_REQUESTS_PER_DOMAIN")
            # With a job directory, it is the same worker after each start there.
            name, place = identity_of(jobdir / "requests.bloom" if jobdir is not None else None)
            news = _in_crawl(self._wake)
            self._client = LeaseClient(
                self._queue, name, place=place, ahead=ahead, per_slot=per_slot, news=news, journal=self._journal
            )
            self.claims = Claims(self._client.send, self._queue.shard_of, ahead)
            self._client.open()
            self._on_close = on_error.pop_all()

    @property
    def durable(self) -> Sized | None:
        """The requests that are ready here; the server has them, too."""
        return self._client

    # -- the store -----------------------------------------------------------------------------------------------------

    def _remember(self, fingerprint: bytes) -> bool:
        return self.chain.add(fingerprint)

    def seen(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether this process knows it. Remembers nothing, and asks nobody."""
        return [each in self.chain for each in fingerprints]

    def push(
        self,
        request: Request,
        fingerprint: bytes | None,
        parent: Page | None = None,
        mark: Mark | None = None,  # noqa: ARG002 - workers do not share kinds
    ) -> bool:
        """Send *request* to the server, which keeps it if it is new there. False: it has to stay in this process."""
        if fingerprint is None and parent is None and request.meta.get("is_start_request"):
            fingerprint = self._start_fingerprint(request)
        try:
            entry = self._entries.write(request)
        except ValueError as error:
            self._keep_in_memory(Page(request, "", fingerprint=fingerprint), error, parent)
            return False
        key = lane_of(request, self._order)
        push = "RPUSH" if self._order.is_lifo[key.is_start] else "LPUSH"
        lane = Lane(key.slot, str(-2 * key.priority + key.is_start), push)  # start requests come last
        link = Link(self._queue.shard_of(fingerprint or entry), fingerprint, lane, entry)
        if fingerprint is None and parent is not None and len(parent.held) < MOST_HELD:
            parent.held[len(parent.held)] = link
        else:
            self._client.send(link, is_root=parent is None)
        return True

    def _start_fingerprint(self, request: Request) -> bytes:
        """Return the fingerprint by which the fleet takes an unfiltered start request once, whoever yields it.

        Each worker runs start(), again after each restart. The n-th of equal requests is the n-th of every worker.
        """
        fingerprint = self._fingerprints.of_request(request)
        self._starts[fingerprint] += 1
        return sha1(b"start %d " % self._starts[fingerprint] + fingerprint, usedforsecurity=False).digest()

    def _keep_in_memory(self, page: Page, error: ValueError, parent: Page | None) -> None:
        """Let one worker fetch *page*; *parent*, which led to it, is in hand until it is done.

        So if the worker dies, another one fetches the parent again. A start request waits in the other workers.
        """
        if parent is not None:
            parent.open_parts += 1
            page.parents = (parent,)
        if page.fingerprint is None:
            self.in_memory.append(page)
        elif not self.claims.add(page):
            page.fingerprint = None
            self._end(page)
        self._stats.inc_value("bloom/fleet/in_memory")
        if self._stats.get_value("bloom/fleet/in_memory") == 1:
            logger.error(
                "%s cannot be written to the queue without a pickle: %s. It stays in this worker; if that is killed or "
                "stopped, the page that led to it is fetched again. bloom/fleet/in_memory counts such requests. Put "
                "plain types into meta and cb_kwargs, and methods of the spider into callback and errback; or set "
                "BLOOM_FLEET_SECRET to the same long random text in all workers.",
                page.request,
                error,
            )

    def _settle_claims(self) -> None:
        """Fetch what was granted to this worker; drop what was done, and links that lead to what another worker has."""
        for page, answer in self.claims.answered(self._client.answers()):
            if answer is Answer.GRANTED:
                self.in_memory.append(page)
                continue
            if answer is Answer.TAKEN and page.fingerprint is not None:
                self.chain.forget(page.fingerprint)  # if that worker dies, the link comes again
            page.fingerprint = None
            self._end(page)
        self.claims.ask(len(self.in_memory))

    def pop(self) -> tuple[Request, bool] | None:
        """Return the next request, and whether another worker gets it if this one dies; None if none is ready."""
        if self.claims:
            self._settle_claims()
        if self.in_memory:
            page = self.in_memory.popleft()
            self.in_flight[id(page.request)] = page
            return page.request, False
        while (found := self._client.next()) is not None:
            ticket, entry = found
            if self._client.times_back != self.times_anew:  # the server may not know what this process knows
                self.chain.close()
                self.chain, self.times_anew = self._new_chain(), self._client.times_back
            try:
                if entry[:1] == PUSHED:
                    self._begin_with(ticket, entry[1:])
                    continue
                request = self._entries.read(entry)
            except Exception as error:  # whatever was pushed, or a class of the spider's raises, ends no worker
                message = "%.500s is no request that this worker can read: %r. It is dead-lettered."
                logger.error(message, url_of(entry), error)  # noqa: TRY400 - the error is part of it
                self._client.send(Done(ticket, why="unreadable"))
                continue
            self.in_flight[id(request)] = Page(request, ticket.slot)
            self._tickets[id(request)] = ticket
            return request, True
        return None

    def _begin_with(self, ticket: Ticket, pushed: bytes) -> None:
        """Enqueue the requests of a start URL that was pushed; it is acknowledged after them."""
        for request in self._entries.requests_of(pushed):
            fingerprint = None if request.dont_filter else self._fingerprints.of_request(request)
            if fingerprint is None or self.add(fingerprint):
                self.push(request, fingerprint)
        self._client.send(Done(ticket))

    def done(self, page: Page) -> None:
        """Acknowledge the request of *page*: a kill repeats the pages in progress, and few others."""
        del self.in_flight[id(page.request)]
        self._end(page)

    def _end(self, page: Page) -> None:
        """Note that *page* is done, or dropped; with the last part of the page that led to it, that one is done."""
        page.open_parts -= 1
        while not page.open_parts and page.parents:  # its items go with the page that led to it
            (parent,) = page.parents
            parent.items += page.items
            for held in page.held.values():
                parent.held[len(parent.held)] = held
            parent.deferred += [page, *page.deferred]
            parent.open_parts -= 1
            page = parent
        if page.open_parts:
            return
        ticket = self._tickets.pop(id(page.request), None)
        page.write_items()
        self._flush()
        for held in page.held.values():
            self._client.send(held)
        items, own = self._taken_items(), self._journal.taken()
        if ticket is not None or items or own:
            failed = page.result.reason if page.result.outcome is Outcome.FAILED else ""
            self._client.send(Done(ticket, items, is_page=page.result.has_answer, failed=failed, own=own))
        for part in (*page.deferred, page):
            if part.fingerprint is not None:
                self._client.send(self.claims.of(part.fingerprint, is_done=True))

    def _taken_items(self) -> bytes:
        items = self.items.getvalue()
        self.items.seek(0)
        self.items.truncate()
        self._stats.inc_value("bloom/fleet/items", items.count(b"\n"))
        return items

    @property
    def paused(self) -> Paused:
        """The slots that the server or this worker has paused."""
        return self._client.paused

    def pause(self, slot: str, until: float) -> None:
        """Let no worker be handed a request of *slot* before *until*."""
        self.paused[slot] = until
        self._slow_down(slot, until=until)

    def end_pauses(self) -> bool:
        """Hand out requests again of slots whose pause is over; return whether there are any."""
        return bool(self.paused.end())

    def space_out(self, slot: str, delay: float) -> None:
        """Leave at least *delay* seconds between two requests of *slot*, of all workers."""
        self._slow_down(slot, delay=delay)

    def _slow_down(self, slot: str, *, until: float = 0, delay: float = 0) -> None:
        for shard in range(self._queue.shards):
            self._client.send(SlowDown(shard, slot, until, delay), is_root=True)

    def note_estimate(self, known: bytes) -> None:
        """Let the commands see what this worker knows for the estimate of pages left."""
        self._client.send(Note(self._process, known))

    def forget(self, fingerprint: bytes) -> bool:
        """Let *fingerprint* be seen once more, by whichever worker does not know it; True if this one did."""
        self._client.send(Forget(self._queue.shard_of(fingerprint), fingerprint), is_root=True)
        return self.chain.forget(fingerprint)

    def commit(self) -> None:
        """Note what became of the last calls. Raises what the lease client has failed of, which ends the crawl."""
        self.commits += self._client.has_delivered_all
        self._journal.commit()
        self.claims.ask(len(self.in_memory))
        if self._throttle:
            engine: Any = self._crawler.engine
            now = {name: slot.delay for name, slot in engine.downloader.slots.items()}
            self._queue.politeness = self._throttle._replace(delays={**self._throttle.delays, **now})
        self._set_stats()
        if self._client.failure is not None:
            raise self._client.failure

    def _set_stats(self) -> None:
        for name, value in dict(self._client.counts).items():  # a copy: the thread adds names
            self._stats.set_value(f"bloom/fleet/{name}", value)

    def close(self) -> None:
        """Deliver what is left, give back what was not begun, and let go of everything."""
        self._flush()
        if items := self._taken_items():  # of no page
            self._client.send(Done(None, items))
        self._client.close()
        self._on_close.callback(self.chain.close)
        self.commits += self._client.has_delivered_all
        self._set_stats()
        if left := self._client.counts["left"]:
            logger.info("BLOOM_PAGES_PER_HOST: %s are left on the server", counted(left, "pending request"))
        with self._on_close:
            self._journal.close(self.finish_reason)

    def __len__(self) -> int:
        """Return how many requests are ready here; at least 1 while any are pending or in hand at any worker."""
        if self._queue.start_urls is not None:
            return max(1, len(self._client))
        return len(self.in_memory) + len(self.claims) + len(self._client)


def _in_crawl(call: Callable[[], None]) -> Callable[[], object]:
    """Return a function that makes the crawl's thread call *call*, whichever thread calls it."""
    try:
        return partial(asyncio.get_running_loop().call_soon_threadsafe, call)
    except RuntimeError:
        if not is_reactor_installed():  # a store that is used on its own
            return lambda: None
        from twisted.internet import reactor

        of_reactor: Any = reactor  # its type depends on which one is installed
        return partial(of_reactor.callFromThread, call)
