"""The lease client: one thread that hands a worker's links and acknowledgements to the server, and gets it requests."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from scrapy_bloom.errors import counted
from scrapy_bloom.fleet.life import Life, Outbox, SessionEvent, SessionState
from scrapy_bloom.fleet.messages import START, Done, Ticket
from scrapy_bloom.fleet.queue import LifeEndedError
from scrapy_bloom.fleet.server import FAILURES, excuse_in, usable
from scrapy_bloom.fleet.shared_queue import SharedQueue
from scrapy_bloom.frontier.page import ANSWERED, Page
from scrapy_bloom.frontier.store import Journal

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_bloom.fleet.messages import Message
    from scrapy_bloom.fleet.queue import Queue
    from scrapy_bloom.frontier.store import Paused

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.02  # between two calls: what is found meanwhile goes together
IDLE_SECONDS = 0.1  # between two looks for requests when there were none
AWAY_SECONDS = 0.5  # between two tries to reach a server that is away or full
CLOSE_SECONDS = 30.0  # how long the end of a crawl may wait for a server that is away


class StartLease:
    """The lease of start(), and the page that its output belongs to. One worker runs it, another one if that dies."""

    def __init__(self, *, can_run: bool) -> None:
        self.can_run = can_run
        """Whether the worker runs start() if nobody else does."""
        self.ticket: Ticket | None = None
        """The lease, to be acknowledged when start() has run; None while this worker has none."""
        self._used: Ticket | None = None  # the last lease under which start() was run
        self._since = 0.0
        self.page: Page | None = None
        """None: start() does not run here."""

    @property
    def is_granted(self) -> bool:
        """Whether this worker has a lease of start() under which it has not run start() yet."""
        return self.page is None and self.ticket not in {None, self._used}

    def begin(self) -> Page:
        """Return the page that the output of start() belongs to; :meth:`end` follows when start() has ended."""
        self._used = self.ticket
        # What it leads to is acknowledged without it: start() may run for as long as the crawl.
        self.page = Page("", result=ANSWERED, is_split=True)
        self._since = time.monotonic()
        return self.page

    def page_with_old_items(self, seconds: float) -> Page | None:
        """Return the page if it has items, and *seconds* have gone by since it began, or was returned last."""
        if self.page is None or not self.page.gave or time.monotonic() < self._since + seconds:
            return None
        self._since = time.monotonic()
        return self.page

    def end(self) -> Ticket:
        """Return the lease to acknowledge. It may be of a later life than the one in which start() began."""
        self.page, self._used = None, self.ticket
        assert self._used is not None  # noqa: S101 - is_granted was true
        return self._used

    def close(self) -> None:
        """Run start() no more."""
        self.can_run = False


class LeaseClient:
    """A worker's connection to the queue. Its methods never wait for the server, but for ``open`` and ``close``.

    Its thread moves the session through the states of :mod:`scrapy_bloom.fleet.life`. After a :attr:`failure` the
    crawl must end.

    When a life has ended, pages in hand are fetched again. If that is because the server went back in time, it does not
    know their links: they are sent again, and ``counts["went_back"]`` tells the crawl to forget what it knows.

    The lock guards the outbox and the requests in hand. The outbox keeps the order, so the links of a page
    come before its acknowledgement.

    The next life of a worker of the same *name* takes over at once what this one held when it was killed. The thread
    calls *news* when there are requests, or when the end has come. *ahead* requests are held ready. With *per_slot*
    requests of a slot in hand, others are served before it.
    """

    def __init__(
        self,
        queue: Queue,
        name: str,
        journal: Journal | None = None,
        *,
        ahead: int = 16,
        per_slot: int = 8,
        news: Callable[[], object],
    ) -> None:
        self.queue, self._name, self._news = queue, name, news
        self._ahead, self._per_slot = ahead, per_slot
        self.process = secrets.token_hex(4)
        """Tells this process from others."""
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scrapy-bloom lease client", daemon=True)
        # behind the lock
        self._life = Life()
        self._outbox = Outbox(queue, journal or Journal(), self._life)
        # of the thread
        self.failure: Exception | None = None
        """The exception that ended the thread, or because of which the crawl ends; None if there was none."""
        self.counts: Counter[str] = Counter()
        self._deadline = 0.0  # when the end of the crawl stops waiting for the server, by time.monotonic()
        self.start = StartLease(can_run=queue.has_start)

    @property
    def paused(self) -> Paused:
        """The slots that are paused, as far as this worker knows."""
        return self._life.paused

    @property
    def journal(self) -> Journal:
        """The journal of this worker's own feeds; one that notes nothing if it has no job directory."""
        return self._outbox.journal

    # -- called by the crawl -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Join the queue, and start the thread. Raises UnusableError, also if the server fails."""
        self.queue.begin()
        with usable(self.queue.server.where, "See what the server logs."):
            self._join()
            self._outbox.settle()
            self._look()
        self._thread.start()

    def send(self, message: Message, *, is_root: bool = False) -> None:
        """Have *message* delivered, after all that were sent before.

        A root belongs to no page in hand. If the server goes back in time, the client sends its roots again.
        """
        with self._lock:
            ticket = message.ticket if isinstance(message, Done) else None
            if ticket is not None and ticket.id != START and not self._life.end_page(ticket):  # its life has ended
                self.counts["stale"] += 1
                return
            self._outbox.put(message, is_root=is_root)
            self._life.is_over = False

    def next(self) -> tuple[Ticket, bytes] | None:
        """Return the next request that the worker has a lease on, if one is ready and its slot is not paused."""
        with self._lock:
            return self._life.next() if self.failure is None else None

    def __len__(self) -> int:
        """Return how many requests are ready; at least 1 unless nothing is pending or in hand at any worker."""
        with self._lock:
            return self._life.ready or (not self._life.is_over)

    @property
    def has_delivered_all(self) -> bool:
        """Whether all that was sent is on the server."""
        with self._lock:
            return not self._outbox

    @property
    def is_open(self) -> bool:
        """Whether :meth:`close` was not called."""
        return not self._closing.is_set()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Deliver what there is, and give back the rest. Waits for a server that is away at most 2 * *seconds*."""
        self._deadline = time.monotonic() + seconds
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(2 * seconds)
        with self._lock:
            left = len(self._outbox)
        if left:
            logger.error(
                "%s could not be delivered to %s. The pages they are of are fetched again.",
                counted(left, "link or acknowledgement", "links and acknowledgements"),
                self.queue.server.where,
            )

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._life.state is not SessionState.ENDED:
                self._go_on(is_last=self._closing.is_set())
                self._closing.wait(FLUSH_SECONDS)
        except Exception as error:  # whatever it is: the crawl must not wait for this thread
            self.failure = error
            self._life.move(SessionEvent.LOST)

    def _go_on(self, *, is_last: bool) -> None:
        """Join if need be, deliver, and look for requests; if this *is_last* and all is delivered, leave."""
        life = self._life
        if life.is_outside:
            self._succeeds(self._join)
        # A full server takes no links and still renews leases, so it is looked at in any case.
        has_delivered = not life.is_outside and self._succeeds(self._deliver)
        has_looked = not life.is_outside and self._succeeds(self._look)
        if has_delivered and has_looked and life.move(SessionEvent.ANSWERED) is SessionState.AWAY:
            logger.info("The server %s answers again", self.queue.server.where)
        has_left = is_last and has_delivered and not life.is_outside and self._succeeds(self._leave)
        if has_left or (is_last and time.monotonic() > self._deadline):
            life.move(SessionEvent.LEFT)

    def _succeeds(self, step: Callable[[], object]) -> bool:
        """Return whether *step* succeeds; if the server is away or full, note it, and let some time pass."""
        try:
            step()
        except LifeEndedError as ended:
            logger.warning("%s. What this worker has in hand is fetched again", ended)
            with self._lock:
                self._life.end()
                if ended.went_back:
                    self._outbox.begin_anew()
                self.counts["went_back" if ended.went_back else "lease_lost"] += 1
            return False
        except FAILURES as error:
            excuse = excuse_in(error)
            if self._life.move(SessionEvent.SILENT) is SessionState.ACTIVE:
                self.counts["away"] += 1
                logger.warning(
                    "The server %s %s (%s). The crawl stands still until that is over; nothing is lost.",
                    self.queue.server.where,
                    excuse,
                    error,
                )
            self._life.next_beat = 0.0  # the next look calls the server in any case
            time.sleep(AWAY_SECONDS)
            return False
        return True

    def _join(self) -> None:
        token = secrets.token_hex(8)
        self.queue.join(token, self._name, last=self._life.token)
        with self._lock:
            self._life.begin(token, self.queue.shards)
        self._life.move(SessionEvent.JOINED)

    def _leave(self) -> None:
        self.queue.leave(self._life.token, [shard.answered for shard in self._life.shards])

    # -- what goes to the server -------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        self._outbox.journal.write()
        while self._has_calls():
            call, answer = self._outbox.deliver()
            self._life.shards[call.shard].state = True, -1  # until the next look, it may be busy
            self._life.last_event = time.monotonic()
            self.counts["enqueued"] += answer.new
            self.counts["stale"] += len(answer.refused)
            self.counts["dead_lettered"] += sum(isinstance(each, Done) and each.why != "" for each in call.messages)
            with self._lock:
                if answer.paused:
                    self._life.pause(answer.paused)
                self._outbox.delivered()

    def _has_calls(self) -> bool:
        with self._lock:
            return self._outbox.make_calls()

    # -- what comes from it ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take requests if few are ready, and renew the leases in time."""
        now, life = time.monotonic(), self._life
        wanted, is_due = self._wanted(now), now >= life.next_beat
        if not wanted and not is_due:
            return
        taken = 0
        for shard in life.in_turn():
            if is_due or taken < wanted:
                taken += self._take(shard, max(0, wanted - taken))
        if is_due:
            life.next_beat = now + self.queue.lease_seconds / 3
        life.next_look = now + (0 if taken else IDLE_SECONDS * self.queue.shards**0.5)
        is_empty = not taken and life.is_nothing_left() if wanted else life.is_over
        with self._lock:
            was_over, life.is_over = life.is_over, is_empty and not self._outbox
        if taken or life.is_over != was_over:
            self._news()
        if taken:
            life.last_event = now
        elif not is_empty:
            self._warn_of_silence(now)

    def _wanted(self, now: float) -> int:
        """Return how many requests to ask for: none while enough are ready, or the server is away."""
        life = self._life
        if self._life.state is not SessionState.ACTIVE or self._closing.is_set() or now < life.next_look:
            return 0
        with self._lock:
            wanted = self._ahead - life.unpaused
        return wanted if 2 * wanted >= self._ahead else 0

    def _warn_of_silence(self, now: float) -> None:
        silence = 2 * self.queue.lease_seconds
        if now > self._life.last_event + silence:
            self._life.last_event = now
            counts = SharedQueue(self.queue.server, self.queue.prefix).info()
            message = "Nothing has happened for %.0f s. %d requests are pending, %d hosts paused; in hand: %s"
            in_hand = {worker["worker"]: worker["leased"] for worker in counts["workers"]}
            logger.warning(message, silence, counts["pending"], counts["hosts_paused"], in_hand)

    def _take(self, shard: int, most: int) -> int:
        """Take at most *most* requests of a shard, or only renew its lease; return how many there were."""
        life = self._life
        with self._lock:
            later = life.slots_with(self._per_slot)
        known = life.shards[shard]
        options: dict[str, Any] = {"number": known.answered, "can_start": self.start.can_run}
        answer = self.queue.take(shard, life.token, known.newest, most, later, **options)
        start = Ticket(0, START, "", life.token)
        if answer.starts and self.start.ticket != start:
            self.start.ticket = start
            self._news()
        with self._lock:
            life.take(shard, answer, has_asked=most > 0)
        self.counts["left"] = sum(of_shard.left for of_shard in life.shards)
        self.counts["returned"] += answer.returned
        self.counts["dead_lettered"] += answer.buried
        return len(answer.requests)
