"""The commits of a job, one after the other: what has changed is collected while the last transaction is written.

    begin     a batch is complete: feeds are flushed, and their lengths noted
              one transaction in a thread: rows in, rows out, lengths, state, new fingerprints (redo list)
    end       the bits of these fingerprints
              the watermark, in the header of the newest layer

A kill at any point leaves a page pending or done, never seen and lost: after the transaction the redo list sets the
bits again, and before it neither the row nor the fingerprint is in any file, so the parent page, not done either, finds
the page anew. A database that ends below the watermark is an older copy, and is refused.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from scrapy_bloom.frontier.page import Page, State, check, done, lead_to_memory, split
from scrapy_bloom.job.database import damaged
from scrapy_bloom.job.records import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from scrapy_bloom.filter.chain import ScalableBloomFilter
    from scrapy_bloom.frontier.lanes import Frontier, Lane
    from scrapy_bloom.job.database import Database
    from scrapy_bloom.job.records import JobState

logger = logging.getLogger(__name__)

COMMIT_SECONDS = 1.0
"""Time between two commits: after a kill, what was done in it is fetched again."""
COMMIT_ROWS = 4_000
"""Changes after which a commit begins earlier. While one is under way, the crawl waits at this many."""
LONGEST_SECONDS = 30.0
"""Seconds that requests and done pages wait for the page that led to them. Then they are committed without it."""
MOST_ENTRIES = 10_000
"""The most items, requests and done pages that wait for one page. If there are more, they are committed without it."""
_RETRY_FACTOR = 10
"""A commit that failed is tried again after so many times the time that it took, and a second at least."""


class Commits:
    """Commits what changes to *database*, and to the filter *chain* beside it; *state* is that of a run that begins.

    It knows which fingerprints the job knows: those in the filter, and those on their way into it or out of it.

    *fill* adds to a batch what belongs to the moment at which its commit begins, and returns the state to write.
    *written* is told of each batch once its commit has ended. Whatever commits raises DamagedError if the database is
    damaged.
    """

    def __init__(
        self,
        database: Database,
        chain: ScalableBloomFilter,
        state: JobState,
        fill: Callable[[Batch], JobState],
        written: Callable[[Batch], None],
    ) -> None:
        self._database, self._chain, self._fill, self._written = database, chain, fill, written
        self.batch = Batch()
        """What has changed since the last commit began."""
        self.writing = Batch()
        """What the commit under way writes; empty if none is."""
        self.state = state
        """As the last commit that has begun writes it; before the first one, *state*."""
        self.of_memory: dict[bytes, Page] = {}
        """Pages whose requests are in memory only, by the fingerprints that are written with them."""
        self._taken_back: set[bytes] = set()  # new again, though the filter has them until their pages are committed
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scrapy-bloom-commit")
        self._transaction: Future[None] | None = None
        self._began = self._retry_at = 0.0
        self._is_left = self._is_failing = False  # whether the last batch could not be written

    def run(self) -> None:
        """Begin a commit if one is due, and end the last one if its transaction is written. Never waits."""
        self._collect()
        if self._transaction is None and time.monotonic() >= max(self._began + COMMIT_SECONDS, self._retry_at):
            self.begin()

    def make_room(self) -> None:
        """Begin a commit, and if one is under way, wait for it first; unless the last one has just failed."""
        if time.monotonic() >= self._retry_at:
            self.wait()
            self.begin()

    def begin(self) -> None:
        """Begin a commit, unless one is under way or there is nothing to write."""
        if self._transaction is not None:
            return
        self._began = time.monotonic()
        if not self._is_left:
            try:
                state = self._fill(self.batch)
            except OSError as error:  # a feed has no room
                self._explain(error)
                return
            # A request since then may have made a fingerprint known again.
            self.batch.forgotten = [each for each in self.batch.forgotten if each in self._taken_back]
            if self.batch.is_empty() and state == self.state and self._database.state.runs == state.runs:
                return
            self.writing, self.batch = self.batch, Batch()
            self.writing.state = self.state = state
        self._transaction = self._thread.submit(self._database.write, self.writing, redo_until=self._chain.synced)

    def wait(self) -> None:
        """Wait for the transaction under way, and end its commit."""
        if self._transaction is not None:
            self._transaction.exception()
            self._collect()

    def _collect(self) -> None:
        """If the transaction is written, set its bits, and then the watermark."""
        if self._transaction is None or not self._transaction.done():
            return
        error, self._transaction = self._transaction.exception(), None
        self._is_left = error is not None
        if error is not None:
            self._explain(error)
            return
        batch, self.writing = self.writing, Batch()
        if self._is_failing:
            self._is_failing = False
            logger.warning("Pending requests are written to %s again", self._database.path.parent)
        for fingerprint in batch.fingerprints:
            self._chain.add(fingerprint)
        self._chain.watermark = batch.state.last_id
        self.forget_committed(batch.forgotten)
        self._written(batch)

    def _explain(self, error: BaseException) -> None:
        if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.OperationalError):
            raise damaged(self._database.path, error)
        if not isinstance(error, (sqlite3.OperationalError, OSError)):
            raise error
        self._retry_at = time.monotonic() + max(1.0, _RETRY_FACTOR * (time.monotonic() - self._began))
        if not self._is_failing:
            self._is_failing = True
            logger.error(
                "Pending requests cannot be written to %s: %s. The crawl goes on with those in memory, and tries "
                "again; free some space on the disk, or stop the crawl. After a kill it resumes from the last commit.",
                self._database.path.parent,
                error,
            )

    def add(self, fingerprint: bytes) -> bool:
        """Remember *fingerprint* with the next commit. Return True if it was new."""
        waiting = self.batch.fingerprints
        if (
            fingerprint in waiting
            or fingerprint in self.writing.fingerprints
            or (self._chain.contains(fingerprint) and fingerprint not in self._taken_back)
            or fingerprint in self.of_memory
        ):
            return False
        if self._taken_back:
            self._taken_back.discard(fingerprint)
        waiting[fingerprint] = None
        return True

    def seen(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether it was added before. Remembers nothing."""
        waiting, writing = self.batch.fingerprints, self.writing.fingerprints
        return [
            fingerprint in waiting
            or fingerprint in writing
            or (fingerprint in self._chain and fingerprint not in self._taken_back)
            or fingerprint in self.of_memory
            for fingerprint in fingerprints
        ]

    def keep_in_memory(self, fingerprint: bytes | None, page: Page) -> None:
        """Write *fingerprint* with *page*, whose request is in memory only: before, it would outlive the request."""
        if fingerprint is not None and self.batch.fingerprints.pop(fingerprint, fingerprint) is None:
            self.of_memory[fingerprint] = page
            page.fingerprint = fingerprint

    def forget(self, fingerprint: bytes) -> bool:
        """Take *fingerprint* back, durably. Return False if it was not known."""
        was_waiting = self._forget_waiting(fingerprint)
        return self._chain.forget(fingerprint) or was_waiting

    def _forget_waiting(self, fingerprint: bytes) -> bool:
        """Forget *fingerprint* where no commit has written it; return whether it was there."""
        if fingerprint in self.writing.fingerprints:
            self.wait()
        batches = (self.batch, self.writing)
        is_waiting = [batch.fingerprints.pop(fingerprint, fingerprint) is None for batch in batches]
        page = self.of_memory.pop(fingerprint, None)
        if page is not None:
            page.fingerprint = None
        return page is not None or any(is_waiting)

    def take_back(self, page: Page, fingerprints: Iterable[bytes]) -> None:
        """Take back *fingerprints* of *page*, which has failed: at once in this run, and in the commit of the page."""
        for fingerprint in fingerprints:
            self._forget_waiting(fingerprint)
            if self._chain.contains(fingerprint):  # also if a link was followed again, and failed again
                self._taken_back.add(fingerprint)
                page.taken_back.append(fingerprint)

    def forget_committed(self, fingerprints: Iterable[bytes]) -> None:
        """Forget *fingerprints*, which a commit has taken back, and let the next one take off its note of them."""
        for fingerprint in fingerprints:
            self._chain.forget(fingerprint)
            self._taken_back.discard(fingerprint)
            self.batch.note("forgotten", {fingerprint.hex(): b""})

    def flush(self) -> None:
        """Commit what is left, and wait until it is written."""
        self.wait()
        for _ in range(2):  # first what could not be written before, if there is such
            self.begin()
            self.wait()

    def abandon(self) -> None:
        """Wait for the transaction under way, and write no other."""
        self._thread.shutdown()

    def close(self, close_filters: Callable[[], None], reason: str) -> None:
        """Commit what is left, close the filters, and note that the run has ended for *reason*, if all is written."""
        self.flush()
        self._thread.shutdown()
        close_filters()
        if self.batch.is_empty() and not self._is_failing:
            with suppress(sqlite3.OperationalError):  # the disk is full now
                closed = replace(self.state, in_flight=0, clean=True, finish_reason=reason)
                self._database.write(Batch(state=closed), redo_until=self.state.last_id)
        if not self._database.state.clean:
            directory = self._database.path.parent
            logger.error("The last pending requests are not in %s: the next run fetches pages again", directory)


class OpenPages:
    """The pages of a job that are not committed, and the sink that commits them with *commits*.

    *take* takes what a page has given; into the batch, if the page is committed with it.
    """

    def __init__(self, frontier: Frontier, take: Callable[[Page, Batch | None], None], commits: Commits) -> None:
        self._frontier, self._take, self._commits = frontier, take, commits
        self.holders: dict[int, Page] = {}
        """The pages that requests wait for, by the id of the request."""
        self.waited_for: dict[Page, float] = {}
        """The pages for which something waits, and since when."""
        self._has_warned = False

    def hold(self, parent: Page | None, id_: int, lane: Lane, body: bytes) -> bool:
        """Let an unfiltered request wait for *parent*, the page that led to it; return False if it need not wait."""
        if parent is None or parent.is_split:
            return False
        parent.held[id_] = (lane, body)
        self.holders[id_] = parent
        self.waited_for.setdefault(parent, time.monotonic())
        return True

    def keep_in_memory(self, page: Page, parent: Page | None) -> None:
        """Keep *parent* pending until *page* is complete, whose request is in memory only."""
        lead_to_memory(parent, page)
        if parent is not None:
            self.waited_for.setdefault(parent, time.monotonic())

    def done(self, page: Page) -> None:
        """Note that the engine is done with *page*, and commit what is complete now."""
        if page.row is None or page.parent is not None or page in self.waited_for:
            done(page, self)
        else:
            page.state = State.COMMITTED  # the usual page: DONE and FREE
            self.commit(page)

    def write(self, key: int, request: tuple[Lane, bytes]) -> None:
        """Add a *request* that waited for its page."""
        self._commits.batch.add(key, *request)
        del self.holders[key]

    def commit(self, page: Page) -> None:
        """Add what *page* gave, and take its row off: off the database, or off the batch that was going to write it."""
        self.waited_for.pop(page, None)
        batch = self._commits.batch
        self._take(page, batch)
        batch.forgotten += page.taken_back
        if page.fingerprint is not None:
            batch.fingerprints[page.fingerprint] = None
            self._commits.of_memory.pop(page.fingerprint, None)
        if page.row is None:
            return
        if batch.added.pop(page.row.id, None) is None:
            batch.done.append(page.row)
        else:
            self._frontier.taken.discard(page.row.id)

    def commit_in_parts(self, pages: Iterable[Page]) -> None:
        """Commit early what waits for a page, if it is too much or waits too long. *pages* are those in progress."""
        for page in pages:
            if len(page.gave) > MOST_ENTRIES:
                self._warn(page)
                self._take(page, None)
        latest = time.monotonic() - LONGEST_SECONDS
        for page, since in list(self.waited_for.items()):
            if since < latest or len(page.held) + len(page.deferred) > MOST_ENTRIES:
                if page.held or any(child.fingerprint is None for child in page.deferred):
                    self._warn(page)
                split(page, self)

    def _warn(self, page: Page) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s is in progress for more than %d s, or has given more than %s items and requests. They are "
                "committed before the page is: if the crawl is killed first, the page is fetched again, and these "
                "items and unfiltered requests come twice. No more pages are shown.",
                page.request,
                LONGEST_SECONDS,
                f"{MOST_ENTRIES:,}",
            )

    def check(self, in_flight: Iterable[Page]) -> None:
        """Assert what always holds of the pages *in_flight*, and of those that wait."""
        pages = {*in_flight, *self.waited_for, *self.holders.values(), *self._commits.of_memory.values()}
        for page in pages:
            check(page)
            assert page.state is not State.COMMITTED
            assert page in self.waited_for or not (page.in_memory or page.held or page.deferred)
        assert self.holders == {id_: page for page in pages for id_ in page.held}
        assert all(page.fingerprint == fingerprint for fingerprint, page in self._commits.of_memory.items())
