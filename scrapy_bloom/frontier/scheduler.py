"""DurableScheduler: the face that Scrapy sees, on top of a frontier that survives ``kill -9``.

Scrapy's scheduler does all the work that is not storage: priority queues, the memory queue for requests that cannot be
serialized, the stats. This class gives its priority queue lanes of our own to put requests in, marks requests as done
when the engine is done with them, and tells the duplicate filter when the requests of its new fingerprints are durable.

It knows no filter by name. One that can hold fingerprints back has three methods more (:class:`HoldsBack`); with any
other, a kill can cost the pages that were found within one commit interval before it, and a WARNING says so.
"""

from __future__ import annotations

import logging
import pickle
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from scrapy.core.scheduler import Scheduler
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.request import request_from_dict

from scrapy_bloom.crawl.in_progress import watch
from scrapy_bloom.crawl.job import looks_only
from scrapy_bloom.crawl.queue_order import is_lifo
from scrapy_bloom.crawl.startup import told_before_the_traceback
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.frontier.database import Database, damaged
from scrapy_bloom.frontier.handed_out import HandedOut
from scrapy_bloom.frontier.journal import COMMIT_INTERVAL, Frontier
from scrapy_bloom.frontier.lanes import LaneFactory
from scrapy_bloom.frontier.scrapy_queue import ScrapyQueue

try:
    from scrapy.utils.asyncio import create_looping_call
except ImportError:  # Scrapy before 2.14, which always has a Twisted reactor
    from twisted.internet import task

    create_looping_call = task.LoopingCall  # type: ignore[assignment] # used in the same way

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure

logger = logging.getLogger(__name__)

FILE_NAME = "requests.frontier"
HANDED_OUT_NAME = "requests.frontier.handed"

PICKLE_PROTOCOL = 4
"""As in Scrapy's disk queues: read by every Python we support, whichever wrote it."""

_RECOVERY_PAGE = 10_000
"""Pending requests shown to the filter before it may let go of their fingerprints, to bound what it holds in memory."""


@runtime_checkable
class HoldsBack(Protocol):
    """A duplicate filter that can keep what it has just accepted out of its files until the requests are durable."""

    def hold_back(self) -> None:
        """From now on, keep newly accepted fingerprints in memory; request_seen() knows them as ever."""

    def release(self) -> None:
        """Everything accepted so far may go to the files now. What is never released must never get there."""

    def never_release(self, request: Request) -> None:
        """Exempt *request* from :meth:`release`: it could not be stored and will be lost with the process."""


class DurableScheduler(Scheduler):
    """Scrapy's scheduler, with pending requests in ``JOBDIR/requests.frontier`` and none of them lost to ``kill -9``.

    Set ``SCHEDULER = "scrapy_bloom.DurableScheduler"``. The settings of Scrapy's scheduler mean what they mean there,
    but of ``SCHEDULER_DISK_QUEUE`` and ``SCHEDULER_START_DISK_QUEUE`` only the order counts: a class with ``Fifo`` in
    its name is first-in-first-out, any other last-in-first-out. Without ``JOBDIR`` it is Scrapy's scheduler.
    """

    survives_kill = True  # so that a filter need not warn that pending requests are lost

    def __init__(self, dupefilter: BaseDupeFilter, jobdir: str | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(dupefilter, None, *args, **kwargs)  # None: the disk queue is ours, not Scrapy's
        if self.crawler is not None and looks_only(self.crawler):
            jobdir = None
        self.jobdir = jobdir
        self._frontier: Frontier | None = None
        self._handed_out = HandedOut(Path(jobdir or "", HANDED_OUT_NAME))
        self._filter_is_open = False
        self._watching = False
        self._failed = False

    # -- Scrapy's interface ------------------------------------------------------------------------------------------

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the frontier, then the filter, and recover what the previous run left behind.

        Raises BloomError, before the first request, if the job directory cannot be used.
        """
        if not self.jobdir:
            logger.info("No JOBDIR: pending requests are kept in memory, as by Scrapy's own scheduler")
            return super().open(spider)
        with told_before_the_traceback(logger, self.crawler):
            return self._open_in(Path(self.jobdir), spider)

    def _open_in(self, jobdir: Path, spider: Spider) -> Deferred[None] | None:
        jobdir.mkdir(parents=True, exist_ok=True)
        path = jobdir / FILE_NAME
        if not (path.exists() and path.stat().st_size) and any(
            (jobdir / seen).exists() for seen in ("requests.bloom", "requests.seen")
        ):
            self._warn_of_lone_filter(jobdir)
        database = Database.open(path)
        try:
            _check_owner(database, spider)
            opened = super().open(spider)
        except BaseException:
            database.close(clean=False)
            raise
        self._filter_is_open = True
        if opened is None:
            self._open_frontier(database, spider)
            return None

        def give_back(failure: Failure) -> Failure:
            database.close(clean=False)
            return failure

        return opened.addCallbacks(lambda _: self._open_frontier(database, spider), give_back)

    def close(self, reason: str) -> Deferred[None] | None:
        """Write what is pending, close the file, then the filter."""
        if not self.jobdir:
            return super().close(reason)
        if self._frontier is not None:
            self._close_frontier(self._frontier)
            self._frontier = None
        if not self._filter_is_open:
            return None
        self._filter_is_open = False
        return self.df.close(reason)

    def next_request(self) -> Request | None:
        """Return the next request, from memory first as Scrapy does, or None."""
        frontier = self._frontier
        if frontier is None:
            return super().next_request()
        while not self._failed:
            unreadable = frontier.unreadable
            try:
                request = super().next_request()
            except sqlite3.Error as error:
                self._fail(frontier, error)
                break
            if request is not None:
                self._handed_out.count()  # before anything can be sent, so never too small
                return request
            if frontier.unreadable == unreadable:
                break
        return None

    def enqueue_request(self, request: Request) -> bool:
        """Take in *request* unless the filter has seen it; as Scrapy's scheduler."""
        try:
            return super().enqueue_request(request)
        except sqlite3.Error as error:
            if self._frontier is None:
                raise
            self._fail(self._frontier, error)
            return False

    def _mqpush(self, request: Request) -> None:
        """Take in a request that cannot be serialized; its fingerprint must not outlive it."""
        if self._frontier is not None and not request.dont_filter and isinstance(self.df, HoldsBack):
            self.df.never_release(request)
        super()._mqpush(request)

    # -- opening -----------------------------------------------------------------------------------------------------

    def _open_frontier(self, database: Database, spider: Spider) -> None:
        try:
            self._recover(database, spider)
        except sqlite3.DatabaseError as error:
            database.close(clean=False)
            raise damaged(database.path, error) from error
        except BaseException:
            with suppress(sqlite3.Error):
                database.close(clean=False)
            raise

    def _recover(self, database: Database, spider: Spider) -> None:
        assert self.crawler is not None  # noqa: S101 - from_crawler() has set it
        assert self.stats is not None  # noqa: S101 - likewise
        frontier = Frontier(database, self._serialize, self._deserialize, self._committed)
        scrapy_queue = ScrapyQueue(database.path.parent)
        if database.import_untidied:
            scrapy_queue.put_aside()
            database.import_tidied()
        to_import = scrapy_queue.pending()
        queue = self._priority_queue(frontier, self.crawler)
        if isinstance(self.df, HoldsBack):
            self.df.hold_back()
        else:
            logger.warning(
                "%s cannot hold fingerprints back until their requests are on disk: if this crawl is killed, pages "
                "found in its last %.0f s or so may be taken for seen and never be fetched. "
                "scrapy_bloom.BloomDupeFilter can.",
                type(self.df).__qualname__,
                COMMIT_INTERVAL,
            )
        previous = database.begin_run(spider.name)
        pending = frontier.restore(queue.push)
        if to_import:
            count = frontier.import_requests(scrapy_queue.requests(self.crawler, spider), queue.push)
            scrapy_queue.put_aside()
            database.import_tidied()
            self.stats.set_value("bloom/frontier/imported", count)
            logger.info("Imported %d pending requests of Scrapy's own disk queue into %s", count, database.path)
            pending += count
        if not previous.clean:
            self._tell_of_kill(pending, previous.in_flight)
            self._show_to_filter(database)
        if pending:
            logger.info("Resuming crawl (%d requests scheduled)", pending, extra={"spider": spider})
        self._watching = watch(self.crawler, self._left)
        if not self._watching:
            logger.warning(
                "This Scrapy does not let us see when it is done with a request: after a kill, every page that was "
                "fetched since the start of this run will be fetched again. Please report it together with the Scrapy "
                "version."
            )
        self.dqs = queue
        self._handed_out.begin()  # not before its last number was told
        self._frontier = frontier
        self._timer = create_looping_call(frontier.tick)
        with suppress(RuntimeError):  # no event loop: a scheduler used on its own commits every COMMIT_ROWS rows
            self._timer.start(COMMIT_INTERVAL, now=False)

    def _tell_of_kill(self, pending: int, in_flight: int) -> None:
        assert self.stats is not None  # noqa: S101 - from_crawler() has set it
        self.stats.set_value("bloom/frontier/recovered", pending)
        self.stats.set_value("bloom/frontier/in_flight", in_flight)
        handed_out = self._handed_out.previous()
        if handed_out is not None:
            self.stats.set_value("bloom/frontier/refetched", in_flight + handed_out)
        logger.warning(
            "The previous run of this job was not stopped cleanly. Recovered %d pending requests. Pages that are "
            "fetched again because of that: %s (in flight at its last commit: %d, handed out after it: %s).",
            pending,
            "not known" if handed_out is None else f"at most {in_flight + handed_out}",
            in_flight,
            f"{self._handed_out.path} does not say" if handed_out is None else handed_out,
        )

    def _priority_queue(self, frontier: Frontier, crawler: Crawler) -> Any:
        settings = crawler.settings
        start = settings["SCHEDULER_START_DISK_QUEUE"]
        queues: dict[str, Any] = {
            "downstream_queue_cls": LaneFactory(frontier, lifo=is_lifo(settings["SCHEDULER_DISK_QUEUE"])),
            "key": "",  # a directory to Scrapy's queues; ours have none
        }
        assert self.pqclass is not None  # noqa: S101 - from_crawler() has set it
        try:
            return build_from_crawler(
                self.pqclass,
                crawler,
                **queues,
                start_queue_cls=LaneFactory(frontier, lifo=is_lifo(start)) if start else None,
            )
        except TypeError:  # a priority queue of before Scrapy 2.13; Scrapy's own scheduler has warned about it
            return build_from_crawler(self.pqclass, crawler, **queues)

    def _show_to_filter(self, database: Database) -> None:
        shown = 0
        for page in database.walk():
            for row in page:
                with suppress(Exception):  # what cannot be read is told when its turn comes
                    request = self._deserialize(row.body)
                    if not request.dont_filter:
                        self.df.request_seen(request)
            shown += len(page)
            if shown % _RECOVERY_PAGE == 0:
                self._committed()
                if shown % (10 * _RECOVERY_PAGE) == 0:
                    logger.info("Showed %d recovered requests to the duplicate filter", shown)
        self._committed()

    def _warn_of_lone_filter(self, jobdir: Path) -> None:
        if ScrapyQueue(jobdir).pending():
            return
        logger.warning(
            "%s holds fingerprints of an earlier crawl but no pending requests. Pages that were pending when it ended "
            "count as seen and will not be fetched; begin with an empty JOBDIR to get them.",
            jobdir,
        )

    # -- while crawling ----------------------------------------------------------------------------------------------

    def _serialize(self, request: Request) -> bytes:
        try:
            return pickle.dumps(request.to_dict(spider=self.spider), protocol=PICKLE_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(str(error)) from error

    def _deserialize(self, body: bytes) -> Request:
        # The job directory is as trusted as with Scrapy's own queues, which are pickles too.
        return request_from_dict(pickle.loads(body), spider=self.spider)  # noqa: S301

    def _committed(self) -> None:
        if isinstance(self.df, HoldsBack):
            self.df.release()
        if self._frontier is not None:
            # Last, and not while recovering: until the fingerprints are out, what was done before the commit could
            # be fetched again, too.
            self._handed_out.reset()

    def _left(self, request: Request) -> None:
        if self._frontier is not None:
            self._frontier.finish(request)

    def _fail(self, frontier: Frontier, error: sqlite3.Error) -> None:
        if self._failed:
            return
        self._failed = True
        frontier.give_up()
        logger.critical("The crawl is being closed. %s", damaged(frontier.database.path, error))
        engine: Any = getattr(self.crawler, "engine", None)
        if engine is None or engine.spider is None:
            return
        if hasattr(engine, "close_spider_async"):
            deferred_from_coro(engine.close_spider_async(reason="frontier_damaged"))
        else:
            engine.close_spider(engine.spider, reason="frontier_damaged")

    # -- closing -----------------------------------------------------------------------------------------------------

    def _close_frontier(self, frontier: Frontier) -> None:
        if self._timer.running:
            self._timer.stop()
        if not self._watching:
            frontier.finish_all()  # the engine closes the scheduler only after all it works on
        assert self.stats is not None  # noqa: S101 - from_crawler() has set it
        waiting = len(frontier)
        try:
            written = frontier.close()
        except sqlite3.Error:
            logger.exception("Closing %s failed", frontier.database.path)
            written = False
        if written:
            self._handed_out.reset()
        self._handed_out.end()
        if self.dqs is not None:
            self.dqs.close()
        self.stats.set_value("bloom/frontier/pending", waiting)
        self.stats.set_value("bloom/frontier/commits", frontier.commits)
        self.stats.set_value("bloom/frontier/commit_seconds", round(frontier.commit_seconds, 3))
        if frontier.unreadable:
            self.stats.set_value("bloom/frontier/unreadable", frontier.unreadable)
        if not written:
            logger.error(
                "The last pending requests could not be written to %s. Resume the job once that is repaired: it goes "
                "on from the last commit, and the pages done since are fetched again.",
                frontier.database.path,
            )
        if len(self.mqs):
            logger.warning(
                "%d pending requests could not be serialized, so they were in memory only and are lost with this stop",
                len(self.mqs),
            )


def _check_owner(database: Database, spider: Spider) -> None:
    owner = database.spider
    if owner in {"", spider.name}:
        return
    rename = f"UPDATE state SET value = '{spider.name}' WHERE name = 'spider'"  # noqa: S608 - to be read, not run
    raise UnusableError(
        f"The job in {database.path.parent}",
        f"belongs to the spider {owner!r}, and this is {spider.name!r}, which would use up its pending requests",
        advice="Nothing was changed. Use a JOBDIR for each spider (-s JOBDIR=... on the command line). "
        f"If {owner!r} was only renamed, tell the job so: "
        f'sqlite3 {database.path} "{rename}"',
    )
