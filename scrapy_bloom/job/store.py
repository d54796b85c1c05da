"""A crawl's memory in its job directory, which survives ``kill -9``: filter, pending requests, and their one commit.

push, done, add  ->  batch   in memory; a kill forgets it as if it had not happened
commit           ->  one transaction, and then the bits: :mod:`~scrapy_bloom.job.commits`

"""

from __future__ import annotations

import gc
import logging
import shutil
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.errors import counted
from scrapy_bloom.filter.directory import FORGOTTEN_NAME, open_filter
from scrapy_bloom.filter.lock import lock_directory
from scrapy_bloom.frontier.lanes import Frontier
from scrapy_bloom.frontier.page import Page, Row
from scrapy_bloom.frontier.store import MemoryStore
from scrapy_bloom.job.commits import COMMIT_ROWS, Commits, OpenPages
from scrapy_bloom.job.database import NAME, Database
from scrapy_bloom.job.feeds import NotedFeeds
from scrapy_bloom.job.inspect import DIRECTORY
from scrapy_bloom.job.verify import check_consistency, replay_redo
from scrapy_bloom.settings import BloomSettings

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from scrapy_bloom.filter.chain import ScalableBloomFilter
    from scrapy_bloom.frontier.lanes import Lane
    from scrapy_bloom.frontier.order import Order, PagesPerHost
    from scrapy_bloom.frontier.page import Pending
    from scrapy_bloom.frontier.store import PageEffects
    from scrapy_bloom.job import records
    from scrapy_bloom.loops.share import Share

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobFiles:
    """Filter and database of a job directory, open and locked."""

    chain: ScalableBloomFilter
    database: Database
    lacks_pending: bool
    """Whether the filter is older than the database. Links would then queue pending requests once more."""
    filters: ExitStack
    """Closes all filters of the directory, and lets go of the lock."""

    @property
    def directory(self) -> Path:
        """``JOBDIR/requests.bloom``."""
        return self.database.path.parent

    def close(self) -> None:
        """Close the files, and change nothing."""
        self.database.close()
        self.filters.close()


def open_files(
    directory: Path, settings: BloomSettings, spider: str | None, key_space: Mapping[str, str] | None
) -> JobFiles:
    """Open or begin the job in *directory*, ``JOBDIR/requests.bloom``.

    *spider* is the name of the spider whose job it is; None if that makes no difference. *key_space* is what makes its
    fingerprints; None if they are not ours. Raises BloomError if the job is in use, damaged, another spider's, or its
    parts are of different moments.
    """
    with ExitStack() as on_error:
        filters = on_error.enter_context(ExitStack())
        chain = open_filter(directory, settings.capacity, settings.error_rate, max_age=settings.max_age)
        filters.callback(chain.close)
        database = on_error.enter_context(closing(Database(directory / NAME)))
        check_consistency(database, chain, spider, key_space)
        lacks_pending = replay_redo(database, chain) and database.state.pending > 0
        on_error.pop_all()
    return JobFiles(chain, database, lacks_pending, filters)


def stopped_job(
    jobdir: str | os.PathLike[str], spider: str | None = None, settings: BloomSettings | None = None
) -> closing[JobFiles]:
    """Open the job in *jobdir*, or begin one under *settings* (None: the defaults), as a context manager.

    Raises BloomError if a crawl runs there, the job belongs to another spider than *spider*, or it is damaged.
    """
    return closing(open_files(Path(jobdir, DIRECTORY), settings or BloomSettings(), spider, None))


def begin_cycle(jobdir: Path, spider: str) -> None:
    """Empty the filter of a job of *spider* that has ended, so that the next run looks at each page again.

    Figures of kinds and hosts, and failed requests, belong to the last cycle alone, and are deleted, too. Raises
    BloomError if the job is in use, or damaged.
    """
    directory = jobdir / DIRECTORY
    if not (directory / NAME).exists():
        return
    with lock_directory(directory), closing(Database(directory / NAME)) as database:
        if not database.state.is_finished or database.state.spider != spider:
            return
        for path in (*sorted(directory.glob("layer-*.bloom")), directory / FORGOTTEN_NAME):
            path.unlink(missing_ok=True)
        shutil.rmtree(directory / "novelty", ignore_errors=True)
        database.writer.executescript(
            "BEGIN IMMEDIATE; DELETE FROM note WHERE topic IN ('kind', 'pages'); DELETE FROM failed; DELETE FROM redo; "
            "COMMIT"
        )


class JobStore(MemoryStore):
    """Everything that a job directory remembers. Nothing is handed out before :meth:`begin`.

    *files* are the job's, with all that other programs have left taken in. *spider* is the name of the spider whose job
    it is from now on, and *key_space* is what makes its fingerprints; None if they are not ours. *share* and *pages*
    are as for :class:`MemoryStore`. *writes_at_once*: fingerprints go into the filter as they come, because another
    scheduler keeps their requests.

    Methods that read or commit raise DamagedError if the database is damaged.
    """

    commits: int = 0

    def __init__(
        self,
        files: JobFiles,
        order: Order,
        spider: str,
        key_space: Mapping[str, str] | None,
        share: Share | None = None,
        pages: PagesPerHost | None = None,
        *,
        writes_at_once: bool = False,
    ) -> None:
        super().__init__(files.chain, order, share, pages, where=f"in {files.directory}")
        self._files = files
        self.in_flight: set[Page] = set()
        self.left_unread = 0
        """Rows that could not be made requests: a callback was renamed, perhaps. They stay for a later run."""
        self.database = files.database
        self.before = files.database.state
        """As the last run left it."""
        self.noted = NotedFeeds(self.database, files.directory / "appended")
        lifo, paused = order.is_lifo, self.paused
        self.frontier = Frontier(is_lifo=lifo, read=self._read, share=share, pages=pages, paused=paused)
        # It has no share and no limit of pages: requests that these hold back would be lost with the process.
        self.in_memory = Frontier(is_lifo=lifo, active=self.frontier.active, paused=paused)
        state = replace(
            self.before.next_run(),
            spider=spider,
            filter=self.chain.chain_id,
            key_space=key_space or self.before.key_space,
            pages_per_host=None if pages is None else pages.limits,
        )
        self._commits = Commits(self.database, self.chain, state, self._fill, self._written)
        self._open_pages = OpenPages(self.frontier, lambda page, batch: self._effects.take(page, batch), self._commits)
        self.add = self.chain.add if writes_at_once else self._commits.add
        self._last_id = self.before.last_id
        self._notes = self.database.notes("state")  # as the last commit has them

    @property
    def durable(self) -> Frontier:
        """The pending requests that survive the process."""
        return self.frontier

    @property
    def state(self) -> records.JobState:
        """The state that the last commit of this run wrote, or is writing, or the first one will write."""
        return self._commits.state

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier run began what this one goes on with."""
        return not self.before.is_finished

    def begin(self, effects: PageEffects) -> None:
        """Take in the pending requests, and note that a run has begun. Later commits have *effects*."""
        if self.frontier.share is not None:
            self.frontier.share.load(self.database.notes("kind"))
        if self.pages is not None:
            self.pages.counts.update(self.database.pages())
        # A kill may have come before the filter could forget them.
        self._commits.forget_committed(map(bytes.fromhex, self.database.notes("forgotten")))
        was_enabled = gc.isenabled()
        gc.disable()  # a million lanes, all of which stay, would be looked through again and again
        try:
            self.frontier.restore(self.database.lanes())
        finally:
            if was_enabled:
                gc.enable()
        self.paused.restore(self.database.notes("state"))
        self._commits.batch.feeds += self.noted.repair()
        if self.before.is_finished:  # what was noted of the last cycle does not hold in this one
            self._commits.batch.note("state", dict.fromkeys(["start_urls", "estimate"], b""))
        self._commits.begin()
        self._commits.wait()
        super().begin(effects)

    def __len__(self) -> int:
        return self.frontier.size + self.in_memory.size

    def is_over(self) -> bool:
        """Return whether all that is pending is left for a later run."""
        return not self.in_memory.size and self.frontier.is_over()

    def _read(self, lane: Lane, most: int) -> list[tuple[int, bytes]]:
        return self.database.rows(lane.id, *lane.unread(), newest_first=lane.is_lifo, most=most)

    def seen(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether it was added before. Remembers nothing."""
        return self._commits.seen(fingerprints)

    def take_back(self, page: Page, fingerprints: Sequence[bytes]) -> None:
        """Take back *fingerprints* of *page*, which has failed: at once in this run, and in the commit of the page."""
        self._commits.take_back(page, fingerprints)

    def forget(self, fingerprint: bytes) -> bool:
        """Take *fingerprint* back, durably. Return False if it was not known."""
        return self._commits.forget(fingerprint)

    def push(self, pending: Pending, parent: Page | None = None) -> bool:
        """Take in *pending*, and return whether a commit makes it durable.

        A request without a body stays in memory, and its fingerprint with it.
        """
        body = pending.body
        if body is None:
            self._keep_in_memory(pending, parent)
            return False
        self._last_id += 1
        lane = self.frontier.push(pending.lane, self._last_id, body)
        if pending.fingerprint is None and self._open_pages.hold(parent, self._last_id, lane, body):
            return True
        batch = self._commits.batch
        batch.add(self._last_id, lane, body)
        if len(batch.added) + len(batch.done) >= COMMIT_ROWS:
            self._commits.make_room()
        return True

    def _keep_in_memory(self, pending: Pending, parent: Page | None) -> None:
        page = Page(pending.lane.slot, pending.request, mark=pending.mark)
        self._commits.keep_in_memory(pending.fingerprint, page)
        self._last_id += 1
        self.in_memory.push(pending.lane, self._last_id, page)
        self._open_pages.keep_in_memory(page, parent)

    def pop(self) -> Page | None:
        """Return the page of the next request, those in memory first as in Scrapy; None if none has a turn."""
        if self.in_memory.size and (popped := self.in_memory.pop()) is not None:
            page: Page = popped[2]
        elif (popped := self.frontier.pop()) is not None:
            lane, id_, body = popped
            self.frontier.taken.add(id_)
            page = Page(lane.key.slot, row=Row(lane.id, id_), body=body)
            page.parent = self._open_pages.holders.get(id_)
        else:
            return None
        self.in_flight.add(page)
        return page

    def unreadable(self, page: Page, error: Exception) -> None:
        """Leave the row of *page*, which cannot be read because of *error*, to a later run."""
        self.in_flight.discard(page)
        self.frontier.done(page.slot, is_page=False)
        self.left_unread += 1
        if self.left_unread == 1:
            logger.error("A pending request of %s cannot be read; a later run tries again", page.slot, exc_info=error)

    def done(self, page: Page) -> None:
        """Note that the engine is done with *page*: its row goes with the commit that has all that depends on it."""
        self.in_flight.discard(page)
        self.frontier.done(page.slot, is_page=page.result.has_answer)
        self._open_pages.done(page)

    def check(self) -> None:
        """Assert what always holds, for tests."""
        super().check()
        self._open_pages.check(self.in_flight)

    def commit(self) -> None:
        """Begin a commit if one is due, and end the last one if its transaction is written. Never waits."""
        self._commits.run()

    def _fill(self, batch: records.Batch) -> records.JobState:
        """Add to *batch*, which has rows and fingerprints, what belongs to this moment; return the state at it."""
        self._open_pages.commit_in_parts(self.in_flight)
        self._effects.add_to(batch)
        if self.frontier.share is not None:
            batch.note("kind", self.frontier.share.changed())
        if self.pages is not None:
            batch.note("pages", {host: b"%d" % pages for host, pages in self.pages.changed().items()})
        batch.note("state", self.paused.note())
        batch.leave_out("state", self._notes)
        return replace(self.state, last_id=self._last_id, in_flight=len(self.in_flight))

    def _written(self, batch: records.Batch) -> None:
        self.commits += 1
        self.frontier.taken.difference_update(id_ for _, id_ in batch.done)
        self.frontier.written(batch.lanes.values(), batch.state.last_id, batch.added)
        self._effects.written()

    def flush(self) -> None:
        """Commit what is left, and wait until it is written."""
        self._commits.flush()

    def close(self, reason: str = "") -> None:
        """Write what is left and why the run has ended, and close the files. What cannot be written is said."""
        self._commits.close(self._files.filters.close, reason)
        if self.in_memory.size:
            logger.warning(
                "%s could not be serialized and existed in memory only. %s that led to them are fetched again by the "
                "next run. If runs end before such pages are complete, the job gets no further: let runs last longer, "
                "or make the callbacks methods of the spider",
                counted(self.in_memory.size, "pending request"),
                counted(len(self._open_pages.waited_for), "page"),
            )
        self.database.close()

    def abandon(self) -> None:
        """Close the files of a crawl that does not begin, and change nothing."""
        self._commits.abandon()  # first: a connection must not be closed while the thread writes to it
        self._files.close()
