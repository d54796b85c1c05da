"""DurableScheduler: the face that Scrapy sees, on top of a frontier that survives ``kill -9``.

Scrapy's scheduler does all the work that is not storage: priority queues, the memory queue for requests that cannot be
serialized, the stats. This class gives its priority queue our lanes to put requests in, marks requests as done when the
engine is done with them, and tells the duplicate filter when the requests of its new fingerprints are durable.

Knows no filter by name. One that can hold fingerprints back has four more methods (:class:`HoldsBack`). With any other,
a kill can cost the pages found within one commit interval before it, and a WARNING says so. If the filter notes how far
the frontier was (:class:`NotesFrontier`), a frontier that lacks requests is refused.

The loop guard, if it is on, is asked here about each request: sending one back takes 0.1 ms here, and 0.4 ms through
Scrapy's engine.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from scrapy.core.scheduler import Scheduler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.pqueues import DownloaderAwarePriorityQueue
from scrapy.utils.misc import build_from_crawler

from scrapy_bloom.old.crawl.in_progress import watch
from scrapy_bloom.old.crawl.job import looks_only, refuse_job_of_workers
from scrapy_bloom.old.crawl.loop_guard_middleware import loop_guard_of
from scrapy_bloom.old.crawl.queue_order import is_lifo
from scrapy_bloom.old.crawl.regular_call import create_looping_call
from scrapy_bloom.old.crawl.shutdown import end_crawl
from scrapy_bloom.old.crawl.spider_state import spider_state_kept
from scrapy_bloom.old.crawl.startup import REFUSED, log_start_errors
from scrapy_bloom.old.errors import UnusableError, counted
from scrapy_bloom.old.files.frontier_file import FRONTIER_NAME
from scrapy_bloom.old.frontier.agreement import Agreement, agree
from scrapy_bloom.old.frontier.database import Database, State, damaged
from scrapy_bloom.old.frontier.handed_out import HandedOut
from scrapy_bloom.old.frontier.journal import COMMIT_INTERVAL, TICK_INTERVAL, Journal
from scrapy_bloom.old.frontier.lanes import LaneFactory, Lanes
from scrapy_bloom.old.frontier.recovery import Recovery, show
from scrapy_bloom.old.frontier.scrapy_queue import ScrapyQueue
from scrapy_bloom.old.frontier.serialize import Serializer
from scrapy_bloom.old.frontier.slots import SlotQueue
from scrapy_bloom.old.settings import BloomSettings

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure

    from scrapy_bloom.old.files.frontier_mark import Noted
    from scrapy_bloom.old.loops.guard import LoopGuard

logger = logging.getLogger(__name__)

HANDED_OUT_NAME = f"{FRONTIER_NAME}.handed"

MOST_HELD = 50
"""Requests in a row that the loop guard may send back or park before one is handed out for its middleware to judge: the
reactor does not wait for it longer than some 5 ms."""


@runtime_checkable
class HoldsBack(Protocol):
    """A duplicate filter that can keep new fingerprints out of its files until their requests are durable."""

    def hold_back(self) -> None:
        """Keep newly accepted fingerprints in memory from now on; request_seen() still knows them."""

    def seal(self) -> None:
        """Mark what was accepted so far: it belongs to the commit that begins now."""

    def release(self) -> None:
        """Write everything sealed to the files, and nothing else."""

    def never_release(self, request: Request) -> None:
        """Exempt *request* from :meth:`release`: it could not be stored and will be lost with the process."""


@runtime_checkable
class NotesFrontier(Protocol):
    """A duplicate filter that notes beside its files how far the frontier was when it got the fingerprints."""

    def frontier_noted(self) -> Noted | None:
        """Return what is noted; None if the filter has no files."""

    def note_frontier(self, last_id: int) -> None:
        """Note, for longer than the process lives, that the filter knows all requests up to *last_id*."""


@runtime_checkable
class BeginsLater(Protocol):
    """A duplicate filter that logs what the crawl begins with when it is told that it does."""

    def crawl_begins(self) -> None:
        """Say what the crawl begins with: nothing refuses it any more."""


class DurableScheduler(Scheduler):
    """Scrapy's scheduler, with pending requests in ``JOBDIR/requests.frontier`` and none of them lost to ``kill -9``.

    Set ``SCHEDULER = "scrapy_bloom.DurableScheduler"``. The settings of Scrapy's scheduler mean what they mean there,
    except that of ``SCHEDULER_DISK_QUEUE`` and ``SCHEDULER_START_DISK_QUEUE`` only the order counts: a class with
    ``Fifo`` in its name is first-in-first-out, any other last-in-first-out. Without ``JOBDIR`` it is like Scrapy's own.
    """

    survives_kill = True  # so that a filter need not warn that pending requests are lost
    begins_filter = True  # so that a filter says what the crawl begins with only if it begins

    def __init__(self, dupefilter: BaseDupeFilter, jobdir: str | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(dupefilter, None, *args, **kwargs)  # None: the disk queue is ours, not Scrapy's
        self._left_alone = jobdir is not None and self.crawler is not None and looks_only(self.crawler)
        if self._left_alone:
            jobdir = None
        priority_queue: Any = self.pqclass  # to Scrapy's types its two classes have nothing in common
        if priority_queue is DownloaderAwarePriorityQueue:
            self.pqclass = SlotQueue  # type: ignore[assignment] # the same order, whatever the number of hosts
        self.jobdir = jobdir
        self._journal: Journal | None = None
        self._lanes: Lanes | None = None
        self._guard: LoopGuard | None = None
        self._handed_out = HandedOut(Path(jobdir or "", HANDED_OUT_NAME))
        self._filter_is_open = False
        self._watching = False
        self._failed = False

    # -- Scrapy's interface ------------------------------------------------------------------------------------------

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the frontier, then the filter, and recover what the previous run left behind.

        Raises BloomError, before the first request, if the job directory cannot be used.
        """
        if self.crawler is not None:
            self._guard = loop_guard_of(self.crawler)
        if not self.jobdir:
            if not self._left_alone:  # of which the filter says so
                logger.info("No JOBDIR: pending requests are kept in memory, as by Scrapy's own scheduler")
            opened = super().open(spider)
            if opened is None:
                self._begin_filter()
            return opened if opened is None else opened.addCallback(lambda _: self._begin_filter())
        with log_start_errors(logger), spider_state_kept(self.crawler):
            return self._open_in(Path(self.jobdir), spider)

    def _open_in(self, jobdir: Path, spider: Spider) -> Deferred[None] | None:
        jobdir.mkdir(parents=True, exist_ok=True)
        refuse_job_of_workers(jobdir)
        seen = jobdir / "requests.seen"  # before Scrapy's own filter may write to it
        knows_pages = seen.is_file() and seen.stat().st_size > 0
        database = Database.open(jobdir / FRONTIER_NAME)
        try:
            state = state_of(database)
            check_owner(database.path, state, spider)
            opened = super().open(spider)
        except BaseException:
            database.abandon()
            raise
        self._filter_is_open = True
        if opened is None:
            self._open_frontier(database, state, spider, knows_pages=knows_pages)
            return None

        def give_back(failure: Failure) -> Failure:
            database.abandon()
            return failure

        def go_on(_: None) -> None:
            with log_start_errors(logger), spider_state_kept(self.crawler):
                self._open_frontier(database, state, spider, knows_pages=knows_pages)

        return opened.addCallbacks(go_on, give_back)

    def close(self, reason: str) -> Deferred[None] | None:
        """Write what is pending, close the file, then the filter."""
        if not self.jobdir:
            return super().close(reason)
        if self._journal is not None and self._lanes is not None:
            self._close_frontier(self._journal, self._lanes)
            self._journal = None
        if not self._filter_is_open:
            return None
        self._filter_is_open = False
        return self.df.close(reason)

    def next_request(self) -> Request | None:
        """Return the next request, from memory first as Scrapy does, or None. The loop guard may keep some."""
        for _ in range(MOST_HELD):
            request = self._next_request()
            if request is None or not self._waits_longer(request):
                break
        else:
            request = self._next_request()
        if request is not None and self._journal is not None:
            self._handed_out.count()  # before anything can be sent, so never too small
        return request

    def _next_request(self) -> Request | None:
        journal, lanes = self._journal, self._lanes
        if journal is None or lanes is None:
            return super().next_request()
        journal.poll()
        while not self._failed:
            unreadable = lanes.unreadable
            try:
                request = super().next_request()
            except sqlite3.Error as error:
                self._fail(error)
                break
            if request is not None or lanes.unreadable == unreadable:
                return request
        return None

    def _waits_longer(self, request: Request) -> bool:
        """Whether the loop guard has sent *request* back to the queue or parked it."""
        if self._guard is None:
            return False
        sent_back: list[Request] = []
        if not self._guard.out_of_queue(request, sent_back.append):
            return False
        for again in sent_back:
            self.enqueue_request(again)
        self._left(request)
        return True

    def enqueue_request(self, request: Request) -> bool:
        """Take in *request* unless the filter has seen it, as Scrapy's scheduler does."""
        try:
            return super().enqueue_request(request)
        except sqlite3.Error as error:
            if self._journal is None:
                raise
            self._fail(error)
            return False

    def _mqpush(self, request: Request) -> None:
        """Take in a request that cannot be serialized; its fingerprint must not outlive it."""
        if self._journal is not None and not request.dont_filter and isinstance(self.df, HoldsBack):
            self.df.never_release(request)
        super()._mqpush(request)

    # -- opening -----------------------------------------------------------------------------------------------------

    def _open_frontier(self, database: Database, state: State, spider: Spider, *, knows_pages: bool) -> None:
        try:
            self._recover(database, state, spider, knows_pages=knows_pages)
        except BaseException as error:
            database.abandon()
            self._filter_is_open = False
            self.df.close(REFUSED)
            if isinstance(error, sqlite3.Error):
                raise damaged(database.path, error) from error
            raise
        self._begin_filter()

    def _begin_filter(self) -> None:
        if isinstance(self.df, BeginsLater):
            self.df.crawl_begins()

    def _recover(self, database: Database, state: State, spider: Spider, *, knows_pages: bool) -> None:
        assert self.crawler is not None  # noqa: S101 - from_crawler() has set it
        assert self.stats is not None  # noqa: S101 - likewise
        noted = self.df.frontier_noted() if isinstance(self.df, NotesFrontier) else None
        accept_lost = BloomSettings.from_settings(self.crawler.settings).accept_lost_requests
        agreement = agree(state, noted, database.path, accept_lost=accept_lost)
        scrapy_queue = ScrapyQueue(database.path.parent)
        if state.import_untidied:
            scrapy_queue.put_aside()
            database.import_tidied()
        to_import = scrapy_queue.pending()
        if agreement.warning:
            logger.warning("%s", agreement.warning)
        knows_pages = knows_pages if noted is None else not noted.is_empty
        if not (state.spider or to_import or agreement.warning) and knows_pages:
            self._warn_of_lone_filter(database.path.parent)
        self._check_filter_can_wait()
        serializer = Serializer(spider)
        recovery = Recovery(database, serializer)
        stored_id, lane_id = database.largest_ids()
        journal = Journal(
            database,
            last_id=max(agreement.last_id, stored_id),
            last_lane_id=lane_id,
            begun=self._seal,
            committed=self._committed,
            damaged=self._fail,
        )
        lanes = Lanes(journal, serializer, database.lanes(), recovery)
        database.begin_run(spider.name, filter_id=agreement.filter_id or state.filter_id, last_id=journal.last_id)
        queue = self._priority_queue(lanes, self.crawler)
        pending = recovery.restore(lanes, queue.push, getattr(queue, "reopen", None))
        if to_import:
            count = recovery.import_requests(lanes, scrapy_queue.requests(self.crawler, spider), queue.push)
            scrapy_queue.put_aside()
            database.import_tidied()
            self.stats.set_value("bloom/frontier/imported", count)
            logger.info(
                "Imported %s of Scrapy's own disk queue into %s", counted(count, "pending request"), database.path
            )
            pending += count
        scrapy_queue.block()
        if noted is not None:
            scrapy_queue.put_seen_aside()
        if not state.clean:
            self._log_recovery(pending, state.in_flight)
        self._show(database, serializer, agreement)
        self._note(journal.last_id)
        if pending:
            logger.info("Resuming crawl (%d requests scheduled)", pending, extra={"spider": spider})
        self._watching = watch(self.crawler, self._left)
        if not self._watching:
            logger.warning(
                "This Scrapy does not let us see when it is done with a request: after a kill, every page that was "
                "fetched since the start of this run will be fetched again. Please report it together with the Scrapy "
                "version."
            )
        lanes.open()
        if isinstance(queue, SlotQueue):
            queue.recount()  # recovery gave lanes their rows behind its back
            lanes.upcoming = queue.upcoming
        self.dqs = queue
        self._handed_out.begin()  # after its last number was read
        self._journal, self._lanes = journal, lanes
        self._timer = create_looping_call(journal.tick)
        with suppress(RuntimeError):  # no event loop: a scheduler used on its own commits every COMMIT_ROWS rows
            self._timer.start(TICK_INTERVAL, now=False)

    def _check_filter_can_wait(self) -> None:
        if isinstance(self.df, HoldsBack):
            self.df.hold_back()
        elif type(self.df).request_seen is not BaseDupeFilter.request_seen:  # that one remembers nothing
            logger.warning(
                "%s cannot hold fingerprints back until their requests are on disk: if this crawl is killed, pages "
                "found in its last %.0f s or so may be taken for seen and never be fetched. "
                "scrapy_bloom.BloomDupeFilter can.",
                type(self.df).__qualname__,
                COMMIT_INTERVAL,
            )

    def _show(self, database: Database, serializer: Serializer, agreement: Agreement) -> None:
        """Show the filter the pending requests that it may not know, so that links do not queue them again."""
        if agreement.show_after is None:
            return

        def release() -> None:
            self._seal()
            if isinstance(self.df, HoldsBack):
                self.df.release()

        remember = getattr(self.df, "remember", self.df.request_seen)
        show(database, serializer, remember, release, after=agreement.show_after)

    def _log_recovery(self, pending: int, in_flight: int) -> None:
        assert self.stats is not None  # noqa: S101 - from_crawler() has set it
        self.stats.set_value("bloom/frontier/recovered", pending)
        self.stats.set_value("bloom/frontier/in_flight", in_flight)
        handed_out = self._handed_out.previous()
        if handed_out is not None:
            self.stats.set_value("bloom/frontier/refetched", in_flight + handed_out)
        logger.warning(
            "The previous run of this job was not stopped cleanly. Recovered %s. Pages that are fetched again because "
            "of that: %s (in flight at its last commit: %d, handed out after it: %s).",
            counted(pending, "pending request"),
            "not known" if handed_out is None else f"at most {in_flight + handed_out}",
            in_flight,
            f"{self._handed_out.path} does not say" if handed_out is None else handed_out,
        )

    def _priority_queue(self, lanes: Lanes, crawler: Crawler) -> Any:
        settings = crawler.settings
        start = settings["SCHEDULER_START_DISK_QUEUE"]
        queues: dict[str, Any] = {
            "downstream_queue_cls": LaneFactory(lanes, lifo=is_lifo(settings["SCHEDULER_DISK_QUEUE"])),
            "key": "",  # the directory of Scrapy's queues; ours have none
        }
        assert self.pqclass is not None  # noqa: S101 - from_crawler() has set it
        try:
            return build_from_crawler(
                self.pqclass,
                crawler,
                **queues,
                start_queue_cls=LaneFactory(lanes, lifo=is_lifo(start)) if start else None,
            )
        except TypeError:  # written for Scrapy before 2.13; Scrapy's own scheduler has warned about it
            return build_from_crawler(self.pqclass, crawler, **queues)

    def _warn_of_lone_filter(self, jobdir: Path) -> None:
        logger.warning(
            "%s holds fingerprints of an earlier crawl but no pending requests. Pages that were pending when it ended "
            "count as seen and will not be fetched; begin with an empty JOBDIR to get them.",
            jobdir,
        )

    # -- while crawling ----------------------------------------------------------------------------------------------

    def _seal(self) -> None:
        """Note that a commit begins: what is accepted and handed out from here on is not in it."""
        if isinstance(self.df, HoldsBack):
            self.df.seal()
        self._handed_out.seal()

    def _committed(self, last_id: int) -> None:
        """Release the fingerprints of a commit that is now durable: of requests up to *last_id*."""
        if isinstance(self.df, HoldsBack):
            self.df.release()
        self._note(last_id)
        if self._lanes is not None:
            self._lanes.trim(last_id)
        # Last: until the fingerprints are released, what was done before the commit could also be fetched again.
        self._handed_out.reset()

    def _note(self, last_id: int) -> None:
        if isinstance(self.df, NotesFrontier):
            self.df.note_frontier(last_id)

    def _left(self, request: Request) -> None:
        if self._journal is not None:
            self._journal.finish(request)

    def _fail(self, error: sqlite3.Error) -> None:
        if self._failed or self._journal is None:
            return
        self._failed = True
        self._journal.give_up()
        logger.critical("The crawl is being closed. %s", damaged(self._journal.database.path, error))
        if self.crawler is not None:
            end_crawl(self.crawler, "frontier_damaged")

    # -- closing -----------------------------------------------------------------------------------------------------

    def _close_frontier(self, journal: Journal, lanes: Lanes) -> None:
        if self._timer.running:
            self._timer.stop()
        # The engine closes the scheduler only after it is done with all requests.
        journal.finish_all()
        assert self.stats is not None  # noqa: S101 - from_crawler() has set it
        waiting = len(lanes)
        path = journal.database.path
        try:
            written = journal.close()
        except sqlite3.Error:
            logger.exception("Closing %s failed", path)
            written = False
        if not written:
            getattr(self.df, "queue_was_lost", bool)()
        self._handed_out.end()
        if written and not (waiting or lanes.unreadable):
            ScrapyQueue(path.parent).unblock()
        if self.dqs is not None:
            self.dqs.close()
        self.stats.set_value("bloom/frontier/pending", waiting)
        self.stats.set_value("bloom/frontier/commits", journal.commits)
        self.stats.set_value("bloom/frontier/commit_seconds", round(journal.commit_seconds, 3))
        if lanes.unreadable:
            self.stats.set_value("bloom/frontier/unreadable", lanes.unreadable)
        if not written:
            logger.error(
                "The last pending requests could not be written to %s. Repair that and resume the job: it goes on from "
                "the last commit and fetches again the pages done since.",
                path,
            )
        if len(self.mqs):
            logger.warning(
                "%s could not be serialized, existed in memory only, and will be lost with this stop",
                counted(len(self.mqs), "pending request"),
            )


def state_of(database: Database) -> State:
    """Return what *database* says of itself; DamagedError if it is damaged."""
    try:
        return database.state()
    except (sqlite3.Error, ValueError) as error:
        raise damaged(database.path, error) from error


def check_owner(path: Path, state: State, spider: Spider) -> None:
    """Raise UnusableError if the job belongs to another spider."""
    owner = state.spider
    if owner in {"", spider.name}:
        return
    rename = f"UPDATE state SET value = '{spider.name}' WHERE name = 'spider'"  # noqa: S608 - to be read, not run
    raise UnusableError(
        f"The job in {path.parent}",
        f"belongs to the spider {owner!r}, and this is {spider.name!r}, which would use up its pending requests",
        advice="Nothing was changed. Use a JOBDIR for each spider (-s JOBDIR=... on the command line). "
        f"If {owner!r} was only renamed, give it its old name back for this job, or tell the job the new one: "
        f'sqlite3 {path} "{rename}"',
    )
