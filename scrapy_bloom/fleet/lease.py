"""The lease client: one thread that hands a worker's links and acknowledgements to the server, and gets it requests."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter, deque
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import RedisError

from scrapy_bloom.errors import counted
from scrapy_bloom.fleet.queue import Bury, Done, Forget, LeaseLostError, Link, Message, Ticket
from scrapy_bloom.fleet.server import AWAY, is_full

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_bloom.fleet.journal import Journal
    from scrapy_bloom.fleet.queue import Finished, Queue, Taken

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.02
"""Between two calls: what is found meanwhile goes together."""

IDLE_SECONDS = 0.1
"""Between two looks for requests when there were none."""

AWAY_SECONDS = 0.5
"""Between two tries to reach a server that is away or full."""

CLOSE_SECONDS = 30.0
"""How long the end of a crawl may wait for a server that is away."""

MOST_LINKS = 300
"""In one call: a server answers nobody else for some 3 ms."""

MOST_WAITING = 20_000
"""Links that wait to be delivered beyond which no more requests are taken."""


class State(Enum):
    """State of a lease client; see the picture there."""

    NEW, WORKING, WAITING, CLOSING, CLOSED, FAILED = range(6)


class _Call(NamedTuple):
    """A call to the server, which may have to be made again: under the same number it is carried out once."""

    shard: int
    token: str
    number: int
    links: list[Link]
    done: list[bytes]
    forget: list[bytes]
    bury: list[Bury]


class LeaseClient:
    """A worker's connection to the queue. Its methods never wait for the server, but for ``open`` and ``close``.

    ::

                 open()                  no answer, or it is full
        NEW ───────────────► WORKING ◄─────────────────────────────► WAITING
                                │             it answers                │
                        close() │                                       │ close()
                                ▼                                       │
                             CLOSING ◄──────────────────────────────────┘
                                │  all is delivered, or CLOSE_SECONDS are over
                                ▼
                             CLOSED                   FAILED: from any state, if the queue is gone or the thread has
                                                      a bug. The crawl must end then: nothing is delivered any more.

    A lease that has run out changes no state: the worker joins again under a new token, and what it held before is
    others'. All that both threads see is behind one lock: the state, the outbox, the requests that are ready, and what
    the server said last. The outbox keeps the order, so the links of a page come before its acknowledgement. What is
    under way is in ``_calls``, which belongs to the thread, until the server has said that it has it.

    Args:
        queue: Opened by :meth:`open`.
        name: Of the worker; the next life of the same name takes over at once what this one held when it was killed.
        ahead: Requests to hold ready.
        news: Called by the thread when there is something to look at: requests, the end, or a failure.
        journal: Is told which call acknowledges which pages, before the call is made.

    """

    def __init__(
        self, queue: Queue, name: str, *, ahead: int, news: Callable[[], None], journal: Journal | None = None
    ) -> None:
        self._queue = queue
        self._name = name
        self._ahead = ahead
        self._news = news
        self._journal = journal
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scrapy-bloom lease client", daemon=True)
        # behind the lock
        self._state = State.NEW
        self._failure: BaseException | None = None
        self._outbox: deque[Message] = deque()
        self._ready: deque[tuple[Ticket, bytes]] = deque()
        self._is_over = False
        self.counts: Counter[str] = Counter()
        """Figures for the stats, by name; only the thread changes them."""
        # of the thread
        self._token = ""
        self._calls: deque[_Call] = deque()
        self._numbers: list[int] = []
        self._takes: list[int] = []
        self._looks = 0
        self._under_way = 0
        self._lost: Counter[int] = Counter()
        self._said: list[tuple[int, int]] = []
        self._said_before: list[tuple[int, int]] = []
        self._next_look = self._next_beat = 0.0
        self._deadline = 0.0

    # -- called by the crawl -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Join the queue, and start the thread.

        Raises:
            UnusableError: The queue is of another format or key space.
            redis.RedisError: The server does not answer.

        """
        self._token = secrets.token_hex(8)
        outstanding = self._queue.open(self._token, self._name)
        self._forget_answers()
        self._is_over = not outstanding
        self._state = State.WORKING
        self._thread.start()

    @property
    def state(self) -> State:
        """The state just now."""
        with self._lock:
            return self._state

    @property
    def failure(self) -> BaseException | None:
        """Why the state is FAILED."""
        with self._lock:
            return self._failure

    def send(self, message: Message) -> None:
        """Have *message* delivered, after all that were sent before."""
        with self._lock:
            self._outbox.append(message)
            self._is_over = False

    def next(self) -> tuple[Ticket, bytes] | None:
        """Return the next request that the worker has a lease on, if one is ready."""
        with self._lock:
            return self._ready.popleft() if self._ready and self._state is not State.FAILED else None

    def __len__(self) -> int:
        """Return how many requests are ready; at least 1 unless nothing is pending or in hand at any worker."""
        with self._lock:
            return len(self._ready) or (0 if self._is_over and not self._outbox else 1)

    def close(self) -> None:
        """Deliver what there is, give back the rest, and wait for both, at most for CLOSE_SECONDS."""
        with self._lock:
            if self._state in {State.NEW, State.CLOSED}:
                return
            if self._state is not State.FAILED:
                self._state = State.CLOSING
            self._deadline = time.monotonic() + CLOSE_SECONDS
        self._wake.set()
        self._thread.join(2 * CLOSE_SECONDS)
        with self._lock:
            left = len(self._outbox)
        if left:
            logger.error(
                "%s could not be delivered to %s. The pages they are of are fetched again.",
                counted(left, "link or acknowledgement", "links and acknowledgements"),
                self._queue.server.where,
            )

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self.state not in {State.CLOSED, State.FAILED}:
                self._turn()
                self._wake.wait(FLUSH_SECONDS)
        except BaseException as error:  # whatever it is: the crawl must not wait for this thread
            with self._lock:
                self._state, self._failure = State.FAILED, error
            self._news()

    def _turn(self) -> None:
        try:
            is_last = self.state is State.CLOSING
            self._deliver()
            if not is_last:
                self._look()
            elif not self._outbox:
                self._queue.leave(self._token)
                self._change(State.CLOSING, State.CLOSED)
            if self._change(State.WAITING, State.WORKING):
                logger.info("The server %s answers again", self._queue.server.where)
        except LeaseLostError:
            self._rejoin()
        except (RedisError, OSError) as error:
            if not (isinstance(error, AWAY) or is_full(error)):
                raise
            self._wait(error)

    def _change(self, before: State, after: State) -> bool:
        with self._lock:
            if self._state is not before:
                return False
            self._state = after
            return True

    def _wait(self, error: Exception) -> None:
        """Note that the server is away or full, and let some time pass."""
        if self._change(State.WORKING, State.WAITING):
            self.counts["away"] += 1
            logger.warning(
                "The server %s %s: %s. The crawl stands still until it does; nothing is lost.",
                self._queue.server.where,
                "is full and takes no more requests; give it more memory" if is_full(error) else "does not answer",
                error,
            )
        if self.state is State.CLOSING and time.monotonic() > self._deadline:
            self._change(State.CLOSING, State.CLOSED)
            return
        if is_full(error):
            self._beat()
        time.sleep(AWAY_SECONDS)

    def _beat(self) -> None:
        """Renew the leases with a server that is full, which it still does."""
        try:
            for shard in range(self._queue.shards):
                self._take(shard, 0)
        except LeaseLostError:
            self._rejoin()
        except AWAY:
            pass  # the next turn finds out

    def _rejoin(self) -> None:
        logger.warning(
            "The lease of this worker has run out: it has not been heard of for too long. Others fetch what it held."
        )
        self.counts["lease_lost"] += 1
        with self._lock:
            self._ready.clear()
        token = secrets.token_hex(8)
        self._queue.join(token, self._name)
        self._token = token
        self._forget_answers()

    def _forget_answers(self) -> None:
        self._numbers = [0] * self._queue.shards
        self._takes = [0] * self._queue.shards
        self._said = [(1, 0)] * self._queue.shards
        self._said_before = []
        self._next_beat = 0.0

    # -- what goes to the server -------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        while True:
            while self._calls:
                call = self._calls[0]
                answer = self._queue.finish(call.shard, call.token, call.number, call.links, call.done, call.forget)
                self._note(call.shard, answer)
                for each in call.bury:
                    self._queue.bury(each.ticket, call.token, each.reason)
                self.counts["dead_lettered"] += len(call.bury)
                self.counts["enqueued"] += answer.new
                self.counts["stale"] += answer.refused
                self._calls.popleft()
            with self._lock:
                # They stay in the outbox until all of them are delivered: it is not empty before.
                for _ in range(self._under_way):
                    self._outbox.popleft()
                batch = list(islice(self._outbox, MOST_LINKS))
                self._under_way = len(batch)
            if not batch:
                return
            self._prepare(batch)

    def _prepare(self, batch: list[Message]) -> None:
        """Make calls of *batch*: links first, in all shards, so that no page is acknowledged before its links."""
        links: dict[int, list[Link]] = {}
        done: dict[int, list[Done]] = {}
        forget: dict[int, list[bytes]] = {}
        bury: dict[int, list[Bury]] = {}
        for message in batch:
            match message:
                case Link():
                    links.setdefault(message.shard, []).append(message)
                case Done():
                    done.setdefault(message.ticket.shard, []).append(message)
                case Bury():
                    bury.setdefault(message.ticket.shard, []).append(message)
                case Forget():
                    shard = self._queue.shard_of(message.fingerprint)
                    forget.setdefault(shard, []).append(message.fingerprint)
        if self._queue.shards == 1:
            self._call(0, links.get(0, []), done.get(0, []), forget.get(0, []), bury.get(0, []))
            return
        for shard in {*links, *forget}:
            self._call(shard, links.get(shard, []), [], forget.get(shard, []), [])
        for shard in {*done, *bury}:
            self._call(shard, [], done.get(shard, []), [], bury.get(shard, []))

    def _call(self, shard: int, links: list[Link], done: list[Done], forget: list[bytes], bury: list[Bury]) -> None:
        self._numbers[shard] += 1
        number = self._numbers[shard]
        if self._journal is not None and done:
            self._journal.note(shard, self._token, number, [(each.ticket.id, each.mark) for each in done])
        ids = [each.ticket.id for each in done]
        self._calls.append(_Call(shard, self._token, number, links, ids, forget, bury))

    # -- what comes from it ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take requests if few are ready, and renew the leases in time."""
        now = time.monotonic()
        with self._lock:
            wanted = self._ahead - len(self._ready)
            is_hungry = 2 * wanted >= self._ahead and len(self._outbox) < MOST_WAITING and now >= self._next_look
        is_due = now >= self._next_beat
        if not is_hungry and not is_due:
            return
        shards, found = self._queue.shards, 0
        self._looks += 1
        for i in range(shards):
            shard = (self._looks + i) % shards
            most = max(0, wanted - found) if is_hungry else 0
            if most or is_due:
                found += self._take(shard, most)
        if is_due:
            self._next_beat = now + self._queue.lease_seconds / 3
        self._next_look = now + (0 if found else IDLE_SECONDS * shards**0.5)
        is_over = not found and self._is_nothing_left()
        with self._lock:
            was_over, self._is_over = self._is_over, is_over and not self._outbox
            has_news = found or self._is_over != was_over
        if has_news:
            self._news()

    def _take(self, shard: int, most: int) -> int:
        """Take at most *most* requests of a shard, or only renew its lease; return how many there were."""
        # The same number until an answer has come: what a lost one held would be nobody's, and the crawl never end.
        number = self._takes[shard] + 1 if most else 0
        answer = self._queue.take(shard, self._token, number, most)
        self._takes[shard] += bool(most)
        self._note(shard, answer)
        with self._lock:
            self._ready.extend(answer.found)
        self.counts["returned"] += answer.returned
        self.counts["dead_lettered"] += answer.buried
        if answer.missing or answer.mended:
            self.counts["missing"] += answer.missing
            logger.error(
                "The server %s has lost keys of the queue: %s cannot be fetched, %s put back without their hosts",
                self._queue.server.where,
                counted(answer.missing, "request"),
                counted(answer.mended, "request"),
            )
        return len(answer.found)

    def _is_nothing_left(self) -> bool:
        """Return whether no request is pending or in hand anywhere.

        Shards are asked one after the other. All of them were empty at one moment if all were empty twice, and none has
        taken in anything between.
        """
        before, self._said_before = self._said_before, list(self._said)
        if any(outstanding for outstanding, _ in self._said):
            return False
        return len(self._said) == 1 or before == self._said

    def _note(self, shard: int, answer: Taken | Finished) -> None:
        self._said[shard] = (answer.outstanding, answer.seq)
        if answer.lost > self._lost[shard]:
            self._lost[shard] = answer.lost
            logger.warning(
                "The server %s has lost a part of the filter: some pages are fetched again", self._queue.server.where
            )
