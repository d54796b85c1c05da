"""The plain queues that Scrapy's priority queues are made of, as lanes over one journal and its file.

A *lane* is one such queue: one per priority, and per download slot if the priority queue tells slots apart. It keeps
the end it pops from in memory, and reads on from the file when that is used up. The priority queue of the installed
Scrapy decides which lane a request goes to and which lane is next, so the order is always Scrapy's. Lanes do not know
that order, nor when anything is written.
"""

from __future__ import annotations

import logging
import sqlite3
from bisect import bisect_right
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_bloom.old.frontier.database import Row, StoredLane
    from scrapy_bloom.old.frontier.journal import Journal
    from scrapy_bloom.old.frontier.serialize import Serializer

logger = logging.getLogger(__name__)

CACHE_BYTES = 1024 * 1024
"""Memory for rows that are also in the file; past that, lanes forget them and read them again. With 30,000 requests
pending, 8 MiB made the process 8 MB larger, and no pop faster that could be measured."""

READ_ROWS = 64
READ_BYTES = 256 * 1024
"""What a lane reads at once, whichever is reached first."""

MANY_LANES = 64
READ_ROWS_OF_MANY = 4
"""What it reads while so many lanes have rows in memory, where there is not room for more of each. With 1,000 hosts of
200 requests each, 64 at once made a request cost 121 microseconds and not 93."""

AHEAD_LANES = 64
AHEAD_ROWS = 32
"""Lanes of which the next row is read together, of those with so few rows in the file. With very many hosts, every pop
is from another lane. A read for each takes 25 to 40 microseconds, together it is 5."""

_ROW_OVERHEAD = 160  # bytes of Python's objects around a row in a cache
_NEWEST, _OLDEST = 2**63 - 1, -(2**63)


class Intake(Protocol):
    """Where lanes send the requests that are pushed into them."""

    def receive(self, lane: Lane, request: Request) -> None:
        """Take in *request*, which a priority queue has put into *lane*; ValueError if it cannot be serialized."""


class Lanes:
    """All lanes of one frontier.

    Until :meth:`open`, pushes go to *intake*, which recovers the previous run. From then on a push is a new row.
    """

    def __init__(self, journal: Journal, serializer: Serializer, stored: Iterable[StoredLane], intake: Intake) -> None:
        self.journal = journal
        self.serializer = serializer
        self.intake = intake
        self.cached_bytes = 0
        self.unreadable = 0
        self.stored = {lane.name: lane for lane in stored}
        """Lanes with rows in the file that no priority queue has asked for yet, by name."""
        self.upcoming: Callable[[], Iterable[Lane]] = tuple
        """Returns the lanes that are popped from next, as far as is known."""
        self.caching: set[Lane] = set()
        """Lanes with rows in memory: with very many hosts, few."""
        self._lanes: dict[int, Lane] = {}
        self._ahead: dict[int, Row] = {}
        self._ahead_used = 0

    def __len__(self) -> int:
        """Return how many requests wait to be handed out."""
        return sum(map(len, self._lanes.values())) + sum(lane.rows for lane in self.stored.values())

    def open(self) -> None:
        """Begin to take in new requests."""
        self.intake = self

    def receive(self, lane: Lane, request: Request) -> None:
        """Store *request* as the newest of *lane*."""
        body = self.serializer.dumps(request)
        lane.append(self.journal.add(lane.id, body), body)
        self.journal.begin_if_due()

    def enter(self, lane: Lane) -> tuple[int, int]:
        """Return the id of *lane* by its name, and how many rows wait for it in the file."""
        stored = self.stored.pop(lane.name, None)
        lane_id, rows = (self.journal.lane_id(lane.name), 0) if stored is None else (stored.id, stored.rows)
        self._lanes[lane_id] = lane
        return lane_id, rows

    def leave(self, lane: Lane) -> None:
        """Forget *lane*, which is empty or no longer wanted."""
        self.caching.discard(lane)
        self._lanes.pop(lane.id, None)

    def set_aside(self, row_id: int, error: Exception) -> None:
        """Leave a row that cannot be turned into a request in the file for a later run, and log it."""
        self.journal.taken.add(row_id)
        self.unreadable += 1
        log = logger.error if self.unreadable == 1 else logger.debug
        log(
            "A pending request in %s cannot be read: %r. Has its callback or a class in its meta been renamed? It "
            "stays in the job directory and is tried again by the next run; the crawl goes on without it. (Further "
            "ones: debug log)",
            self.journal.database.path,
            error,
        )

    def read(self, lane: Lane, edge: int) -> list[Row]:
        """Return the next rows of *lane* beyond the id *edge*, nearest first; empty if there is none."""
        ahead = self._ahead.pop(lane.id, None)
        if ahead is None and lane.in_file <= AHEAD_ROWS:
            self._read_ahead(lane)
            ahead = self._ahead.pop(lane.id, None)
        if ahead is not None:
            self._ahead_used += 1
            return [ahead]
        database = self.journal.database
        if lane.lifo:  # what is not in the file yet is in its cache
            return self._take(database.newest_before(lane.id, edge))
        return self._take(database.oldest_after(lane.id, edge)) or self._take(self.journal.unwritten(lane.id, edge))

    def trim(self, durable_id: int) -> None:
        """If too much is cached, forget what can be read again: all rows up to *durable_id* are in the file."""
        if self.cached_bytes > CACHE_BYTES:
            self._ahead.clear()  # rows that lanes forget now may have to come before these
            self.caching = {lane for lane in self.caching if not lane.trim(durable_id)}

    def _read_ahead(self, first: Lane) -> None:
        """Read the next row of *first* and of short lanes that come next, at most READ_BYTES of them.

        Twice as many lanes as were of use the last time: a wrong guess costs little. What is read ahead stays pending:
        a lane takes its rows over when it is popped from.
        """
        count = max(2, min(AHEAD_LANES, 2 * self._ahead_used))
        self._ahead_used = 0
        wanted = {first.id: first.lifo}
        likely = {first.likely_next: first.id}
        for lane in islice(self.upcoming(), 4 * count):
            if 0 < lane.in_file <= AHEAD_ROWS:
                wanted[lane.id] = lane.lifo
                likely[lane.likely_next] = lane.id
                if len(wanted) == count:
                    break
        self._ahead = self.journal.database.next_of_each(wanted, likely, self.journal.taken, READ_BYTES)

    def _take(self, found: Iterable[Row]) -> list[Row]:
        rows: list[Row] = []
        size = 0
        taken = self.journal.taken
        most = READ_ROWS if len(self.caching) < MANY_LANES else min(READ_ROWS, READ_ROWS_OF_MANY)
        for row in found:
            if row.id not in taken:
                rows.append(row)
                size += len(row.body)
                if len(rows) == most or size >= READ_BYTES:
                    break
        return rows


class Lane:
    """One plain queue, last-in-first-out or first-in-first-out: a "downstream queue" of Scrapy's priority queues.

    The rows nearest to being popped are in ``_cache``, oldest first; ``_rest`` more are in the file, or in the journal
    on their way there.
    """

    # There may be a hundred thousand, most without rows in memory. Their cache is a list, as a deque takes 760 bytes:
    # with very many hosts nearly every request that is pushed or popped would make and delete one.
    __slots__ = ("_cache", "_edge", "_lanes", "_rest", "id", "lifo", "name")

    def __init__(self, lanes: Lanes, name: str, *, lifo: bool) -> None:
        self.name = name
        self.lifo = lifo
        self.id, self._rest = lanes.enter(self)
        self._lanes = lanes
        self._cache: list[tuple[int, bytes]] | None = None
        self._edge = _NEWEST if lifo else _OLDEST

    def __len__(self) -> int:
        return (len(self._cache) if self._cache else 0) + self._rest

    @property
    def in_file(self) -> int:
        """How many rows a read would find, at most; 0 while there are some in memory, which come before them."""
        return 0 if self._cache else self._rest

    @property
    def likely_next(self) -> int:
        """The id of the next row in the file if it is the nearest one possible.

        It is after :meth:`trim`, and where several rows in a row are of this lane, such as links from one page.
        """
        return self._edge - 1 if self.lifo else self._edge + 1

    def push(self, request: Request) -> None:
        """Take in *request*; ValueError if it cannot be serialized."""
        self._lanes.intake.receive(self, request)

    def pop(self) -> Request | None:
        """Hand out the next request, or None if there is none (or none that can be read)."""
        while (row := self._take()) is not None:
            request = self._load(*row)
            if request is not None:
                self._lanes.journal.hand_out(row[0], self.id, request)
                return request
        return None

    def peek(self) -> Request | None:
        """Return the next request and leave it where it is."""
        while (cache := self._cache or self._keep_all(self._read())) is not None:
            request = self._load(*cache[-1 if self.lifo else 0])
            if request is not None:
                return request
            self._drop(cache)
        return None

    def close(self) -> None:
        """Forget this lane in memory. Scrapy's priority queues close every lane that has become empty."""
        self._lanes.leave(self)

    def append(self, row_id: int, body: bytes) -> None:
        """Add a row that the journal has."""
        if self.lifo or not self._rest:
            self._keep(row_id, body)
        else:
            self._rest += 1

    def adopt(self) -> None:
        """Count one more row that is in the file."""
        self._rest += 1

    def trim(self, durable_id: int) -> bool:
        """Forget the rows that can be read again, and return whether that is all; :class:`Lanes` notes it."""
        cache = self._cache
        if not cache:
            return True
        if not self.lifo:
            self._edge = cache[0][0] - 1
        elif cache[-1][0] <= durable_id:  # nearly always, with very many lanes
            self._edge = cache[-1][0] + 1
        else:
            durable = bisect_right(cache, durable_id, key=itemgetter(0))
            self._edge = cache[durable][0]
            self._forget(cache[:durable])
            del cache[:durable]
            return False
        self._forget(cache)
        self._cache = None
        return True

    def _load(self, row_id: int, body: bytes) -> Request | None:
        """Return the request of a row; None if it cannot be read, which leaves it in the file for a later run."""
        try:
            return self._lanes.serializer.loads(body)
        except Exception as error:  # unpickling runs other people's code
            self._lanes.set_aside(row_id, error)
            return None

    def _take(self) -> tuple[int, bytes] | None:
        """Take the next row out of this lane; None if there is none."""
        cache = self._cache
        if cache is None:
            rows = self._read()
            if len(rows) == 1:  # nearly always, with very many lanes
                return rows[0].id, rows[0].body
            cache = self._keep_all(rows)
        return None if cache is None else self._drop(cache)

    def _keep(self, row_id: int, body: bytes) -> None:
        if self._cache is None:
            self._cache = [(row_id, body)]
            self._lanes.caching.add(self)
        else:
            self._cache.append((row_id, body))
        self._lanes.cached_bytes += len(body) + _ROW_OVERHEAD

    def _drop(self, cache: list[tuple[int, bytes]]) -> tuple[int, bytes]:
        row = cache.pop() if self.lifo else cache.pop(0)
        self._lanes.cached_bytes -= len(row[1]) + _ROW_OVERHEAD
        if not cache:
            self._cache = None
            self._lanes.caching.discard(self)
        return row

    def _forget(self, rows: list[tuple[int, bytes]]) -> None:
        self._rest += len(rows)
        self._lanes.cached_bytes -= _memory_of(rows)

    def _read(self) -> list[Row]:
        """Take the next rows out of the file, nearest first; none if it has none."""
        if not self._rest:
            return []
        rows = self._lanes.read(self, self._edge)
        if not rows:
            raise sqlite3.DatabaseError(f"{self._rest} pending requests of the lane {self.name!r} cannot be found")
        self._edge = rows[-1].id
        self._rest -= len(rows)
        return rows

    def _keep_all(self, rows: list[Row]) -> list[tuple[int, bytes]] | None:
        for row in reversed(rows) if self.lifo else rows:
            self._keep(row.id, row.body)
        return self._cache


def _memory_of(rows: list[tuple[int, bytes]]) -> int:
    if len(rows) == 1:  # nearly always, with very many lanes
        return len(rows[0][1]) + _ROW_OVERHEAD
    return sum([len(body) for _, body in rows]) + _ROW_OVERHEAD * len(rows)


class LaneFactory:
    """The downstream queue class of a Scrapy priority queue: makes lanes of one order in one frontier."""

    def __init__(self, lanes: Lanes, *, lifo: bool) -> None:
        self._lanes = lanes
        self._lifo = lifo

    def from_crawler(self, crawler: Crawler, key: str, *args: Any, **kwargs: Any) -> Lane:  # noqa: ARG002 - Scrapy's call
        """Return the lane that Scrapy calls *key*, with the rows it has in the file."""
        return Lane(self._lanes, key, lifo=self._lifo)
