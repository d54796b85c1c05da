"""A crawl's memory in its job directory, which survives ``kill -9``: filter, pending requests, and their one commit.

    push, done, add  ->  batch   in memory; what is not committed never was
    commit           ->  feeds are flushed and their lengths noted
                     ->  one transaction in a thread: rows in, rows out, lengths, state, new fingerprints (redo list)
                     ->  the bits of these fingerprints
                     ->  the watermark, in the header of the newest layer

A kill at any point leaves a page pending or done, never seen and lost: after the transaction the redo list sets the
bits again, and before it neither the row nor the fingerprint is in any file, so the parent page, not done either, finds
the page anew. A database that ends below the watermark is an older copy, and is refused.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from scrapy.utils.httpobj import urlparse_cached

from scrapy_bloom.errors import counted
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.filter.directory import open_filter
from scrapy_bloom.job import database, serialize
from scrapy_bloom.job.consistency import check_consistency
from scrapy_bloom.job.database import Batch, Database, LaneRow
from scrapy_bloom.job.frontier import Frontier
from scrapy_bloom.job.memory import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from scrapy import Request, Spider

    from scrapy_bloom.job.database import FeedLength, Figures
    from scrapy_bloom.job.frontier import Lane, Order
    from scrapy_bloom.settings import BloomSettings

logger = logging.getLogger(__name__)

COMMIT_SECONDS = 1.0
"""Time between two commits: after a kill, what was done in it is fetched again."""
COMMIT_ROWS = 4_000
"""Changes after which a commit begins earlier. While one is under way, the crawl waits at this many."""
_RETRY_FACTOR = 10
"""A commit that failed is tried again after so many times the time that it took, and a second at least."""


class Feed(Protocol):
    """A feed exporter whose files are part of the commit."""

    def lengths(self) -> list[FeedLength]:
        """Flush the files, and return how long they are."""


class JobStore:
    """Everything that a job directory remembers.

    Args:
        directory: ``JOBDIR/requests.bloom``; created if missing.
        settings: Capacity, error rate and maximum age of the filter.
        order: The order in which requests are handed out.
        spider: Its name owns the job, and its methods are the callbacks of requests.
        key_space: What makes the fingerprints; None if they are not ours.

    """

    def __init__(
        self,
        directory: Path,
        settings: BloomSettings,
        order: Order,
        spider: Spider,
        key_space: Mapping[str, str] | None,
    ) -> None:
        self.directory = directory
        self.feeds: list[Feed] = []
        self.commits = 0
        self.unreadable = 0
        """Rows that could not be made requests: a callback was renamed, perhaps. They stay for a later run."""
        self._spider = spider
        self._order = order
        self.chain = open_filter(directory, settings.capacity, settings.error_rate, max_age=settings.max_age)
        try:
            self._database = Database(directory / database.NAME)
        except BaseException:
            self.chain.close()
            raise
        self.state = self._database.state
        try:
            check_consistency(self._database, self.chain, spider.name, key_space)
            lanes = self._database.lanes()
        except BaseException:
            self._abandon()
            raise
        self.was_clean = self.state.clean
        self.recovered = 0 if self.was_clean else self.state.pending
        self.began_with = self.state.pending
        """Requests that were pending when the job was opened."""
        self._disk = Frontier(is_lifo=order.is_lifo, read=self._read)
        self._memory = Frontier(is_lifo=order.is_lifo, active=self._disk.active)
        self._disk.restore(lanes)
        self._in_flight: dict[int, tuple[str, int, int, Request]] = {}  # by id() of the request: slot, lane, row
        self._batch, self._sealed = Batch(), Batch()
        self._lanes: dict[int, Lane] = {}  # of the batch, by id
        self._sealed_lanes: dict[int, Lane] = {}
        self._unsaved: ScalableBloomFilter | None = None  # fingerprints of requests that are in memory alone
        self._last_id = self.state.last_id
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scrapy-bloom-commit")
        self._writing: Future[None] | None = None
        self._began = time.monotonic()
        self._retry_at = 0.0
        self._is_failing = False
        self.lacks_pending = self._replay_redo() and self.began_with > 0
        """Whether the filter is older than the database: links would queue what is pending once more."""
        self.state = replace(
            self.state,
            spider=spider.name,
            filter=self.chain.chain_id,
            key_space=key_space or self.state.key_space,
            runs=self.state.runs + 1,
            cycle=self.state.cycle + (not self.began_with),
            clean=False,
        )
        self._begin()

    def __len__(self) -> int:
        return len(self._disk) + len(self._memory)

    # -- opening -----------------------------------------------------------------------------------------------------

    def _replay_redo(self) -> bool:
        """Set the bits of commits that the filter may not have; return whether the filter is older than these, too."""
        redo = self._database.redo()
        lacks = self.chain.watermark < (redo[0][0] if redo else self.state.last_id)
        for _, fingerprints in redo:
            for fingerprint in fingerprints:
                self.chain.add(fingerprint)
        if not lacks:
            self.chain.watermark = self.state.last_id
        return lacks

    def show_pending(self, fingerprint: Callable[[Request], bytes]) -> int:
        """Add the fingerprints of all pending requests to the filter, and return how many were new to it."""
        added = 0
        for body in self._database.bodies():
            with suppress(Exception):  # an unreadable request, or one without a fingerprint, stays pending
                added += self.chain.add(fingerprint(serialize.loads(body, self._spider)))
        self.chain.watermark = self.state.last_id
        return added

    def cut_feeds(self) -> None:
        """Cut the feed files to their lengths at the last commit: what comes after is of pages that were not done."""
        for feed in self._database.feeds():
            try:
                length = Path(feed.path).stat().st_size
                if length > feed.length:
                    os.truncate(feed.path, feed.length)
            except OSError:
                length = 0
            if length < feed.length:
                missed = feed.length - length
                logger.warning(
                    "%s has %s fewer than this job has written to it; their items are not written again",
                    feed.path,
                    counted(missed, "byte"),
                )

    def feed(self, path: str) -> FeedLength | None:
        """Return how long the feed file *path* was at the last commit; None if the job has not written to it."""
        return next((feed for feed in self._database.feeds() if feed.path == path), None)

    def _read(self, lane: Lane, most: int) -> list[tuple[int, bytes]]:
        return self._database.rows(lane.id, lane.edge, newest_first=lane.is_lifo, most=most)

    # -- a request's way ---------------------------------------------------------------------------------------------

    def add(self, fingerprint: bytes) -> bool:
        """Remember *fingerprint* with the next commit. Return True if it was new."""
        if self._knows(fingerprint):
            return False
        self._batch.fingerprints[fingerprint] = None
        return True

    def seen(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether it was added before. Remembers nothing."""
        return [self._knows(each) for each in fingerprints]

    def _knows(self, fingerprint: bytes) -> bool:
        return (
            fingerprint in self._batch.fingerprints
            or fingerprint in self._sealed.fingerprints
            or fingerprint in self.chain
            or (self._unsaved is not None and fingerprint in self._unsaved)
        )

    def forget(self, fingerprint: bytes) -> bool:
        """Take *fingerprint* back, durably. Return False if it was not known."""
        if self._batch.fingerprints.pop(fingerprint, fingerprint) is None:
            return True
        if fingerprint in self._sealed.fingerprints:
            self._wait()
        return self.chain.forget(fingerprint)

    def push(self, request: Request, fingerprint: bytes | None) -> bool:
        """Take in *request*, and return whether the next commit makes it durable.

        A request that cannot be serialized stays in memory, and its *fingerprint* with it: in the files it would
        outlive the request, and the page would be lost.
        """
        key = key_of(request, self._order)
        self._last_id += 1
        try:
            body = serialize.dumps(request, self._spider)
        except ValueError as error:
            self._memory.push(key, self._last_id, request)
            self._keep_unsaved(request, fingerprint, error)
            return False
        lane = self._disk.push(key, self._last_id, body)
        self._lanes[lane.id] = lane
        self._batch.added[self._last_id] = (lane.id, body)
        if len(self._batch) >= COMMIT_ROWS and time.monotonic() >= self._retry_at:
            self._wait()
            self._begin()
        return True

    def _keep_unsaved(self, request: Request, fingerprint: bytes | None, error: ValueError) -> None:
        if self._unsaved is None:
            self._unsaved = ScalableBloomFilter(10_000, 1e-6)
            logger.warning("%s cannot be serialized (%s): it is in memory, and lost if the crawl ends", request, error)
        if fingerprint is not None and self._batch.fingerprints.pop(fingerprint, fingerprint) is None:
            self._unsaved.add(fingerprint)

    def pop(self) -> Request | None:
        """Return the next request, of those in memory alone first as in Scrapy; None if nothing is pending.

        Raises:
            DamagedError: The database is damaged.

        """
        if len(self._memory) and (found := self._memory.pop()):
            lane, _, request = found
            self._in_flight[id(request)] = (lane.key.slot, 0, 0, request)
            return request  # type: ignore[no-any-return] # an entry holds whatever was pushed
        while (found := self._disk.pop()) is not None:
            lane, id_, body = found
            self._disk.taken.add(id_)
            try:
                request = serialize.loads(body, self._spider)
            except Exception:  # whatever unpickling or the user's classes raise
                self._disk.done(lane.key.slot)
                self.unreadable += 1
                if self.unreadable == 1:
                    logger.exception("A pending request of %s cannot be read; a later run tries again", lane.key.slot)
                continue
            self._in_flight[id(request)] = (lane.key.slot, lane.id, id_, request)
            return request
        return None

    def done(self, request: Request) -> None:
        """Note that the engine is done with *request*: its row goes with the next commit."""
        slot, lane, id_, _ = self._in_flight.pop(id(request), (None, 0, 0, None))
        if slot is None:
            return
        self._disk.done(slot)
        if id_ and self._batch.added.pop(id_, None) is None:
            self._batch.done.append((lane, id_))
        else:
            self._disk.taken.discard(id_)

    def is_handling(self, request: Request) -> bool:
        """Return whether *request* was handed out and is not done."""
        return id(request) in self._in_flight

    # -- commits -----------------------------------------------------------------------------------------------------

    def note(self, key: str, value: bytes) -> None:
        """Write *value* with the next commit, to be read by :meth:`noted` in a later run."""
        self._batch.notes[key] = value

    def noted(self, key: str) -> bytes | None:
        """Return what an earlier run noted under *key*."""
        return self._database.note(key)

    def note_figures(self, figures: Figures) -> None:
        """Write *figures* with the next commit."""
        self._batch.figures.append(figures)

    def last_figures(self) -> Figures | None:
        """Return the figures that an earlier run noted last."""
        return self._database.last_figures()

    def note_failed(self, request: Request, reason: str) -> None:
        """Write with the next commit that *request* has failed for good, and why."""
        with suppress(ValueError):  # it cannot be serialized, and so not be queued again
            body = serialize.dumps(request, self._spider)
            host = urlparse_cached(request).hostname or ""
            self._batch.failed.append((request.url, host, reason, time.time(), body))

    def commit(self) -> None:
        """Begin a commit if one is due, and end the last one if its transaction is written. Never waits.

        Raises:
            DamagedError: The database is damaged.

        """
        self._collect()
        if self._writing is None and time.monotonic() >= max(self._began + COMMIT_SECONDS, self._retry_at):
            self._begin()

    def _begin(self) -> None:
        if self._writing is not None:
            return
        state = replace(self.state, last_id=self._last_id, in_flight=len(self._in_flight))
        if self._batch.is_empty() and state == self.state:
            return
        self._began = time.monotonic()
        self._sealed, self._batch = self._batch, Batch()
        self._sealed_lanes, self._lanes = self._lanes, {}
        self._sealed.lanes = {lane.id: LaneRow(lane.id, *lane.key, 0) for lane in self._sealed_lanes.values()}
        self._sealed.state = self.state = state
        for feed in self.feeds:
            self._sealed.feeds += feed.lengths()
        self._writing = self._thread.submit(self._database.write, self._sealed, redo_until=self.chain.synced)

    def _wait(self) -> None:
        """Wait for the transaction under way, and end its commit."""
        if self._writing is not None:
            self._writing.exception()
            self._collect()

    def _collect(self) -> None:
        """If the transaction is written, set its bits, and then the watermark."""
        if self._writing is None or not self._writing.done():
            return
        error, self._writing = self._writing.exception(), None
        batch, self._sealed = self._sealed, Batch()
        if error is not None:
            self._take_back(batch)
            self._explain(error)
            return
        if self._is_failing:
            self._is_failing = False
            logger.warning("Pending requests are written to %s again", self.directory)
        for fingerprint in batch.fingerprints:
            self.chain.add(fingerprint)
        self.chain.watermark = batch.state.last_id
        self._disk.taken.difference_update(id_ for _, id_ in batch.done)
        for lane in self._sealed_lanes.values():
            lane.written(batch.state.last_id)
        self.commits += 1

    def _take_back(self, batch: Batch) -> None:
        """Put what could not be written in front of what came since."""
        since, self._batch = self._batch, batch
        self._lanes = self._sealed_lanes | self._lanes
        batch.feeds = []
        batch.added.update(since.added)
        batch.fingerprints.update(since.fingerprints)
        batch.notes.update(since.notes)
        batch.failed += since.failed
        batch.figures += since.figures
        for lane, id_ in since.done:
            if batch.added.pop(id_, None) is None:
                batch.done.append((lane, id_))
            else:
                self._disk.taken.discard(id_)

    def _explain(self, error: BaseException) -> None:
        if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.OperationalError):
            raise database.damaged(self._database.path, error)
        if not isinstance(error, (sqlite3.OperationalError, OSError)):
            raise error
        self._retry_at = time.monotonic() + max(1.0, _RETRY_FACTOR * (time.monotonic() - self._began))
        if not self._is_failing:
            self._is_failing = True
            logger.error(
                "Pending requests cannot be written to %s: %s. The crawl goes on with those in memory, and tries "
                "again; free some space on the disk, or stop the crawl. After a kill it resumes from the last commit.",
                self.directory,
                error,
            )

    def close(self) -> None:
        """Write what is left, and close the files. What cannot be written is said, and fetched again."""
        self._wait()
        self._began = time.monotonic()
        self._begin()
        self._wait()
        is_written = self._batch.is_empty()
        self._thread.shutdown()
        self.chain.close()
        if is_written:
            self._database.write(Batch(state=replace(self.state, in_flight=0, clean=True)), redo_until=self._last_id)
        else:
            logger.error("The last pending requests are not in %s: the next run fetches pages again", self.directory)
        if self._memory:
            count = counted(len(self._memory), "pending request")
            logger.warning("%s could not be serialized, existed in memory only, and will be lost with this stop", count)
        self._database.close()

    def _abandon(self) -> None:
        self._database.close()
        self.chain.close()
