"""The owner of a crawl's memory: settings, decisions, store, stats. Scrapy's faces hold it and translate.

    in     DurableScheduler.enqueue_request -> BloomDupeFilter.request_seen -> Crawl.decide -> store.add; store.push
    out    DurableScheduler.next_request -> store.pop
    done   the engine drops the request -> Crawl.done -> its items go to the feeds, and store.done

Three stores stand behind it: memory, job directory, fleet.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from scrapy import Request, signals
from scrapy.exceptions import CloseSpider

from scrapy_bloom.crawl.delta import Delta, open_delta
from scrapy_bloom.crawl.failures import Failures
from scrapy_bloom.crawl.guard import LoopGuard
from scrapy_bloom.crawl.hooks import IN_PROGRESS, wake_engine, watch_engine
from scrapy_bloom.crawl.in_progress import PagesInProgress
from scrapy_bloom.crawl.opening import Opening
from scrapy_bloom.crawl.progress import Progress
from scrapy_bloom.crawl.startup import end_crawl, job_directory, log_start_errors, looks_only, repeat
from scrapy_bloom.errors import BloomError
from scrapy_bloom.frontier.memory_store import MemoryStore
from scrapy_bloom.frontier.page import Outcome
from scrapy_bloom.job.inspect import noted_rules
from scrapy_bloom.job.spider_state import SpiderState
from scrapy_bloom.job.starts import NOTE, StartUrls
from scrapy_bloom.job.store import JobStore
from scrapy_bloom.job.takeover import unblock_scrapys_scheduler
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.url.fingerprint import fingerprints_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy.crawler import Crawler

    from scrapy_bloom.frontier.store import Store
    from scrapy_bloom.job.feed_journal import FeedJournal
    from scrapy_bloom.job.records import Batch, Feed
    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.2


class Decision(NamedTuple):
    """What becomes of a request, and why."""

    request: Request
    is_new: bool
    """Whether to fetch it."""
    fingerprint: bytes | None = None
    limit: str = ""
    """Name of the limit that it is beyond; "": if it is not new, it is a duplicate."""
    reason: str = ""


_crawls: WeakKeyDictionary[Crawler, Crawl] = WeakKeyDictionary()


class Crawl:
    """Everything that one crawl remembers, from :meth:`open` to :meth:`close`."""

    @classmethod
    def of(cls, crawler: Crawler) -> Crawl:
        """Return the one crawl of *crawler*, made when first asked for.

        Raises:
            SettingsError: Names every wrong ``BLOOM_*`` setting.

        """
        crawl = _crawls.get(crawler)
        if crawl is None:
            crawl = _crawls[crawler] = cls(crawler)
        return crawl

    @classmethod
    def handling(cls, request: Request | None) -> Crawl | None:
        """Return the open crawl that was handed *request*; with another scheduler, the only open one."""
        crawls = [crawl for crawl in _crawls.values() if crawl.store is not None and not crawl.is_closed]
        for crawl in crawls:
            if request is not None and crawl.pages.of_request(request) is not None:
                return crawl
        return crawls[0] if len(crawls) == 1 and not crawls[0].scheduler_name else None

    def __init__(self, crawler: Crawler) -> None:
        if crawler.stats is None:
            raise TypeError("the crawler has no stats yet: it applies its settings first")
        self.crawler, self.stats = crawler, crawler.stats
        with log_start_errors(logger):
            self.settings = BloomSettings.from_settings(crawler.settings)
            self.jobdir = job_directory(crawler.settings)
        self._looks_only = looks_only(crawler)
        if self.jobdir is not None and self._looks_only:
            logger.info("%s is left alone: this is no crawl, but a command that looks at pages", self.jobdir)
            self.jobdir = None
        self.fingerprints: Fingerprints = fingerprints_of(crawler, noted_rules(self.jobdir))
        self.store: Store | None = None
        self.job: JobStore | None = None
        """The store, if it is a job's and our scheduler keeps its requests there."""
        self.journal: FeedJournal | None = None
        """Of the feeds of a fleet's worker that has a job directory."""
        self.delta: Delta | None = None
        self.is_closed = False
        self.has_failed = False
        self.decision: Decision | None = None
        """The last one."""
        options = self.settings.loop_guard
        self.guard = LoopGuard(options) if options else None
        self._filter = ""
        self.scheduler_name = ""
        """Class of our scheduler, which keeps the pending requests; "" if the crawl has another."""
        self.feeds: list[Feed] = []
        """Their files are part of each commit."""
        self._make_store: Callable[[Crawler, BloomSettings, Fingerprints], Store] | None = None
        self._answers_for_links = False
        self._add: Callable[[bytes], bool] = self._open_and_add
        self.spider_state = SpiderState()
        self.start_urls: StartUrls | None = None
        """Which of them a job has taken in."""
        self.missing_hooks: list[str] = []
        """Private parts of Scrapy that we use and this Scrapy does not have."""
        self._forgotten = 0
        self.progress = Progress(crawler.stats, debug=crawler.settings.getbool("DUPEFILTER_DEBUG"))
        self.failures = Failures(crawler)
        self.pages = PagesInProgress(self.failures.statuses, self._take_back)

    # -- what Scrapy's faces say of themselves, before the crawl is opened --------------------------------------------

    def use_filter(self, name: str, fingerprints: Fingerprints, *, answers_for_links: bool) -> None:
        """Note that our filter, of class *name*, makes the decisions, by *fingerprints*.

        If it does not answer for links, because a subclass has the last word on requests, all links pass.
        """
        self._filter, self.fingerprints, self._answers_for_links = name, fingerprints, answers_for_links

    @property
    def has_filter(self) -> bool:
        """Whether our filter makes the decisions."""
        return bool(self._filter)

    def use_store(self, make: Callable[[Crawler, BloomSettings, Fingerprints], Store]) -> None:
        """Keep filter and requests, or the filter alone, where *make* does: on a server."""
        self._make_store = make

    def flush_feeds(self) -> None:
        """Hand what was written to the feeds to the operating system: a kill does not lose it."""
        for feed in self.feeds:
            feed.flush()
        if self.delta is not None:
            self.delta.commit_begins()

    # -- opening and closing -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the store, and take in what an earlier run or Scrapy's own scheduler left. Opening twice is harmless.

        Raises:
            BloomError: It cannot be used, or another spider, process or program owns it. Nothing has been changed.

        """
        if self.store is not None:
            return
        with log_start_errors(logger), ExitStack() as on_error:
            self.delta = None if self._looks_only else open_delta(self.crawler, self.settings, self.scheduler_name)
            if self.delta is not None:
                on_error.callback(self.delta.close)
            store = self._opened_store()
            on_error.pop_all()
        self.store, add = store, store.add
        if self.settings.forget_failed:
            add = self._adding_unless_failed(store.add)
        self._add = add if self.guard is None else self.guard.counting(add)
        if self.delta is not None:
            self.delta.begin(store, self.fingerprints.of_request, self.pages.of_response, has_feeds=bool(self.feeds))
            self.progress.lost_elsewhere = self.delta.expected_lost
        if isinstance(store, JobStore) and self.scheduler_name:
            self._begin_job(store)
        self.failures.begin(self.store)
        self.missing_hooks = watch_engine(self.pages, self.crawler)
        if IN_PROGRESS not in self.missing_hooks:  # otherwise no page is ever done, and its items would wait for it
            self.pages.in_flight = store.in_flight
        if self.guard is not None:
            self.crawler.signals.connect(self._end_if_given_up, signal=signals.spider_idle)
        self._timer = repeat(self.tick, TICK_SECONDS)
        self.progress.opened([name for name in (self._filter, self.scheduler_name) if name], store, self.guard)

    def _opened_store(self) -> Store:
        if self._make_store is not None and not self._looks_only:
            return self._make_store(self.crawler, self.settings, self.fingerprints)
        opening = Opening(self.crawler, self.settings, self.fingerprints, self._filter, self.scheduler_name, self.guard)
        if self.jobdir is None:
            return opening.in_memory()
        if self.delta is not None:
            opening.begin_anew(self.jobdir)
        return opening.in_job(self.jobdir, self._prepare_commit)

    def _begin_job(self, store: JobStore) -> None:
        self.job = store
        self.spider_state.begin(store)
        noted = store.database.notes("state").get(NOTE) if store.is_resumed else None
        self.start_urls = StartUrls(self.crawler.spider, noted)
        self.crawler.signals.connect(self.spider_state.restore, signal=signals.spider_opened)

    def close(self, reason: str) -> None:
        """Write what is left, set the final stats, and close the store. Closing twice is harmless.

        Args:
            reason: Why the crawl ends, as its ``finish_reason``.

        """
        if self.store is None or self.is_closed:
            return
        self.is_closed = True
        self.store.finish_reason = reason
        _crawls.pop(self.crawler, None)
        if isinstance(self.store, MemoryStore):
            self._log_end(self.store)
        self._timer.cancel()
        pending = len(self.store)
        try:
            if isinstance(self.store, JobStore):
                self.store.flush()  # so that the final stats count it
        except BloomError as error:
            self.fail(error)
        self.progress.closing()
        try:
            self.store.close()
        except BloomError as error:
            self.fail(error)
        if self.delta is not None:
            self.delta.crawl_closes()
        if self.job is not None and self.jobdir is not None:
            self.progress.stored(self.job, pending)
            if not (pending or self.has_failed or self.job.unreadable):
                unblock_scrapys_scheduler(self.jobdir)

    def _log_end(self, store: MemoryStore) -> None:
        full, stays = store.frontier.full(), self.jobdir is not None
        if full:
            self.progress.left_of_hosts(full, stays=stays)
        if self.guard is None:
            return
        if self.is_given_up():
            self.stats.set_value("bloom/loop/left", self.guard.log_left(store.frontier.groups(), stays=stays))
        self.guard.log_aliases(self.settings.url_rules)

    # -- a request's way ---------------------------------------------------------------------------------------------

    def decide(self, request: Request) -> Decision:
        """Decide whether to fetch *request*, and remember it if so."""
        if self.guard is not None and (objection := self.guard.objection(request.url)) is not None:
            # A trap's URLs take no room in the filter.
            self.decision = Decision(request, False, None, objection.limit, objection.reason)
        else:
            fingerprint = self.fingerprints.of_request(request)
            # Decision() itself takes 0.2 us of 3.5.
            self.decision = tuple.__new__(Decision, (request, self._add(fingerprint), fingerprint, "", ""))
        return self.decision

    def _adding_unless_failed(self, add: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
        """Return *add*, except that requests that failed twice in this run count as seen until it ends."""
        return lambda fingerprint: fingerprint not in self.failures.twice and add(fingerprint)

    def _open_and_add(self, fingerprint: bytes) -> bool:
        self.open()  # for schedulers that never open their filter
        return self._add(fingerprint)

    # -- a page's way -------------------------------------------------------------------------------------------------

    def done(self, request: Request) -> None:
        """Note that the engine is done with *request*."""
        assert self.store is not None  # noqa: S101 - the scheduler has opened it
        page = self.store.in_flight.get(id(request))
        if page is None:  # of engine.download(), such as robots.txt
            return
        self.pages.by_response.pop(id(page.response), None)
        if self.pages.parents:
            self.pages.forget_requests_of(page)
        self.progress.estimate.finished.append(request.meta.get("depth"))
        if page.result.outcome is Outcome.FAILED:
            if (row := self.failures.add(request, page.result.reason)) is not None:
                page.items.append((self.failures.to_commit.append, row))
            self._take_back(request)
        if self.delta is not None:
            self.delta.done(page)
        if self.guard is not None:
            self.guard.done(page)
        self.store.done(page)

    def _take_back(self, request: Request) -> None:
        """With ``BLOOM_FORGET_FAILED``, make *request*, which failed, new again, and what was redirected to it."""
        if self.settings.forget_failed:
            for failed in self.failures.new_again(request, self.fingerprints):
                self.forget(failed)

    def is_over(self) -> bool:
        """Return whether all that is pending is given up by the loop guard, or is of hosts that are full."""
        return isinstance(self.store, MemoryStore) and self.store.is_over()

    def is_given_up(self) -> bool:
        """Return whether the loop guard ends the crawl, with requests pending."""
        return self.is_over() and isinstance(self.store, MemoryStore) and self.store.frontier.has_given_up()

    def _end_if_given_up(self) -> None:
        if self.is_given_up():
            raise CloseSpider("loop_guard")

    # -- for links ---------------------------------------------------------------------------------------------------

    def seen(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether it was seen. Remembers nothing, and never raises."""
        if self.store is None or not self._answers_for_links:
            return [False] * len(fingerprints)
        try:
            seen = self.store.seen(fingerprints)
            known = seen if self.delta is None else self.delta.known(fingerprints)
            return [either or other for either, other in zip(seen, known, strict=True)]
        except Exception:
            logger.exception("Links could not be checked for being seen, and pass")
            return [False] * len(fingerprints)

    @property
    def epoch(self) -> int:
        """A number that changes whenever something seen may have become new: taken back, or too old."""
        return self._forgotten + (0 if self.store is None else self.store.times_anew + self.store.chain.drops)

    def within_limits(self, urls: Sequence[str]) -> list[bool]:
        """Return for each of *urls* whether the limits of the loop guard allow it; count those they do not."""
        if self.guard is None:
            return [True] * len(urls)
        objections = [self.guard.objection(url) for url in urls]
        for url, objection in zip(urls, objections, strict=True):
            if objection is not None:
                self.progress.beyond_limit(url, objection.limit, objection.reason)
        return [objection is None for objection in objections]

    def note_dropped_links(self, fingerprints: Sequence[bytes]) -> None:
        """Count links that were dropped because their pages, by *fingerprints*, were asked for before."""
        if fingerprints:
            self.progress.dropped_links(len(fingerprints))
        if self.guard is not None:
            self.guard.count_links(fingerprints)

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

    def _prepare_commit(self, batch: Batch) -> None:
        """Add to *batch* what else belongs to this moment: feeds, ``spider.state``, figures."""
        for feed in self.feeds:
            batch.feeds += feed.lengths()
        if self.delta is not None and self.store is not None:
            self.delta.commit_begins()
        batch.note("state", self.spider_state.changed(self.crawler.spider))
        if self.start_urls is not None:
            batch.note("state", self.start_urls.changed())
        batch.failed += self.failures.to_commit
        self.failures.to_commit.clear()
        if isinstance(self.store, JobStore):
            self.progress.prepare_commit(batch, self.store, is_last=self.is_closed)

    def fail(self, error: Exception) -> None:
        """End the crawl because of *error*: what is not committed is fetched again."""
        if not self.has_failed:
            self.has_failed = True
            logger.critical("The crawl is being ended. %s", error, exc_info=not isinstance(error, BloomError))
            in_fleet = "fleet_lost" if isinstance(error, BloomError) else "fleet_failed"
            end_crawl(self.crawler, "job_damaged" if isinstance(self.store, JobStore) else in_fleet)

    def forget(self, request: Request) -> None:
        """Take *request* back: in this run or a later one, the next one like it is new. Never raises."""
        self._forgotten += 1
        try:
            if self.store is not None:
                self.store.forget(self.fingerprints.of_request(request))
        except Exception:  # Scrapy would log it without saying what it means
            logger.exception("%s could not be taken back, and counts as seen", request)
