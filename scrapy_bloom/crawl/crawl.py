"""The owner of a crawl's memory: settings, decisions, store, stats. Scrapy's components pass their calls on to it.

    in     DurableScheduler.enqueue_request -> BloomDupeFilter.request_seen -> Decisions.decide -> store.add; store.push
    out    DurableScheduler.next_request -> store.pop
    done   the engine drops the request -> Crawl.done -> its items go to the feeds, and store.done

Three stores stand behind it: memory, job directory, fleet.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

from scrapy import signals
from scrapy.exceptions import CloseSpider, DontCloseSpider

from scrapy_bloom.crawl.commit_parts import CommitParts
from scrapy_bloom.crawl.decisions import Decisions
from scrapy_bloom.crawl.delta import Delta, open_delta
from scrapy_bloom.crawl.failures import Failures
from scrapy_bloom.crawl.fingerprints import fingerprints_of
from scrapy_bloom.crawl.guard import LoopGuard
from scrapy_bloom.crawl.hooks import IN_PROGRESS, wake_engine, watch_engine
from scrapy_bloom.crawl.in_progress import PagesInProgress
from scrapy_bloom.crawl.opening import Opening
from scrapy_bloom.crawl.progress import Progress
from scrapy_bloom.crawl.spider_changes import SpiderChanges
from scrapy_bloom.crawl.startup import (
    end_crawl,
    has_engine_started,
    job_directory,
    keep_spider_state,
    log_start_errors,
    looks_only,
    repeat,
)
from scrapy_bloom.errors import BloomError, SettingsError, counted
from scrapy_bloom.frontier.memory_store import MemoryStore
from scrapy_bloom.frontier.page import Outcome
from scrapy_bloom.job.feed_journal import FeedJournal
from scrapy_bloom.job.records import Feeds
from scrapy_bloom.job.store import JobStore
from scrapy_bloom.job.takeover import unblock_scrapys_scheduler
from scrapy_bloom.settings import BloomSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.statscollectors import StatsCollector

    from scrapy_bloom.frontier.page import Page
    from scrapy_bloom.frontier.store import Store
    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.2


@dataclass
class Setup:
    """What the filter and the scheduler tell the crawl about themselves before it is opened."""

    looks_only: bool
    """Whether this is no crawl, but a command that looks at pages."""
    filter: str = ""
    """Class of our filter, which makes the decisions; "" if the crawl has another."""
    scheduler: str = ""
    """Class of our scheduler, which keeps the pending requests; "" if the crawl has another."""
    make_store: Callable[[Crawler, BloomSettings, Fingerprints], Store] | None = None
    """Returns a store on a server, for filter and requests, or for the filter alone."""


_ATTRIBUTE = "_scrapy_bloom_crawl"
"""Of a crawler: its crawl. So both are freed together, also if the crawl is refused."""
_open_crawls: WeakSet[Crawl] = WeakSet()


class Crawl:
    """Everything that one crawl remembers, from :meth:`open` to :meth:`close`."""

    @classmethod
    def of(cls, crawler: Crawler) -> Crawl:
        """Return the one crawl of *crawler*, made when first asked for.

        Raises:
            SettingsError: Names every wrong ``BLOOM_*`` setting.

        """
        if _ATTRIBUTE not in vars(crawler):
            vars(crawler)[_ATTRIBUTE] = cls(crawler)
        crawl: Crawl = vars(crawler)[_ATTRIBUTE]
        return crawl

    @classmethod
    def handling(cls, request: Request | None) -> Crawl | None:
        """Return the open crawl that was handed *request*; with another scheduler, the only open one."""
        crawls = [crawl for crawl in _open_crawls if not crawl.is_closed]
        for crawl in crawls:
            if request is not None and crawl.pages.of_request(request) is not None:
                return crawl
        return crawls[0] if len(crawls) == 1 and not crawls[0].setup.scheduler else None

    def __init__(self, crawler: Crawler) -> None:
        if crawler.stats is None:
            raise TypeError("the crawler has no stats yet: it applies its settings first")
        self.crawler = crawler
        with log_start_errors(logger):
            self.settings = BloomSettings.from_settings(crawler.settings)
            self.jobdir = job_directory(crawler.settings)
        self.setup = Setup(looks_only(crawler))
        if self.jobdir is not None and self.setup.looks_only:
            logger.info("%s is left alone: this is no crawl, but a command that looks at pages", self.jobdir)
            self.jobdir = None
        self.store: Store | None = None
        self.delta: Delta | None = None
        self.is_closed = False
        self.has_failed = False
        options = self.settings.loop_guard
        self.guard = LoopGuard(options) if options else None
        self.progress = Progress(crawler.stats, debug=crawler.settings.getbool("DUPEFILTER_DEBUG"))
        failures = Failures(crawler)
        self.decisions = Decisions(
            fingerprints_of(crawler),
            self.guard,
            self.progress,
            self.open,
            failures if self.settings.forget_failed else None,
        )
        self.changes: SpiderChanges | None = None
        self.pages = PagesInProgress(failures.statuses, self.decisions.take_back_of_others, self._takes_item)
        self.parts = CommitParts(crawler, failures, self.progress)

    @property
    def stats(self) -> StatsCollector:
        """Scrapy's, of this crawl."""
        assert self.crawler.stats is not None  # noqa: S101 - checked when this was made
        return self.crawler.stats

    @property
    def job(self) -> JobStore | None:
        """The store, if it is a job's and our scheduler keeps its requests there."""
        return self.store if isinstance(self.store, JobStore) and self.setup.scheduler else None

    @property
    def journal(self) -> FeedJournal | None:
        """The journal of the feeds, in a fleet's worker that has a job directory."""
        journal = getattr(self.store, "journal", None)
        return journal if isinstance(journal, FeedJournal) else None

    # -- opening and closing -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the store, and take in what an earlier run or Scrapy's own scheduler left. Opening twice is harmless.

        Raises:
            BloomError: It cannot be used, or another spider, process or program owns it. Nothing has been changed.

        """
        if self.store is not None:
            return
        with log_start_errors(logger), ExitStack() as on_error:
            on_error.callback(keep_spider_state, self.crawler)
            if not self.setup.looks_only:
                self.delta = open_delta(self.crawler, self.settings, self.setup.scheduler)
                if self.settings.changes and (not self.setup.scheduler or self.setup.make_store is not None):
                    scheduler = self.crawler.settings["SCHEDULER"]
                    problem = f"BLOOM_CHANGES needs scrapy_bloom.DurableScheduler, and SCHEDULER is {scheduler}"
                    raise SettingsError([problem])
            if self.delta is not None:
                on_error.callback(self.delta.close)
            store = self._opened_store()
            on_error.pop_all()
        self.store = store
        _open_crawls.add(self)
        self.decisions.begin(store, self.delta)
        if self.delta is not None:
            of_request, current = self.decisions.fingerprints.of_request, self.pages.current
            has_feeds = type(self.parts.feeds) is not Feeds
            self.delta.begin(store, of_request, current, has_feeds=has_feeds)
            self.progress.lost_elsewhere = self.delta.expected_lost
        if self.settings.changes and self.job is not None:
            self.changes = SpiderChanges(self.crawler, self.job, self.settings.changes, self.decisions.fingerprints)
            self.crawler.signals.connect(self._sweep, signal=signals.spider_idle)
        self.parts.begin(self.job, self.delta, self.changes)
        self.parts.failures.begin(store)
        watch_engine(self.pages, self.crawler, self.done if self.setup.scheduler else None)
        if IN_PROGRESS not in self.pages.missing_hooks:  # without it no page is ever done, and its items would wait
            self.pages.in_flight = store.in_flight
        if self.setup.scheduler:
            self.crawler.signals.connect(self._end_with_requests, signal=signals.spider_idle)
        self.crawler.signals.connect(self._end, signal=signals.engine_stopped)
        self._timer = repeat(self.tick, TICK_SECONDS)
        self.progress.opened(list(filter(None, (self.setup.filter, self.setup.scheduler))), store, self.guard)

    def _opened_store(self) -> Store:
        setup, fingerprints = self.setup, self.decisions.fingerprints
        if setup.make_store is not None and not setup.looks_only:
            return setup.make_store(self.crawler, self.settings, fingerprints)
        opening = Opening(self.crawler, self.settings, fingerprints, setup.filter, setup.scheduler, self.guard)
        if self.jobdir is None:
            return opening.in_memory(self.parts)
        if self.delta is not None or self.settings.changes:
            opening.begin_cycle(self.jobdir)
        return opening.in_job(self.jobdir, self.parts)

    def close(self, reason: str) -> None:
        """Write what is left, and set the final stats. Closing twice is harmless.

        Feeds, extensions and the spider do something at the end, too. So that the crawl has ended is written when the
        engine stops.

        Args:
            reason: Why the crawl ends, as its ``finish_reason``.

        """
        if self.store is None or self.is_closed:
            return
        self.is_closed = True
        self.store.finish_reason = reason
        _open_crawls.discard(self)
        if isinstance(self.store, MemoryStore):
            self._log_end(self.store)
        self._timer.cancel()
        pending = len(self.store)
        self.progress.tell_others()
        try:
            self.flush()
        except BloomError as error:
            self.fail(error)
        if self.changes is not None and reason == "finished" and not (len(self.store) or self.has_failed):
            self.changes.end()
        self.progress.closing()
        if self.delta is not None:
            self.delta.crawl_closes()
        if self.job is not None:
            self.progress.stored(self.job, pending)
        if not has_engine_started(self.crawler):
            self._end()

    def flush(self) -> None:
        """Write what is left, and wait until that is done. Raises BloomError if it cannot be."""
        assert self.store is not None  # noqa: S101 - only an open crawl is closed
        self.store.flush()

    def _end(self) -> None:
        """Note that the crawl has ended, and let go of everything."""
        if self.store is None or not self.is_closed:
            return
        pending = len(self.store)
        try:
            self.store.close()
        except BloomError as error:
            self.fail(error)
        if self.delta is not None:
            self.delta.ended()
        is_done = self.job is not None and not (pending or self.has_failed or self.job.unreadable)
        if is_done and self.jobdir is not None:
            unblock_scrapys_scheduler(self.jobdir)

    def _log_end(self, store: MemoryStore) -> None:
        full, stays, left = store.frontier.full(), self.jobdir is not None, 0
        if full:
            left = self.progress.left_of_hosts(full, stays=stays)
        if self.guard is not None:
            if self.is_given_up():
                left += (given_up := self.guard.log_left(store.frontier.groups(), stays=stays))
                self.stats.set_value("bloom/loop/left", given_up)
            self.guard.log_aliases(self.settings.url_rules)
        if left and self.job is not None and (self.delta is not None or self.changes is not None):
            logger.warning(
                "The job has not ended, since %s are left in it. The next run goes on with these, looks at no other "
                "page again, and calls nothing gone, unless you raise BLOOM_PAGES_PER_HOST, switch BLOOM_LOOP_GUARD "
                "off, or take another JOBDIR.",
                counted(left, "request"),
            )

    # -- a page's way -------------------------------------------------------------------------------------------------

    def done(self, request: Request) -> None:
        """Note that the engine is done with *request*."""
        assert self.store is not None  # noqa: S101 - the scheduler has opened it
        page = self.store.in_flight.get(id(request))
        if page is None:  # of engine.download(), such as robots.txt
            return
        self.progress.estimate.finished.append(request.meta.get("depth"))
        if page.result.outcome is Outcome.FAILED:
            self.decisions.take_back(page)
        if self.guard is not None:
            self.guard.done(page)
        self.store.done(page)

    def _takes_item(self, page: Page, item: object) -> bool:
        return self.changes is None or self.changes.takes(page, item)

    def _sweep(self) -> None:
        """Go on with requests of earlier cycles when nothing is pending."""
        if self.changes is not None and self.changes.sweep():
            raise DontCloseSpider

    def is_over(self) -> bool:
        """Return whether all that is pending is given up by the loop guard, or is of hosts that are full."""
        return isinstance(self.store, MemoryStore) and self.store.is_over()

    def is_given_up(self) -> bool:
        """Return whether the loop guard ends the crawl, with requests pending."""
        return self.is_over() and isinstance(self.store, MemoryStore) and self.store.frontier.has_given_up()

    def _end_with_requests(self) -> None:
        """Give the reason why the crawl ends, if requests are left that it does not fetch: it is not "finished"."""
        if self.is_given_up():
            raise CloseSpider("loop_guard")
        if self.job is not None and self.job.unreadable:
            raise CloseSpider("unreadable_requests")

    # -- commits -----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Write what is due."""
        assert self.store is not None  # noqa: S101 - the timer starts when it is open
        self.progress.tick()
        if self.store.paused and self.store.end_pauses():
            wake_engine(self.crawler)
        if not self.has_failed:
            try:
                self.store.commit()
            except Exception as error:  # without commits nothing is kept, so whatever it is ends the crawl
                self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the crawl because of *error*: what is not committed is fetched again."""
        if not self.has_failed:
            self.has_failed = True
            logger.critical("The crawl is being ended. %s", error, exc_info=not isinstance(error, BloomError))
            in_fleet = "fleet_lost" if isinstance(error, BloomError) else "fleet_failed"
            end_crawl(self.crawler, "job_damaged" if isinstance(self.store, JobStore) else in_fleet)
