"""A crawl's memory in its job directory, which survives ``kill -9``: filter, pending requests, and their one commit.

push, done, add  ->  batch   in memory; a kill forgets it as if it had not happened
commit           ->  one transaction, and then the bits: :mod:`~scrapy_bloom.job.commits`

"""

from __future__ import annotations

import gc
import logging
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from scrapy_bloom.errors import counted
from scrapy_bloom.filter.directory import open_filter
from scrapy_bloom.frontier import serialize
from scrapy_bloom.frontier.lanes import Frontier
from scrapy_bloom.frontier.memory_store import MemoryStore
from scrapy_bloom.frontier.order import key_of
from scrapy_bloom.frontier.page import Page, Row
from scrapy_bloom.frontier.pages_per_host import PagesPerHost
from scrapy_bloom.job.commits import COMMIT_ROWS, Commits
from scrapy_bloom.job.consistency import check_consistency, replay_redo
from scrapy_bloom.job.database import NAME, Database
from scrapy_bloom.job.feeds import NotedFeeds
from scrapy_bloom.job.fingerprints import JobFingerprints
from scrapy_bloom.job.open_pages import OpenPages
from scrapy_bloom.job.starts import NOTE as START_URLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from scrapy import Request, Spider

    from scrapy_bloom.frontier.lanes import Lane
    from scrapy_bloom.frontier.order import Order
    from scrapy_bloom.frontier.store import PageEffects
    from scrapy_bloom.job import records
    from scrapy_bloom.loops.share import Mark, Share
    from scrapy_bloom.settings import BloomSettings

logger = logging.getLogger(__name__)


class Owner(NamedTuple):
    """Whose job it is."""

    spider: Spider | None
    """Its methods are the callbacks of requests; None if a filter is used without a crawl."""
    name: str
    """The name of the spider."""
    key_space: Mapping[str, str] | None
    """What makes its fingerprints; None if they are not ours."""


class JobStore(MemoryStore):
    """Everything that a job directory remembers. Nothing is handed out before :meth:`begin`.

    Args:
        directory: ``JOBDIR/requests.bloom``; created if missing.
        settings: Capacity, error rate and maximum age of the filter; pages per host.
        order: The order in which requests are handed out.
        owner: Whose job it is from now on.
        parts: What commits hold beside requests.
        share: Shares the crawl among kinds of URLs, within that order; None: nothing does.

    Raises:
        BloomError: The job is in use, damaged, another spider's, or its parts are of different moments. Later on,
            whatever reads or commits raises DamagedError if the database is damaged.

    """

    def __init__(
        self,
        directory: Path,
        settings: BloomSettings,
        order: Order,
        owner: Owner,
        *,
        parts: PageEffects,
        share: Share | None = None,
    ) -> None:
        self.filters = ExitStack()
        """Closes all filters of the directory."""
        self.unreadable = 0
        """Rows that could not be made requests: a callback was renamed, perhaps. They stay for a later run."""
        self._owner = owner
        pages = PagesPerHost.of(settings.pages_per_host, order)
        chain = open_filter(directory, settings.capacity, settings.error_rate, max_age=settings.max_age)
        self.filters.callback(chain.close)
        super().__init__(chain, order, share, pages, where=f"in {directory}", effects=parts)
        try:
            self.database = Database(directory / NAME)
            check_consistency(self.database, self.chain, owner.name, owner.key_space)
            self.before = self.database.state
            """As the last run left it."""
            self.lacks_pending = replay_redo(self.database, self.chain) and self.before.pending > 0
            """Whether the filter is older than the database. Links would then queue pending requests once more."""
        except BaseException:
            self.abandon()
            raise
        self.noted = NotedFeeds(self.database, directory / "appended")
        lifo, paused = order.is_lifo, self.paused
        self.frontier = Frontier(is_lifo=lifo, read=self._read, share=share, pages=pages, paused=paused)
        # It has no share and no limit of pages: requests that these hold back would be lost with the process.
        self.in_memory = Frontier(is_lifo=lifo, active=self.frontier.active, paused=paused)
        self._commits = Commits(self.database, self.chain, self._fill, self._written)
        self._fingerprints = JobFingerprints(self.chain, self._commits)
        self.add: Callable[[bytes], bool] = self._fingerprints.add
        self._open_pages = OpenPages(self.frontier, parts, self._fingerprints, self._commits)
        self._last_id = self.before.last_id

    @property
    def directory(self) -> Path:
        """``JOBDIR/requests.bloom``."""
        return self.database.path.parent

    @property
    def durable(self) -> Frontier:
        """The pending requests that survive the process."""
        return self.frontier

    @property
    def commits(self) -> int:
        """How many commits have ended."""
        return self._commits.number

    @property
    def state(self) -> records.JobState:
        """The state that the last commit wrote, or is writing; before :meth:`begin`, as the last run left it."""
        return self._commits.state

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier run began what this one goes on with. Known from :meth:`begin` on."""
        return not self.before.is_finished

    def begin(self, *, writes_at_once: bool) -> None:
        """Take in the pending requests, and note that a run has begun.

        With *writes_at_once*, fingerprints go into the filter as they come, because another scheduler keeps their
        requests.
        """
        if writes_at_once:
            self.add = self.chain.add
        if self.frontier.share is not None:
            self.frontier.share.load(self.database.notes("kind"))
        if self.pages is not None:
            self.pages.counts.update(self.database.pages())
        # A kill may have come before the filter could forget them.
        self._fingerprints.forget_committed(map(bytes.fromhex, self.database.notes("forgotten")))
        with _without_garbage_collection():
            self.frontier.restore(self.database.lanes())
        self.paused.restore(self.database.notes("state"))
        self._commits.batch.feeds += self.noted.repair()
        self.before = self.database.state  # what Scrapy left is taken in
        self._commits.state = replace(
            self.before.next_run(),
            spider=self._owner.name,
            filter=self.chain.chain_id,
            key_space=self._owner.key_space or self.before.key_space,
            pages_per_host=None if self.pages is None else self.pages.limits,
        )
        if self.before.is_finished:  # what was noted of the last cycle does not hold in this one
            self._commits.batch.note("state", dict.fromkeys([START_URLS, "estimate"], b""))
        self._commits.begin()
        self._commits.wait()

    def __len__(self) -> int:
        return self.frontier.size + self.in_memory.size

    def is_over(self) -> bool:
        """Return whether all that is pending is left for a later run."""
        return not self.in_memory.size and self.frontier.is_over()

    def _read(self, lane: Lane, most: int) -> list[tuple[int, bytes]]:
        return self.database.rows(lane.id, *lane.unread(), newest_first=lane.is_lifo, most=most)

    # -- a request's way ---------------------------------------------------------------------------------------------

    def seen(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether it was added before. Remembers nothing."""
        return self._fingerprints.seen(fingerprints)

    def take_back(self, page: Page, fingerprints: Sequence[bytes]) -> None:
        """Take back *fingerprints* of *page*, which has failed: at once in this run, and in the commit of the page."""
        self._fingerprints.take_back(page, fingerprints)

    def forget(self, fingerprint: bytes) -> bool:
        """Take *fingerprint* back, durably. Return False if it was not known."""
        return self._fingerprints.forget(fingerprint)

    def push(
        self, request: Request, fingerprint: bytes | None, parent: Page | None = None, mark: Mark | None = None
    ) -> bool:
        """Take in *request*, and return whether a commit makes it durable.

        A request that cannot be serialized stays in memory, and its *fingerprint* with it.
        """
        try:
            body = serialize.dumps(request, self._owner.spider, mark)
        except ValueError as error:
            self._keep_in_memory(Page(request, "", mark=mark), fingerprint, parent, error)
            return False
        self._last_id += 1
        lane = self.frontier.push(key_of(request, self._order, mark), self._last_id, body)
        if fingerprint is None and self._open_pages.hold(parent, self._last_id, lane, body):
            return True
        batch = self._commits.batch
        batch.add(self._last_id, lane, body)
        if len(batch.added) + len(batch.done) >= COMMIT_ROWS:
            self._commits.make_room()
        return True

    def _keep_in_memory(self, page: Page, fingerprint: bytes | None, parent: Page | None, error: ValueError) -> None:
        self._fingerprints.keep_in_memory(fingerprint, page)
        key = key_of(page.request, self._order, page.mark)
        page.slot = key.slot
        self._last_id += 1
        self.in_memory.push(key, self._last_id, page)
        self._open_pages.keep_in_memory(page, parent, error)

    def pop(self) -> tuple[Request, bool] | None:
        """Return the next request, those in memory first as in Scrapy, and whether it survives the process; or None."""
        if self.in_memory.size and (popped := self.in_memory.pop()) is not None:
            page: Page = popped[2]
            request = page.own_request(self.in_flight)
            self.in_flight[id(request)] = page
            return request, False
        while (popped := self.frontier.pop()) is not None:
            lane, id_, body = popped
            self.frontier.taken.add(id_)
            try:
                request, mark = serialize.loads(body, self._owner.spider)
            except Exception:  # whatever unpickling or the user's classes raise
                self.frontier.done(lane.key.slot, is_page=False)
                self.unreadable += 1
                if self.unreadable == 1:
                    logger.exception("A pending request of %s cannot be read; a later run tries again", lane.key.slot)
                continue
            page = self.in_flight[id(request)] = Page(request, lane.key.slot, Row(lane.id, id_), mark, body=body)
            page.parent = self._open_pages.holders.get(id_)
            return request, True
        return None

    def done(self, page: Page) -> None:
        """Note that the engine is done with *page*: its row goes with the commit that has all that depends on it."""
        del self.in_flight[id(page.request)]
        self.frontier.done(page.slot, is_page=page.result.has_answer)
        self._open_pages.done(page)

    def check(self) -> None:
        """Assert what always holds, for tests."""
        super().check()
        self._open_pages.check(self.in_flight.values())

    # -- commits -----------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Begin a commit if one is due, and end the last one if its transaction is written. Never waits."""
        self._commits.run()

    def _fill(self, batch: records.Batch) -> records.JobState:
        """Add to *batch* what belongs to this moment; return the state at it."""
        self._open_pages.commit_in_parts(self.in_flight.values())
        batch.forgotten = self._fingerprints.still_taken_back(batch.forgotten)
        self._effects.add_to(batch)
        if self.frontier.share is not None:
            batch.note("kind", self.frontier.share.changed())
        batch.note("state", self.paused.changed())
        return replace(self.state, last_id=self._last_id, in_flight=len(self.in_flight))

    def _written(self, batch: records.Batch) -> None:
        self.frontier.taken.difference_update(id_ for _, id_ in batch.done)
        self.frontier.written(batch.lanes.values(), batch.state.last_id, batch.added)
        self._fingerprints.forget_committed(batch.forgotten)
        self._effects.written()

    def flush(self) -> None:
        """Commit what is left, and wait until it is written."""
        self._commits.flush()

    def close(self) -> None:
        """Write what is left, and close the files. What cannot be written is said, and fetched again."""
        self._commits.close(self.filters.close, self.finish_reason)
        if self.in_memory.size:
            logger.warning(
                "%s could not be serialized and existed in memory only. %s that led to them are fetched again by the "
                "next run. If runs end before such pages are complete, the job gets no further: let runs last longer, "
                "or make the callbacks methods of the spider",
                counted(self.in_memory.size, "pending request"),
                counted(self._open_pages.waiting(), "page"),
            )
        self.database.close()

    def abandon(self) -> None:
        """Close the files of a crawl that does not begin, and change nothing."""
        with suppress(AttributeError):  # it could not be opened
            self._commits.abandon()  # first: a connection must not be closed while the thread writes to it
        with suppress(AttributeError):
            self.database.close()
        self.filters.close()


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Let nothing be collected: a million lanes, all of which stay, would be looked through again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
