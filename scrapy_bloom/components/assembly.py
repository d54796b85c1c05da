"""Puts a crawl together: from settings and the components of ours that Scrapy has made, in one order.

filter and scheduler   made by Scrapy; the first one of them that is opened opens the crawl
store                  memory, job directory or server; takes in what Scrapy's own scheduler has left
parts                  guard, delta, changes, progress, decisions: parts that do nothing where a feature is off
crawl                  plain data; the adapter around it listens to signals, and hooks watch the engine
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from scrapy.utils.project import data_path

from scrapy_bloom.components import serialize
from scrapy_bloom.components.changes import SpiderChanges
from scrapy_bloom.components.fingerprints import fingerprints_of
from scrapy_bloom.components.hooks import missing_hooks, wake_engine, watch_engine
from scrapy_bloom.components.requests import Requests, scrapys_order
from scrapy_bloom.components.spider_crawl import SpiderCrawl, crawl_of
from scrapy_bloom.components.startup import (
    SpiderState,
    StartUrls,
    end_crawl,
    job_directory,
    keep_spider_state,
    log_start_errors,
    looks_only,
)
from scrapy_bloom.components.takeover import block_scrapys_scheduler, finish_export, import_queue, import_seen
from scrapy_bloom.crawl.changes import NoChanges
from scrapy_bloom.crawl.crawl import Crawl, Decisions
from scrapy_bloom.crawl.delta import Delta, DeltaFiles, NoDelta
from scrapy_bloom.crawl.guard import LoopGuard
from scrapy_bloom.crawl.progress import Progress
from scrapy_bloom.errors import SettingsError, UnusableError, counted
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.filter.directory import open_filter
from scrapy_bloom.frontier.order import IN_ANY_ORDER, PagesPerHost
from scrapy_bloom.frontier.store import MemoryStore
from scrapy_bloom.job.inspect import DIRECTORY
from scrapy_bloom.job.records import Feeds
from scrapy_bloom.job.store import JobFiles, JobStore, begin_cycle, open_files
from scrapy_bloom.job.verify import show_pending
from scrapy_bloom.settings import BloomSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_bloom.frontier.order import Order
    from scrapy_bloom.frontier.store import Store
    from scrapy_bloom.url.fingerprint import Fingerprints

    Join = Callable[[Fingerprints, Feeds], tuple[Store, Requests]]
    """Makes a store on a server, and what translates its requests."""

logger = logging.getLogger(__name__)

NOVELTY_CAPACITY, NOVELTY_ERROR_RATE = 1_000_000, 1e-3
"""Capacity and error rate of the filter of text that pages have shown. A false positive makes a page look less new."""

_ATTRIBUTE = "_scrapy_bloom_options"
"""Of a crawler: what its settings say."""


class OurFilter(Protocol):
    """What a crawl needs to know of our filter."""

    fingerprints: Fingerprints
    answers_for_links: bool

    def made_by(self, request_seen: Callable[[Request], bool], request: Request) -> tuple[bool, bytes | None]:
        """Return the answer of *request_seen*, and the fingerprint that this call has remembered, if it did."""


@dataclass(eq=False)
class Options:
    """What the settings of a crawl say. Each component of ours checks them when it is made."""

    crawler: Crawler
    stats: Any
    bloom: BloomSettings
    jobdir: Path | None
    """None also for commands that look at pages instead of crawling."""
    looks_only: bool
    fingerprints: Fingerprints
    filter: OurFilter | None = None
    """Our filter, which a filter of the user's may hold inside; None: there is none."""

    @classmethod
    def of(cls, crawler: Crawler) -> Options:
        """Read the settings of *crawler*, once.

        Raises SettingsError, which names every wrong ``BLOOM_*`` setting. Raises UnusableError if ``JOBDIR`` cannot be
        used.
        """
        known: Options | None = vars(crawler).get(_ATTRIBUTE)
        if known is not None:
            return known
        bloom, jobdir = BloomSettings.from_settings(crawler.settings), job_directory(crawler.settings)
        if looks := looks_only(crawler):
            if jobdir is not None:
                logger.info("%s is not used: this command looks at pages and does not crawl", jobdir)
            bloom, jobdir = replace(bloom, delta=False, changes=False), None
        options = cls(crawler, crawler.stats, bloom, jobdir, looks, fingerprints_of(crawler))
        vars(crawler)[_ATTRIBUTE] = options
        return options

    @property
    def spider_name(self) -> str:
        """The name of the spider."""
        spider = self.crawler.spider
        return self.crawler.spidercls.name if spider is None else spider.name


def open_crawl(options: Options, join: Join | None, scheduler: str = "") -> SpiderCrawl:
    """Return the crawl of a crawler, opened if it was not.

    *join* makes its store on a server; None: it is in memory or in a job. *scheduler* is the name of our scheduler,
    which keeps its requests; "" for another. Raises BloomError if it cannot be used, or another spider, process or
    program owns it. Nothing has been changed then.
    """
    if (crawl := crawl_of(options.crawler)) is not None:
        return crawl
    with log_start_errors(logger), ExitStack() as on_error:
        on_error.callback(keep_spider_state, options.crawler)
        crawl = _Assembly(options, join, scheduler).crawl(on_error)
        on_error.pop_all()
    return crawl


class _Assembly:
    """One crawl on its way together."""

    def __init__(self, options: Options, join: Join | None, scheduler: str) -> None:
        self._options, self._crawler, self._filter = options, options.crawler, options.filter
        self._fingerprints = options.fingerprints if self._filter is None else self._filter.fingerprints
        self._join = None if options.looks_only else join
        self._scheduler, self._keeps_requests = scheduler, bool(scheduler)
        settings, delta, name = self._crawler.settings, options.bloom.delta, self._crawler.settings["SCHEDULER"]
        if delta is None:
            delta = settings.getbool("DELTAFETCH_ENABLED") and self._keeps_requests
        if delta and not self._keeps_requests:
            raise SettingsError([f"BLOOM_DELTA needs our scheduler, and SCHEDULER is {name}: take that out"])
        if options.bloom.changes and not (self._keeps_requests and join is None):
            raise SettingsError([f"BLOOM_CHANGES needs scrapy_bloom.DurableScheduler, and SCHEDULER is {name}"])
        self._delta_directory = Path(data_path("delta") if delta is True else delta) if delta else None

    def crawl(self, on_error: ExitStack) -> SpiderCrawl:
        """Return the crawl. *on_error* closes what was opened if a later step fails."""
        options, crawler, bloom, stats = self._options, self._crawler, self._options.bloom, self._options.stats
        feeds = (crawler.get_extension(Feeds) if crawler.extensions is not None else None) or Feeds()
        store, requests, guard = self._open_store(feeds, on_error)
        job = store if isinstance(store, JobStore) and self._keeps_requests else None
        delta = self._open_delta(store, feeds, on_error)
        progress = Progress(stats, store, guard, delta, debug=crawler.settings.getbool("DUPEFILTER_DEBUG"))
        decisions = Decisions(
            store,
            guard,
            delta,
            progress,
            stats,
            None if job is None else job.database.count_failed(),
            forget_failed=bloom.forget_failed,
            answers_for_links=self._filter is not None and self._filter.answers_for_links,
        )
        changes = NoChanges()
        if job is not None and bloom.changes:
            changes = SpiderChanges(crawler, job, bloom.changes, self._fingerprints)
        start_urls = StartUrls(crawler.spider, job)
        core = Crawl(
            store=store,
            decisions=decisions,
            guard=guard,
            delta=delta,
            changes=changes,
            progress=progress,
            feeds=feeds,
            notes=[] if job is None else [start_urls.note, SpiderState(crawler, job).note],
            end_crawl=partial(end_crawl, crawler),
            wake=partial(wake_engine, crawler),
            keeps_requests=self._keeps_requests,
            stays=options.jobdir is not None,
            url_rules=bloom.url_rules,
        )
        store.begin(core)
        missing = missing_hooks(crawler)
        crawl = SpiderCrawl(crawler, core, missing, self._fingerprints, requests, start_urls, options.jobdir)
        watch_engine(crawl)
        dupefilter = "" if self._filter is None else type(self._filter).__name__
        progress.opened([name for name in (dupefilter, self._scheduler) if name])
        return crawl

    def _open_store(self, feeds: Feeds, on_error: ExitStack) -> tuple[Store, Requests, LoopGuard]:
        options, bloom, guard = self._options, self._options.bloom, LoopGuard(False)
        if self._join is not None:
            store, requests = self._join(self._fingerprints, feeds)
            on_error.callback(store.close)
            return store, requests, LoopGuard(bloom.loop_guard)
        order = IN_ANY_ORDER
        if self._keeps_requests:
            order = scrapys_order(self._crawler.settings, in_job=options.jobdir is not None)
        pages = PagesPerHost.of(bloom.pages_per_host, order)
        if options.jobdir is not None:
            return self._open_job(options.jobdir, order, pages, on_error)
        if self._keeps_requests:
            logger.info("No JOBDIR: pending requests are kept in memory, as by Scrapy's own scheduler")
        chain = ScalableBloomFilter(bloom.capacity, bloom.error_rate, max_age=bloom.max_age)
        if bloom.loop_guard:
            guard = LoopGuard(bloom.loop_guard, ScalableBloomFilter(NOVELTY_CAPACITY, NOVELTY_ERROR_RATE).add)
        return MemoryStore(chain, order, guard.share if self._keeps_requests else None, pages), Requests(order), guard

    def _open_job(
        self, jobdir: Path, order: Order, pages: PagesPerHost | None, on_error: ExitStack
    ) -> tuple[Store, Requests, LoopGuard]:
        options, name = self._options, self._options.spider_name
        if self._delta_directory is not None or options.bloom.changes:
            begin_cycle(jobdir, name)
        key_space = None if self._filter is None else self._fingerprints.space
        files = open_files(jobdir / DIRECTORY, options.bloom, name, key_space)
        on_error.callback(files.close)
        guard = LoopGuard(False)
        if options.bloom.loop_guard:
            novelty = open_filter(files.directory / "novelty", NOVELTY_CAPACITY, NOVELTY_ERROR_RATE)
            files.filters.callback(novelty.close)
            guard = LoopGuard(options.bloom.loop_guard, novelty.add)
        if self._keeps_requests:
            self._take_in(files, jobdir)
        else:
            self._check_filter_alone(files, jobdir)
        store = JobStore(
            files,
            order,
            name,
            key_space,
            share=guard.share if self._keeps_requests else None,
            pages=pages,
            writes_at_once=not self._keeps_requests,
        )
        on_error.callback(store.abandon)
        return store, Requests(order, self._crawler.spider, stored=True), guard

    def _take_in(self, files: JobFiles, jobdir: Path) -> None:
        """Take in what Scrapy's own scheduler has left, and log what the last run has left."""
        database, stats = files.database, self._options.stats
        finish_export(jobdir, database)
        imported = import_queue(jobdir, database, self._crawler)
        if self._filter is not None:
            import_seen(jobdir, files.chain, database)
        if imported:
            stats.set_value("bloom/frontier/imported", imported)
        block_scrapys_scheduler(jobdir)
        if files.lacks_pending and self._filter is not None:
            shown = counted(show_pending(database, files.chain, self._fingerprint_of), "pending request")
            logger.warning("The filter in %s had lost %s, and knows them again", files.directory, shown)
        before = database.state
        if before.runs and before.is_finished:
            logger.info(
                "The job in %s had ended. This run begins again with the start requests, and fetches what is new",
                jobdir,
            )
        if not before.clean:
            stats.set_value("bloom/frontier/recovered", before.pending)
            stats.set_value("bloom/frontier/in_flight", before.in_flight)
            logger.warning(
                "The last run in %s was not stopped cleanly. %s recovered. This run fetches again at most the %d "
                "requests in flight at its last commit, and those of the second after it.",
                jobdir,
                counted(before.pending, "pending request"),
                before.in_flight,
            )
        if self._filter is None:
            logger.warning(
                "%s records requests as seen before they are on disk. If this crawl is killed, pages found in its last "
                "second or so may count as seen and never be fetched. scrapy_bloom.BloomDupeFilter avoids that.",
                self._crawler.settings["DUPEFILTER_CLASS"],
            )
        if before.pending:
            of_spider = {"spider": self._crawler.spider}
            logger.info("Resuming crawl (%d requests scheduled)", before.pending, extra=of_spider)

    def _fingerprint_of(self, body: bytes) -> bytes | None:
        request, _ = serialize.loads(body, self._crawler.spider)
        return None if request.dont_filter else self._fingerprints.of_request(request)

    def _check_filter_alone(self, files: JobFiles, jobdir: Path) -> None:
        before = files.database.state
        if before.pending:
            raise UnusableError(
                f"The job in {jobdir}",
                f"holds {counted(before.pending, 'pending request')} of scrapy_bloom.DurableScheduler, and "
                f"SCHEDULER is {self._crawler.settings['SCHEDULER']}, under which their pages would count as seen and "
                "never be fetched",
                advice='Set SCHEDULER = "scrapy_bloom.DurableScheduler" to go on; or take them back to Scrapy\'s own '
                f"queue with: scrapy bloom export {jobdir}; or use another JOBDIR.",
            )
        import_seen(jobdir, files.chain, files.database)
        if not before.clean:
            logger.warning(
                "The last crawl in %s did not stop cleanly, and Scrapy's scheduler writes its queue only on a clean "
                "stop: requests that were pending may be lost, while the filter takes their pages for seen. Begin anew "
                'with an empty JOBDIR to crawl them all. With ADDONS = {"scrapy_bloom.Addon": 300} no kill loses any.',
                jobdir,
            )

    def _open_delta(self, store: Store, feeds: Feeds, on_error: ExitStack) -> NoDelta:
        if self._delta_directory is None:
            return NoDelta()
        settings, bloom, name = self._crawler.settings, self._options.bloom, self._options.spider_name
        if bloom.delta_reset:
            message = "BLOOM_DELTA_RESET goes with the next release: run `scrapy bloom forget --delta %s` once instead."
            logger.warning(message, name)
        resets = bloom.delta_reset, getattr(self._crawler.spider, "deltafetch_reset", False)
        forgets = any(resets) or settings.getbool("DELTAFETCH_RESET")
        files = DeltaFiles(self._delta_directory, name, bloom, forgets=forgets)
        on_error.callback(files.close)
        if settings.getbool("DELTAFETCH_ENABLED"):
            files.take_over(Path(data_path(settings.get("DELTAFETCH_DIR", "deltafetch")), f"{name}.db"))
        has_other_feeds = bool(settings.getdict("FEEDS")) and type(feeds) is Feeds
        return Delta(files, store, self._options.stats, waits_for_end=store.commits is None or has_other_feeds)
