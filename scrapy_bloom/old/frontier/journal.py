"""Collects what was pushed, handed out and finished since the last commit, and decides when it is written.

Knows rows, the lane of each, and a database. Does not know what a lane is, which row is next, schedulers or filters.

A row lives from :meth:`Journal.add` to :meth:`Journal.finish`, and is in the file from the first commit in between. A
row added and finished between two commits never reaches the file. A commit takes everything as one batch, and a thread
writes it while the crawl goes on and the next batch gathers. Until a batch is durable it is also in memory, so a write
that fails (disk full) costs nothing but memory and is tried again.
"""

from __future__ import annotations

import logging
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING

from scrapy_bloom.old.frontier.database import Batch, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from scrapy import Request

    from scrapy_bloom.old.frontier.database import Database

logger = logging.getLogger(__name__)

COMMIT_INTERVAL = 1.0
"""Seconds from the beginning of a commit to the next. After a kill, what was finished since is fetched again."""

TICK_INTERVAL = 0.2
"""Seconds between calls of :meth:`Journal.tick`: at most so long goes a durable batch unnoticed."""

COMMIT_ROWS = 4000
"""A commit begins early once this many rows wait for it. With 100,000 hosts each commit writes most pages of the index:
at 2,000 rows a request takes 105 microseconds, at 4,000 to 16,000 it takes 100."""


class Journal:
    """The requests that were handed out, and what is still to be written to *database*.

    Args:
        database: Where it is written.
        last_id: The largest id ever given to a row.
        last_lane_id: The same for lanes.
        begun: Called when a batch is taken; what comes later is not in it.
        committed: Called when a batch is durable, with the largest id given before it was taken.
        damaged: Called once if the file turns out to be damaged; after that nothing is written.

    """

    def __init__(
        self,
        database: Database,
        *,
        last_id: int,
        last_lane_id: int,
        begun: Callable[[], None],
        committed: Callable[[int], None],
        damaged: Callable[[sqlite3.Error], None],
    ) -> None:
        self.database = database
        self.last_id = last_id
        self.commits = 0
        self.commit_seconds = 0.0
        """Seconds that the crawl stood still for commits."""
        self.taken: set[int] = set()
        """Ids of rows in the file that nobody may read again: handed out, finished, unreadable."""
        self._last_lane_id = last_lane_id
        self._begun = begun
        self._committed = committed
        self._damaged = damaged
        self._new_lanes: dict[str, int] = {}
        self._added: dict[int, tuple[int, bytes]] = {}
        self._finished: list[tuple[int, int]] = []
        self._in_flight: dict[int, tuple[int, int, Request]] = {}  # by id() of the request, kept alive here
        self._written: tuple[int, int] | None = None  # requests in flight and largest id at the last commit
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scrapy-bloom-frontier")
        self._batch: Batch | None = None
        self._writing: Future[None] | None = None
        self._begun_at = monotonic()
        self._retry_at = 0.0
        self._failing = False
        self._broken = False

    # -- a request's way ---------------------------------------------------------------------------------------------

    def lane_id(self, name: str) -> int:
        """Return the id of the lane *name*, a new one if it has none yet."""
        known = self._new_lanes.get(name)
        if known is None and self._batch is not None:
            known = self._batch.lanes.get(name)
        if known is None:
            known = self.database.lane_id(name)
        if known is None:
            self._last_lane_id += 1
            known = self._new_lanes[name] = self._last_lane_id
        return known

    def named_lanes(self) -> dict[str, int]:
        """Return the ids of the new lanes and forget them: the caller writes them."""
        lanes, self._new_lanes = self._new_lanes, {}
        return lanes

    def add(self, lane_id: int, body: bytes) -> int:
        """Note a new row for the next commit and return its id."""
        self.last_id += 1
        self._added[self.last_id] = (lane_id, body)
        return self.last_id

    def hand_out(self, row_id: int, lane_id: int, request: Request) -> None:
        """Note that *request*, from row *row_id*, is with the engine now."""
        self.taken.add(row_id)
        self._in_flight[id(request)] = (row_id, lane_id, request)

    def finish(self, request: Request) -> None:
        """Note for the next commit that *request* is done. Does nothing if it was not handed out here."""
        found = self._in_flight.pop(id(request), None)
        if found is None:
            return
        row_id, lane_id, _ = found
        if self._added.pop(row_id, None) is None:
            self._finished.append((row_id, lane_id))
        else:
            self.taken.discard(row_id)

    def finish_all(self) -> None:
        """Note that every request handed out so far is done."""
        for _, _, request in list(self._in_flight.values()):
            self.finish(request)

    def unwritten(self, lane_id: int, after: int) -> Iterator[Row]:
        """Yield the rows of a lane with ids over *after* that the file may not have yet, oldest first."""
        for added in ({} if self._batch is None else self._batch.added, self._added):
            for row_id, (lane, body) in added.items():
                if lane == lane_id and row_id > after and row_id not in self.taken:
                    yield Row(row_id, lane, body)

    # -- commits -----------------------------------------------------------------------------------------------------

    def begin_if_due(self) -> None:
        """Begin a commit if many rows wait for it."""
        if len(self._added) + len(self._finished) >= COMMIT_ROWS and not self._failing:
            self.poll()
            if self._writing is None:  # with very many hosts a write takes longer than this many rows take to come
                self._begin()

    def tick(self) -> None:
        """Do what is due; call it every TICK_INTERVAL. After a failure, slow attempts are repeated less often."""
        self.poll()
        now = monotonic()
        if now >= self._begun_at + COMMIT_INTERVAL and now >= self._retry_at:
            self._begin()

    def poll(self) -> None:
        """If the thread has written the batch, report it as durable; if writing failed, take the batch back."""
        if self._writing is not None and self._writing.done():
            self._end()

    def commit(self) -> bool:
        """Write everything since the last commit, wait for it, and return whether that succeeded."""
        began = monotonic()
        if self._writing is not None:
            self._wait()
        if self._begin():
            self._wait()
        self.commit_seconds += monotonic() - began
        return not (self._added or self._finished or self._new_lanes or self._broken)

    def give_up(self) -> None:
        """Stop committing: after a read error, a page could be durably done while its links are lost."""
        self._broken = True

    def close(self) -> bool:
        """Write what is left, close the file, and return whether all was written."""
        written = self.commit()
        self._thread.shutdown()
        self.database.close(clean=written)
        return written

    def _begin(self) -> bool:
        if self._broken or self._writing is not None:
            return False
        now = (len(self._in_flight), self.last_id)
        if not (self._added or self._finished or self._new_lanes or now != self._written):
            return False
        self._begun_at = monotonic()
        self._batch = Batch(self._new_lanes, self._added, self._finished, *now)
        self._new_lanes, self._added, self._finished = {}, {}, []
        self._begun()
        self._writing = self._thread.submit(self.database.write, self._batch)
        return True

    def _wait(self) -> None:
        assert self._writing is not None  # noqa: S101 - the callers have checked
        self._writing.exception()
        self._end()

    def _end(self) -> None:
        assert self._writing is not None  # noqa: S101 - likewise
        assert self._batch is not None  # noqa: S101 - likewise
        began = monotonic()
        error = self._writing.exception()
        batch, self._batch, self._writing = self._batch, None, None
        if error is not None:
            self._take_back(batch)
            self._explain(error)
            return
        if self._failing:
            self._failing = False
            logger.warning("Pending requests are written to %s again", self.database.path)
        self.taken.difference_update(row_id for row_id, _ in batch.finished)
        self._written = (batch.in_flight, batch.last_id)
        self.commits += 1
        self._committed(batch.last_id)
        self.commit_seconds += monotonic() - began

    def _take_back(self, batch: Batch) -> None:
        """Put the batch that could not be written in front of what came since."""
        batch.lanes.update(self._new_lanes)
        batch.added.update(self._added)
        self._new_lanes, self._added = batch.lanes, batch.added
        since, self._finished = self._finished, batch.finished
        for row_id, lane_id in since:
            if self._added.pop(row_id, None) is None:
                self._finished.append((row_id, lane_id))
            else:
                self.taken.discard(row_id)

    def _explain(self, error: BaseException) -> None:
        if not isinstance(error, sqlite3.Error):
            raise error
        if not isinstance(error, sqlite3.OperationalError):
            self._broken = True
            self._damaged(error)
            return
        self._retry_at = monotonic() + 10 * (monotonic() - self._begun_at)
        if not self._failing:
            self._failing = True
            logger.error(
                "Pending requests cannot be written to %s: %s. The crawl goes on with those in memory, and keeps "
                "trying to write; free some space on the disk, or stop the crawl. If it is killed, it resumes from "
                "the last commit and fetches again what was done since.",
                self.database.path,
                error,
            )
