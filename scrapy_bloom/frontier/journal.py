"""The pending requests in memory: what was pushed, handed out and finished, and the moments at which it is written.

Requests are in lanes, described in ``lanes``. Which lane a request goes to, and which lane is next, is decided by
Scrapy's own priority queue of the installed version; so the order is Scrapy's, whatever it is. This module knows
neither schedulers nor filters nor engines.

A row lives from the push of its request until :meth:`Frontier.finish`, in the file from the first commit in between.
What is pushed and finished between two commits never reaches the file. Everything since the last commit is also in
memory, so a write that fails (disk full) costs nothing but memory and is tried again.
"""

from __future__ import annotations

import logging
import sqlite3
from time import monotonic
from typing import TYPE_CHECKING

from scrapy_bloom.frontier.database import IMPORTED_FIRST_ID, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from scrapy import Request

    from scrapy_bloom.frontier.database import Database
    from scrapy_bloom.frontier.lanes import Lane

logger = logging.getLogger(__name__)

COMMIT_INTERVAL = 1.0
"""Seconds between commits. What was finished since the last one is fetched again after a kill, so short is good; the
crawl stands still for each. At this pace whole crawls spent up to 1 % of their time in commits (local disk)."""

COMMIT_ROWS = 2000
"""A commit comes early once this many rows wait for it: it took 15 to 20 ms then, up to 90."""

CACHE_BYTES = 32 * 1024 * 1024
"""Serialized requests kept in memory over a commit; past that, lanes forget what the file has and read it again."""

READ_ROWS = 64
READ_BYTES = 256 * 1024
"""What a lane reads at once, whichever is reached first."""


class Frontier:
    """All lanes, the requests that were handed out, and what is still to be written to *database*.

    serialize, deserialize  a request to bytes and back; the first raises ValueError for one that cannot be.
    committed               called after each commit that succeeded.

    ``routing`` is None but while rows are being put into lanes at the beginning: then a push does not store its request
    but adds what this function returns to the lane's count.
    """

    def __init__(
        self,
        database: Database,
        serialize: Callable[[Request], bytes],
        deserialize: Callable[[bytes], Request],
        committed: Callable[[], None],
    ) -> None:
        self.database = database
        self.serialize = serialize
        self.deserialize = deserialize
        self.routing: Callable[[Lane, Request], int] | None = None
        self.cached_bytes = 0
        self.unreadable = 0
        self.commits = 0
        self.commit_seconds = 0.0
        self._committed = committed
        self._stored = {lane.key: lane for lane in database.lanes()}
        self._lanes: dict[int, Lane] = {}
        self._last_row_id, self._last_lane_id = database.largest_ids()
        self._new_lanes: dict[str, int] = {}
        self._added: dict[int, tuple[int, bytes]] = {}
        self._finished: list[int] = []
        self._taken: set[int] = set()  # ids of rows that no lane may read again: handed out, finished, unreadable
        self._in_flight: dict[int, tuple[int, Request]] = {}  # by id() of the request, which is kept alive here
        self._in_flight_written: set[int] = set()
        self._failing = False
        self._broken = False
        self._retry_at = 0.0

    def __len__(self) -> int:
        """Return how many requests wait to be handed out."""
        return sum(map(len, self._lanes.values())) + sum(lane.rows for lane in self._stored.values())

    # -- lanes come and go -----------------------------------------------------------------------------------------

    def enter(self, lane: Lane) -> tuple[int, int]:
        """Return the id of *lane* by its key, a new one if need be, and how many rows wait for it in the file."""
        stored = self._stored.pop(lane.key, None)
        if stored:
            lane_id, rows = stored.id, stored.rows
        else:
            known = self._new_lanes.get(lane.key) or self.database.lane_id(lane.key)
            rows = 0
            if known is None:
                self._last_lane_id += 1
                known = self._new_lanes[lane.key] = self._last_lane_id
            lane_id = known
        self._lanes[lane_id] = lane
        return lane_id, rows

    def leave(self, lane: Lane) -> None:
        """Forget *lane*, which is empty or not wanted any more."""
        self._lanes.pop(lane.id, None)

    # -- a request's way ---------------------------------------------------------------------------------------------

    def add(self, lane_id: int, body: bytes) -> int:
        """Note a new row for the next commit and return its id."""
        self._last_row_id += 1
        self._added[self._last_row_id] = (lane_id, body)
        return self._last_row_id

    def hand_out(self, row_id: int, request: Request) -> None:
        """Note that *request*, from row *row_id*, is with the engine now."""
        self._taken.add(row_id)
        self._in_flight[id(request)] = (row_id, request)

    def finish(self, request: Request) -> None:
        """Note for the next commit that *request* is done; nothing happens for one that was not handed out here."""
        row_id, _ = self._in_flight.pop(id(request), (None, None))
        if row_id is None:
            return
        if self._added.pop(row_id, None) is None:
            self._finished.append(row_id)
        else:
            self._taken.discard(row_id)

    def finish_all(self) -> None:
        """Note that every request handed out so far is done."""
        for _, request in list(self._in_flight.values()):
            self.finish(request)

    def set_aside(self, row_id: int, error: Exception) -> None:
        """Keep a row that cannot be turned into a request in the file for a later run, and say so."""
        self._taken.add(row_id)
        self.unreadable += 1
        log = logger.error if self.unreadable == 1 else logger.debug
        log(
            "A pending request in %s cannot be read: %r. Has its callback or a class in its meta been renamed? It "
            "stays in the job directory and is tried again by the next run; the crawl goes on without it. (Further "
            "ones: debug log)",
            self.database.path,
            error,
        )

    def read(self, lane: Lane, edge: int) -> list[Row]:
        """Return the next rows of *lane* beyond the id *edge*, nearest first; empty if there is none."""
        if lane.lifo:
            return self._take(self.database.newest_before(lane.id, edge))
        rows = self._take(self.database.oldest_after(lane.id, edge))
        if not rows and self.commit():
            rows = self._take(self.database.oldest_after(lane.id, edge))
        if not rows:  # the commit failed: what is not in the file is still here
            rows = self._take(Row(i, *row) for i, row in self._added.items() if row[0] == lane.id and i > edge)
        return rows

    def _take(self, found: Iterable[Row]) -> list[Row]:
        rows: list[Row] = []
        size = 0
        for row in found:
            if row.id not in self._taken:
                rows.append(row)
                size += len(row.body)
                if len(rows) == READ_ROWS or size >= READ_BYTES:
                    break
        return rows

    # -- commits -----------------------------------------------------------------------------------------------------

    def commit_if_due(self) -> None:
        """Commit if many rows wait for it."""
        if len(self._added) + len(self._finished) >= COMMIT_ROWS and not self._failing:
            self.commit()

    def tick(self) -> None:
        """Commit; to be called every COMMIT_INTERVAL seconds. After a failure, less often the longer a try takes."""
        if monotonic() >= self._retry_at:
            self.commit()

    def commit(self) -> bool:
        """Write everything since the last commit, in one transaction, and return whether that succeeded.

        A request that is finished is so together with everything that was pushed before: never its end alone.
        """
        if self._broken:
            return False
        in_flight = {row_id for row_id, _ in self._in_flight.values()}
        if not (self._added or self._finished or self._new_lanes or in_flight != self._in_flight_written):
            return True
        began = monotonic()
        try:
            self.database.write(
                lanes=((lane_id, key) for key, lane_id in self._new_lanes.items()),
                added=(Row(row_id, lane_id, body) for row_id, (lane_id, body) in self._added.items()),
                finished=self._finished,
                in_flight=in_flight,
            )
        except sqlite3.Error as error:
            self._retry_at = monotonic() + 10 * (monotonic() - began)
            if not self._failing:
                self._failing = True
                logger.error(  # noqa: TRY400 - the message says all there is
                    "Pending requests cannot be written to %s: %s. The crawl goes on with those in memory, and writing "
                    "is tried again all the time; free some space on the disk, or stop the crawl. If it is killed, it "
                    "resumes from the last commit and fetches again what was done since.",
                    self.database.path,
                    error,
                )
            return False
        if self._failing:
            self._failing = False
            logger.warning("Pending requests are written to %s again", self.database.path)
        self._taken.difference_update(self._finished)
        self._new_lanes.clear()
        self._added.clear()
        self._finished.clear()
        self._in_flight_written = in_flight
        self.commits += 1
        self.commit_seconds += monotonic() - began
        self._committed()
        if self.cached_bytes > CACHE_BYTES:
            for lane in self._lanes.values():
                lane.evict()
            self.cached_bytes = 0
        return True

    def give_up(self) -> None:
        """Commit nothing any more; after a read error, a request could be done durably whose children are lost."""
        self._broken = True

    # -- at the beginning --------------------------------------------------------------------------------------------

    def restore(self, push: Callable[[Request], None]) -> int:
        """Let a Scrapy priority queue, by its *push*, make the lanes that the file has rows for; return the row count.

        One request per lane is enough to lead the priority queue to it, and nothing is stored for that. If it is led
        elsewhere, the rules have changed since (another priority queue, another Scrapy), and all of the lane's
        requests are routed one by one.
        """
        rows = 0
        for stored in list(self._stored.values()):
            rows += stored.rows
            if stored.key in self._stored and not self._leads_to(stored.key, stored.id, push):
                self._stored.pop(stored.key, None)
                self._reroute(stored.id, push)
        return rows

    def _leads_to(self, key: str, lane_id: int, push: Callable[[Request], None]) -> bool:
        for page in self.database.walk(lane_id):
            for row in page:
                try:
                    request = self.deserialize(row.body)
                except Exception:  # noqa: S112 - told when it would be its turn
                    continue
                return key in self._lanes_of(push, request)
        return False

    def _lanes_of(self, push: Callable[[Request], None], request: Request) -> set[str]:
        keys = set()

        def note(lane: Lane, _: Request) -> int:
            keys.add(lane.key)
            return 0

        self._route(note, push, [request])
        return keys

    def _reroute(self, lane_id: int, push: Callable[[Request], None]) -> None:
        for page in self.database.walk(lane_id):
            moves: list[tuple[int, int]] = []
            for row in page:
                try:
                    request = self.deserialize(row.body)
                except Exception as error:  # as in Lane.pop()
                    self.set_aside(row.id, error)
                    continue

                def move(lane: Lane, _: Request, row: Row = row, moves: list[tuple[int, int]] = moves) -> int:
                    if lane.id == row.lane:
                        return 1
                    moves.append((lane.id, row.id))
                    return 1

                self._route(move, push, [request])
            self.database.move(lanes=[(id_, key) for key, id_ in self._new_lanes.items()], rows=moves)
            self._new_lanes.clear()

    def import_requests(self, requests: Iterable[Request], push: Callable[[Request], None]) -> int:
        """Take in *requests*, all or none of them, durably, and return how many.

        They come in the order in which another queue would have handed them out, and come out again in that order:
        after what is here already where lanes are last-in-first-out, before it where they are first-in-first-out.
        """
        up, down = self.database.import_bounds()
        count = 0

        def pages() -> Iterator[tuple[list[tuple[int, str]], list[Row]]]:
            nonlocal count
            rows: list[Row] = []

            def take(lane: Lane, request: Request) -> int:
                nonlocal up, down
                body = self.serialize(request)
                if lane.lifo:
                    rows.append(Row(down, lane.id, body))
                    down -= 1
                else:
                    rows.append(Row(up, lane.id, body))
                    up += 1
                return 1

            for request in requests:
                self._route(take, push, [request])
                count += 1
                if len(rows) >= COMMIT_ROWS:
                    yield self._named_lanes(), rows
                    rows.clear()
            yield self._named_lanes(), rows

        self.database.import_rows(pages())
        assert up < IMPORTED_FIRST_ID // 2  # noqa: S101 - 2**61 requests later
        return count

    def _named_lanes(self) -> list[tuple[int, str]]:
        lanes = [(id_, key) for key, id_ in self._new_lanes.items()]
        self._new_lanes.clear()
        return lanes

    def _route(
        self, routing: Callable[[Lane, Request], int], push: Callable[[Request], None], requests: Iterable[Request]
    ) -> None:
        self.routing = routing
        try:
            for request in requests:
                push(request)
        finally:
            self.routing = None

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> bool:
        """Write what is left, close the file, and return whether all was written."""
        written = self.commit()
        self.database.close(clean=written)
        return written
