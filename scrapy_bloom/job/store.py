"""A crawl's memory in its job directory, which survives ``kill -9``: filter, pending requests, and their one commit.

    push, done, add  ->  batch   in memory; a kill forgets it as if it had not happened
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
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from scrapy_bloom.errors import counted
from scrapy_bloom.filter.directory import open_filter
from scrapy_bloom.frontier import serialize
from scrapy_bloom.frontier.lanes import Frontier
from scrapy_bloom.frontier.memory_store import MemoryStore
from scrapy_bloom.frontier.order import key_of
from scrapy_bloom.frontier.page import Page, Row, State
from scrapy_bloom.frontier.pages_per_host import PagesPerHost
from scrapy_bloom.job.consistency import check_consistency, replay_redo
from scrapy_bloom.job.database import NAME, Database, damaged
from scrapy_bloom.job.feedfile import AppendLog, repair_feeds
from scrapy_bloom.job.open_pages import OpenPages
from scrapy_bloom.job.records import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from scrapy import Request, Spider

    from scrapy_bloom.frontier.lanes import Lane
    from scrapy_bloom.frontier.order import Order
    from scrapy_bloom.job.records import FeedLength
    from scrapy_bloom.loops.share import Mark, Share
    from scrapy_bloom.settings import BloomSettings

logger = logging.getLogger(__name__)

COMMIT_SECONDS = 1.0
"""Time between two commits: after a kill, what was done in it is fetched again."""
COMMIT_ROWS = 4_000
"""Changes after which a commit begins earlier. While one is under way, the crawl waits at this many."""
_RETRY_FACTOR = 10
"""A commit that failed is tried again after so many times the time that it took, and a second at least."""


class JobStore(MemoryStore):
    """Everything that a job directory remembers. Nothing is handed out before :meth:`begin`.

    Args:
        directory: ``JOBDIR/requests.bloom``; created if missing.
        settings: Capacity, error rate and maximum age of the filter; pages per host.
        order: The order in which requests are handed out.
        spider: Its methods are the callbacks of requests; None if a filter is used without a crawl.
        spider_name: It owns the job.
        key_space: What makes the fingerprints; None if they are not ours.
        prepare: Called before each commit with its batch, to add feeds, notes and figures of that moment.
        share: Shares the crawl among kinds of URLs, within that order; None: nothing does.

    Raises:
        BloomError: The job is in use, damaged, another spider's, or its parts are of different moments. Later on,
            whatever reads or commits raises DamagedError if the database is damaged.

    """

    commits: int = 0

    def __init__(
        self,
        directory: Path,
        settings: BloomSettings,
        order: Order,
        *,
        spider: Spider | None,
        spider_name: str,
        key_space: Mapping[str, str] | None,
        prepare: Callable[[Batch], None],
        share: Share | None = None,
    ) -> None:
        self.directory = directory
        self.filters = ExitStack()
        """Closes all filters of the directory."""
        self.is_resumed = False
        """Whether an earlier run began what this one goes on with. Known from :meth:`begin` on."""
        self.feeds: list[FeedLength] = []
        """The feed files, as the last run left them."""
        self.appends = AppendLog(directory / "appended")
        self.unreadable = 0
        """Rows that could not be made requests: a callback was renamed, perhaps. They stay for a later run."""
        self._share = share
        self._spider, self._spider_name, self._key_space = spider, spider_name, key_space
        self._prepare = prepare
        self.after_commit: list[Callable[[], None]] = []
        """Called when a transaction is written."""
        pages = PagesPerHost.of(settings.pages_per_host, order)
        chain = open_filter(directory, settings.capacity, settings.error_rate, max_age=settings.max_age)
        self.filters.callback(chain.close)
        super().__init__(chain, order, share, pages)
        self.where = f"in {directory}"
        try:
            self.database = Database(directory / NAME)
            self.state = self.database.state
            """As the last run left it; from :meth:`begin` on, as the next commit writes it."""
            check_consistency(self.database, self.chain, spider_name, key_space)
            self.lacks_pending = replay_redo(self.database, self.chain) and self.state.pending > 0
            """Whether the filter is older than the database: links would queue what is pending once more."""
        except BaseException:
            self.abandon()
            raise
        self.add: Callable[[bytes], bool] = self._add
        self._contains = self.chain.contains
        lifo, paused = order.is_lifo, self.paused
        self.frontier = Frontier(is_lifo=lifo, read=self._read, share=share, pages=pages, paused=paused)
        self.durable = self.frontier
        self._has_logged_memory = False
        # Without a share and pages per host: what it left would be lost.
        self.in_memory = Frontier(is_lifo=lifo, active=self.frontier.active, paused=paused)
        self._open_pages = OpenPages(self.frontier)
        self._batch, self._writing_batch = Batch(), Batch()
        self._unsaved = self._open_pages.unsaved
        self._last_id = self.state.last_id
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scrapy-bloom-commit")
        self._writing: Future[None] | None = None
        self._began = self._retry_at = 0.0
        self._is_left = self._is_failing = False  # whether the last batch could not be written

    def begin(self, *, writes_at_once: bool) -> None:
        """Take in the pending requests, and note that a run has begun.

        With *writes_at_once*, fingerprints go into the filter as they come, because another scheduler keeps their
        requests.
        """
        if writes_at_once:
            self.add = self.chain.add
        if self._share is not None:
            self._share.load(self.database.notes("kind"))
        if self.pages is not None:
            self.pages.counts.update(self.database.pages())
        self.frontier.restore(self.database.lanes())
        self.paused.restore(self.database.notes("state"))
        self.feeds = repair_feeds(self.database, self.directory.parent.absolute(), self.appends)
        self._batch.feeds += self.feeds
        before = self.database.state
        self.was_clean, self.is_resumed = before.clean, not before.is_finished
        self.state = replace(
            before.next_run(),
            spider=self._spider_name,
            filter=self.chain.chain_id,
            key_space=self._key_space or before.key_space,
            pages_per_host=None if self.pages is None else self.pages.limits,
        )
        self._begin_commit()
        self._wait()

    def __len__(self) -> int:
        return self.frontier.size + self.in_memory.size

    def is_over(self) -> bool:
        """Return whether all that is pending is left for a later run."""
        return not self.in_memory.size and self.frontier.is_over()

    def _read(self, lane: Lane, most: int) -> list[tuple[int, bytes]]:
        return self.database.rows(lane.id, *lane.unread(), newest_first=lane.is_lifo, most=most)

    # -- a request's way ---------------------------------------------------------------------------------------------

    def _add(self, fingerprint: bytes) -> bool:
        """Remember *fingerprint* with the next commit. Return True if it was new."""
        if (
            fingerprint in self._batch.fingerprints
            or fingerprint in self._writing_batch.fingerprints
            or self._contains(fingerprint)
            or fingerprint in self._unsaved
        ):
            return False
        self._batch.fingerprints[fingerprint] = None
        return True

    def seen(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether it was added before. Remembers nothing."""
        waiting, writing, unsaved = self._batch.fingerprints, self._writing_batch.fingerprints, self._unsaved
        return [each in waiting or each in writing or each in self.chain or each in unsaved for each in fingerprints]

    def forget(self, fingerprint: bytes) -> bool:
        """Take *fingerprint* back, durably. Return False if it was not known."""
        if fingerprint in self._writing_batch.fingerprints:
            self._wait()
        batches = (self._batch, self._writing_batch)
        is_waiting = [batch.fingerprints.pop(fingerprint, fingerprint) is None for batch in batches]
        unsaved = self._unsaved.pop(fingerprint, None)
        if unsaved is not None:
            unsaved.fingerprint = None
        return self.chain.forget(fingerprint) or unsaved is not None or any(is_waiting)

    def push(
        self, request: Request, fingerprint: bytes | None, parent: Page | None = None, mark: Mark | None = None
    ) -> bool:
        """Take in *request*, and return whether a commit makes it durable.

        A request that cannot be serialized stays in memory, and its *fingerprint* with it: in the files it would
        outlive the request, and the page would be lost.
        """
        try:
            body = serialize.dumps(request, self._spider, mark)
        except ValueError as error:
            self._keep_in_memory(Page(request, "", mark=mark), fingerprint, parent, error)
            return False
        self._last_id += 1
        lane = self.frontier.push(key_of(request, self._order, mark), self._last_id, body)
        if fingerprint is None and self._open_pages.hold(parent, self._last_id, lane, body):
            return True
        self._batch.lanes[lane.id] = lane
        self._batch.added[self._last_id] = (lane.id, body)
        if len(self._batch.added) + len(self._batch.done) >= COMMIT_ROWS and time.monotonic() >= self._retry_at:
            self._wait()
            self._begin_commit()
        return True

    def _keep_in_memory(self, page: Page, fingerprint: bytes | None, parent: Page | None, error: ValueError) -> None:
        if not self._has_logged_memory:
            self._has_logged_memory = True
            logger.warning(
                "%s cannot be serialized (%s): it is in memory only. If the crawl ends before it is done, the page "
                "that led to it is fetched again",
                page.request,
                error,
            )
        if fingerprint is not None and self._batch.fingerprints.pop(fingerprint, fingerprint) is None:
            self._unsaved[fingerprint] = page
            page.fingerprint = fingerprint
        key = key_of(page.request, self._order, page.mark)
        page.slot = key.slot
        self._last_id += 1
        self.in_memory.push(key, self._last_id, page)
        # If nobody knows which page led to it, each page in progress may have.
        self._open_pages.wait_for(page, self.in_flight.values() if parent is None else [parent])

    def pop(self) -> tuple[Request, bool] | None:
        """Return the next request, those in memory first as in Scrapy, and whether it survives the process; or None."""
        if self.in_memory.size and (popped := self.in_memory.pop()) is not None:
            page: Page = popped[2]
            self.in_flight[id(page.request)] = page
            return page.request, False
        while (popped := self.frontier.pop()) is not None:
            lane, id_, body = popped
            self.frontier.taken.add(id_)
            try:
                request, mark = serialize.loads(body, self._spider)
            except Exception:  # whatever unpickling or the user's classes raise
                self.frontier.done(lane.key.slot, is_page=False)
                self.unreadable += 1
                if self.unreadable == 1:
                    logger.exception("A pending request of %s cannot be read; a later run tries again", lane.key.slot)
                continue
            page = self.in_flight[id(request)] = Page(request, lane.key.slot, Row(lane.id, id_), mark)
            if (holder := self._open_pages.holders.get(id_)) is not None:
                page.parents = (holder,)
            return request, True
        return None

    def done(self, page: Page) -> None:
        """Note that the engine is done with *page*: its row goes with the commit that has all that depends on it."""
        del self.in_flight[id(page.request)]
        self.frontier.done(page.slot, is_page=page.result.has_answer)
        if page.row is None or page.parents or page in self._open_pages.waited_for:
            self._open_pages.done(page, self._batch)
            return
        if page.items:
            page.write_items()
        page.state = State.COMMITTED  # the usual page, without further calls: they would take 2 us
        if self._batch.added.pop(page.row.id, None) is None:
            self._batch.done.append(page.row)
        else:
            self.frontier.taken.discard(page.row.id)

    # -- commits -----------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Begin a commit if one is due, and end the last one if its transaction is written. Never waits."""
        self._collect()
        if self._writing is None and time.monotonic() >= max(self._began + COMMIT_SECONDS, self._retry_at):
            self._begin_commit()

    def _begin_commit(self) -> None:
        if self._writing is not None:
            return
        self._began = time.monotonic()
        if not self._is_left:
            self._open_pages.commit_in_parts(self.in_flight.values(), self._batch)
            try:
                self._prepare(self._batch)
            except OSError as error:  # a feed has no room
                self._explain(error)
                return
            if self._share is not None:
                self._batch.note("kind", self._share.changed())
            self._batch.note("state", self.paused.changed())
            state = replace(self.state, last_id=self._last_id, in_flight=len(self.in_flight))
            if self._batch.is_empty() and self.commits and state == self.state:
                return
            self._writing_batch, self._batch = self._batch, Batch()
            self._writing_batch.state = self.state = state
        self._writing = self._thread.submit(self.database.write, self._writing_batch, redo_until=self.chain.synced)

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
        self._is_left = error is not None
        if error is not None:
            self._explain(error)
            return
        batch, self._writing_batch = self._writing_batch, Batch()
        if self._is_failing:
            self._is_failing = False
            logger.warning("Pending requests are written to %s again", self.directory)
        for fingerprint in batch.fingerprints:
            self.chain.add(fingerprint)
        self.chain.watermark = batch.state.last_id
        self.frontier.taken.difference_update(id_ for _, id_ in batch.done)
        self.frontier.written(batch.lanes.values(), batch.state.last_id, batch.added)
        self.commits += 1
        for call in self.after_commit:
            call()

    def _explain(self, error: BaseException) -> None:
        if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.OperationalError):
            raise damaged(self.database.path, error)
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

    def flush(self) -> None:
        """Commit what is left, and wait until it is written."""
        self._wait()
        for _ in range(2):  # first what could not be written before, if there is such
            self._begin_commit()
            self._wait()

    def close(self) -> None:
        """Write what is left, and close the files. What cannot be written is said, and fetched again."""
        self.flush()
        self._thread.shutdown()
        self.filters.close()
        if self._batch.is_empty() and not self._is_failing:
            with suppress(sqlite3.OperationalError):  # the disk is full now
                closed = replace(self.state, in_flight=0, clean=True, finish_reason=self.finish_reason)
                self.database.write(Batch(state=closed), redo_until=self._last_id)
        if not self.database.state.clean:
            logger.error("The last pending requests are not in %s: the next run fetches pages again", self.directory)
        if self.in_memory.size:
            logger.warning(
                "%s could not be serialized and existed in memory only. %s that led to them are fetched again by the "
                "next run",
                counted(self.in_memory.size, "pending request"),
                counted(self._open_pages.waiting(), "page"),
            )
        self.database.close()

    def abandon(self) -> None:
        """Close the files of a crawl that does not begin, and change nothing."""
        with suppress(AttributeError):  # it could not be opened
            self.database.close()
        self.filters.close()
