"""The lease client: one thread that hands a worker's links and acknowledgements to the server, and gets it requests."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from scrapy_bloom.errors import counted
from scrapy_bloom.fleet.queue import Done, LeaseLostError, Message, Ticket
from scrapy_bloom.fleet.server import excuse_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_bloom.fleet.queue import Queue

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.02  # between two calls: what is found meanwhile goes together
IDLE_SECONDS = 0.1  # between two looks for requests when there were none
AWAY_SECONDS = 0.5  # between two tries to reach a server that is away or full
CLOSE_SECONDS = 30.0  # how long the end of a crawl may wait for a server that is away
MOST_MESSAGES = 300  # in one call: a server answers nobody else for some 3 ms


class LeaseClient:
    """A worker's connection to the queue. Its methods never wait for the server, but for ``open`` and ``close``.

        open --> joined -- close --> all delivered, the rest given back, or CLOSE_SECONDS over --> ended
                 |    ^ ^
                 |    | '-- it answers -- away: the server is, or is full; tries again, takes no requests
                 |    '---- joins under a new token; what it held is others' -- the lease has run out
                 '-- the queue is gone, or a bug of this thread --> ended, and failure says of what

    After a :attr:`failure` the crawl must end: nothing is delivered any more.

    All that both threads see is behind one lock. The outbox keeps the order, so the links of a page come before its
    acknowledgement.

    The next life of the same *name* takes over at once what this one held when it was killed. *ahead* requests are
    held ready; a slot of which *per_slot* are in hand is served after the others. The thread calls *news* when there
    are requests, or when the end has come.
    """

    def __init__(self, queue: Queue, name: str, *, ahead: int, per_slot: int, news: Callable[[], object]) -> None:
        self._queue, self._name, self._ahead, self._per_slot, self._news = queue, name, ahead, per_slot, news
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scrapy-bloom lease client", daemon=True)
        # behind the lock
        self._outbox: deque[Message] = deque()
        # Made of what was in the outbox, and not known to be carried out: arguments of Queue.finish. A call may have to
        # be made again; under the same number it is carried out once.
        self._calls: deque[tuple[int, str, int, list[Message]]] = deque()
        self._ready: deque[tuple[Ticket, bytes]] = deque()
        self._in_hand: set[Ticket] = set()
        self._is_over = False
        # of the thread
        self.failure: Exception | None = None
        """What the thread has ended of."""
        self.counts: Counter[str] = Counter()
        """Figures for the stats, by name."""
        self._token = ""
        self._number = 0
        # by shard: the newest request; requests outstanding and those there ever were, and the same one look before
        self._newest: list[int] = []
        self._said: list[tuple[int, int]] = []
        self._said_before: list[tuple[int, int]] = []
        self._left: dict[int, int] = {}  # by shard: requests of slots that have had their pages
        self._looks = 0
        self._is_away = False
        self._next_look = self._next_beat = self._deadline = 0.0

    # -- called by the crawl -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Join the queue, and start the thread. Raises RedisError if the server fails."""
        self._is_over = not self._join()
        self._thread.start()

    def send(self, message: Message) -> None:
        """Have *message* delivered, after all that were sent before."""
        with self._lock:
            self._outbox.append(message)
            self._is_over = False
            if isinstance(message, Done):
                self._in_hand.discard(message.ticket)

    def next(self) -> tuple[Ticket, bytes] | None:
        """Return the next request that the worker has a lease on, if one is ready."""
        with self._lock:
            return self._ready.popleft() if self._ready and self.failure is None else None

    def __len__(self) -> int:
        """Return how many requests are ready; at least 1 unless nothing is pending or in hand at any worker."""
        with self._lock:
            return len(self._ready) or (not self._is_over)

    @property
    def has_delivered_all(self) -> bool:
        """Whether all that was sent is on the server."""
        with self._lock:
            return not (self._outbox or self._calls)

    def close(self) -> None:
        """Deliver what there is, give back the rest, and wait for both, at most for CLOSE_SECONDS."""
        self._deadline = time.monotonic() + CLOSE_SECONDS
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(2 * CLOSE_SECONDS)
        with self._lock:
            left = len(self._outbox) + sum(len(messages) for *_, messages in self._calls)
        if left:
            logger.error(
                "%s could not be delivered to %s. The pages they are of are fetched again.",
                counted(left, "link or acknowledgement", "links and acknowledgements"),
                self._queue.server.where,
            )

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                is_last = self._closing.is_set()
                # A full server takes no links and still renews leases, so it is looked at in any case.
                has_delivered, has_looked = self._succeeds(self._deliver), self._succeeds(self._look)
                if is_last and has_delivered and self._succeeds(self._leave):
                    return
                if is_last and time.monotonic() > self._deadline:
                    return
                if self._is_away and has_delivered and has_looked:
                    self._is_away = False
                    logger.info("The server %s answers again", self._queue.server.where)
                self._closing.wait(FLUSH_SECONDS)
        except Exception as error:  # whatever it is: the crawl must not wait for this thread
            self.failure = error

    def _succeeds(self, step: Callable[[], object]) -> bool:
        """Return whether *step* succeeds; if the server is away or full, note it, and let some time pass."""
        try:
            step()
        except LeaseLostError:
            logger.warning("The lease of this worker has run out, after a long silence. Others fetch what it held.")
            self.counts["lease_lost"] += 1
            with self._lock:
                self._in_hand.clear()
                self._ready.clear()
            return self._succeeds(self._join)
        except (RedisError, OSError) as error:
            excuse = excuse_in(error)
            if not self._is_away:
                self._is_away = True
                self.counts["away"] += 1
                logger.warning(
                    "The server %s %s (%s). The crawl stands still until that is over; nothing is lost.",
                    self._queue.server.where,
                    excuse,
                    error,
                )
            self._next_beat = 0.0  # so the next look asks the server, whatever there is to say
            time.sleep(AWAY_SECONDS)
            return False
        return True

    def _join(self) -> int:
        token = secrets.token_hex(8)
        outstanding = self._queue.join(token, self._name)
        shards = self._queue.shards
        self._token, self._newest, self._said, self._said_before = token, [0] * shards, [(1, 0)] * shards, []
        self._next_beat = 0.0
        return outstanding

    def _leave(self) -> None:
        self._queue.leave(self._token)

    # -- what goes to the server -------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        while self._calls or self._make_calls():
            shard, _, _, messages = call = self._calls[0]
            answer = self._queue.finish(*call)
            self._said[shard] = answer.outstanding, answer.seq
            self.counts["enqueued"] += answer.new
            self.counts["stale"] += answer.refused
            self.counts["dead_lettered"] += sum(isinstance(each, Done) and bool(each.dead) for each in messages)
            with self._lock:
                self._calls.popleft()

    def _make_calls(self) -> bool:
        """Make calls of what waits; return whether anything does. On a cluster the links go first, in all shards."""
        with self._lock:
            batch = [self._outbox.popleft() for _ in range(min(MOST_MESSAGES, len(self._outbox)))]
            is_late = [self._queue.shards > 1 and isinstance(each, Done) for each in batch]
            for place in sorted({(late, each.shard) for late, each in zip(is_late, batch, strict=True)}):
                messages = [each for late, each in zip(is_late, batch, strict=True) if (late, each.shard) == place]
                self._number += 1
                self._calls.append((place[1], self._token, self._number, messages))
        return bool(batch)

    # -- what comes from it ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take requests if few are ready, and renew the leases in time."""
        now, shards, found = time.monotonic(), self._queue.shards, 0
        with self._lock:
            wanted = self._ahead - len(self._ready)
        is_hungry = 2 * wanted >= self._ahead and now >= self._next_look
        if not is_hungry or self._is_away or self._closing.is_set():
            wanted = 0
        is_due = now >= self._next_beat
        if not wanted and not is_due:
            return
        self._looks += 1  # each look begins with another shard
        for i in range(shards):
            if is_due or found < wanted:
                found += self._take((self._looks + i) % shards, max(0, wanted - found))
        if is_due:
            self._next_beat = now + self._queue.lease_seconds / 3
        self._next_look = now + (0 if found else IDLE_SECONDS * shards**0.5)
        is_over = not found and self._is_nothing_left()
        with self._lock:
            was_over, self._is_over = self._is_over, is_over and not self._outbox and not self._calls
            has_news = found or self._is_over != was_over
        if has_news:
            self._news()

    def _take(self, shard: int, most: int) -> int:
        """Take at most *most* requests of a shard, or only renew its lease; return how many there were."""
        with self._lock:
            in_hand = Counter(ticket.slot for ticket in self._in_hand)
        later = [slot for slot, count in in_hand.items() if count >= self._per_slot]
        answer = self._queue.take(shard, self._token, self._newest[shard], most, later)
        self._said[shard] = answer.outstanding, answer.seq
        tickets = [ticket for ticket, _ in answer.found]
        with self._lock:
            self._ready.extend(answer.found)
            self._in_hand.update(tickets)
        self._newest[shard] = max([self._newest[shard], *[ticket.id for ticket in tickets]])
        self._left[shard] = answer.left
        self.counts["left"] = sum(self._left.values())
        self.counts["returned"] += answer.returned
        self.counts["dead_lettered"] += answer.buried
        return len(tickets)

    def _is_nothing_left(self) -> bool:
        """Return whether no request is pending or in hand anywhere.

        Shards are asked one after the other. All of them were empty at one moment if all were empty twice, and none has
        taken in anything between.
        """
        before, self._said_before = self._said_before, list(self._said)
        return not any(outstanding for outstanding, _ in self._said) and (len(self._said) == 1 or before == self._said)
