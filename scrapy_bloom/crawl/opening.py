"""Opens the store of a crawl: says what was found, takes in what Scrapy left, refuses what would lose pages."""

from __future__ import annotations

import logging
import shutil
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_bloom.errors import UnusableError, counted
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.filter.directory import FORGOTTEN_NAME, open_filter
from scrapy_bloom.filter.lock import lock_directory
from scrapy_bloom.frontier.memory_store import MemoryStore
from scrapy_bloom.frontier.order import Order
from scrapy_bloom.frontier.pages_per_host import PagesPerHost
from scrapy_bloom.job.consistency import show_pending
from scrapy_bloom.job.database import NAME, Database
from scrapy_bloom.job.inspect import DIRECTORY
from scrapy_bloom.job.store import JobStore, Owner
from scrapy_bloom.job.takeover import block_scrapys_scheduler, finish_export, import_queue, import_seen

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.guard import LoopGuard
    from scrapy_bloom.frontier.store import PageEffects
    from scrapy_bloom.loops.share import Share
    from scrapy_bloom.settings import BloomSettings
    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)

NOVELTY_CAPACITY, NOVELTY_ERROR_RATE = 1_000_000, 1e-3
"""Capacity and error rate of the filter of text that pages have shown. A false positive makes a page look less new."""


@dataclass(frozen=True)
class Opening:
    """What decides how a store is opened."""

    crawler: Crawler
    settings: BloomSettings
    fingerprints: Fingerprints
    filter: str
    """Class name of our filter; "" if the crawl has another."""
    scheduler: str
    """Class name of our scheduler; "" if the crawl has another."""
    guard: LoopGuard | None

    def in_memory(self, effects: PageEffects) -> MemoryStore:
        """Return an empty store in memory; *effects* takes what pages have given.

        Raises:
            UnusableError: The first layer does not fit.

        """
        if self.scheduler:
            logger.info("No JOBDIR: pending requests are kept in memory, as by Scrapy's own scheduler")
        settings = self.settings
        chain = ScalableBloomFilter(settings.capacity, settings.error_rate, max_age=settings.max_age)
        if self.guard is not None:
            self.guard.open(ScalableBloomFilter(NOVELTY_CAPACITY, NOVELTY_ERROR_RATE).add)
        order = self._order(in_job=False)
        pages = PagesPerHost.of(self.settings.pages_per_host, order)
        return MemoryStore(chain, order, self._share(), pages, effects=effects)

    def _share(self) -> Share | None:
        return self.guard.share if self.guard is not None and self.scheduler else None

    def in_job(self, jobdir: Path, parts: PageEffects) -> JobStore:
        """Return the store in *jobdir*, whose commits have these *parts*.

        Raises:
            BloomError: It is in use, damaged, or would lose pages. Nothing has been changed.

        """
        store = JobStore(
            jobdir / DIRECTORY,
            self.settings,
            self._order(in_job=True),
            Owner(self.crawler.spider, self._spider_name, self.fingerprints.space if self.filter else None),
            parts=parts,
            share=self._share(),
        )
        try:
            if self.guard is not None:
                novelty = open_filter(store.directory / "novelty", NOVELTY_CAPACITY, NOVELTY_ERROR_RATE)
                store.filters.callback(novelty.close)
                self.guard.open(novelty.add)
            if self.scheduler:
                self._take_in(store, jobdir)
            else:
                self._check_filter_alone(store, jobdir)
            store.begin(writes_at_once=not self.scheduler)
        except BaseException:
            store.abandon()
            raise
        return store

    @property
    def _spider_name(self) -> str:
        spider = self.crawler.spider
        return self.crawler.spidercls.name if spider is None else spider.name

    def begin_cycle(self, jobdir: Path) -> None:
        """Empty the filter of a job that has ended, so that a run with a delta or changes looks at each page again.

        Raises:
            BloomError: It is in use, or damaged.

        """
        directory = jobdir / DIRECTORY
        if not (directory / NAME).exists():
            return
        with lock_directory(directory), closing(Database(directory / NAME)) as database:
            if not database.state.is_finished or database.state.spider != self._spider_name:
                return
            for path in (*sorted(directory.glob("layer-*.bloom")), directory / FORGOTTEN_NAME):
                path.unlink(missing_ok=True)
            shutil.rmtree(directory / "novelty", ignore_errors=True)
            database.begin_cycle()

    def _order(self, *, in_job: bool) -> Order:
        in_any = Order(by_slot=False, is_lifo=(True, True))
        return Order.of(self.crawler.settings, in_job=in_job) if self.scheduler else in_any

    def _take_in(self, store: JobStore, jobdir: Path) -> None:
        finish_export(jobdir, store.database)
        imported = import_queue(jobdir, store.database, self.crawler)
        if self.filter:
            import_seen(jobdir, store.chain, store.database)
        if imported:
            self._set_stat("imported", imported)
        block_scrapys_scheduler(jobdir)
        if store.lacks_pending and self.filter:
            shown = counted(
                show_pending(store.database, store.chain, self.crawler.spider, self.fingerprints.of_request),
                "pending request",
            )
            logger.warning("The filter in %s had lost %s, and knows them again", store.directory, shown)
        before = store.before
        if before.runs and before.is_finished:
            logger.info(
                "The job in %s had ended. This run begins again with the start requests, and fetches what is new",
                jobdir,
            )
        if not before.clean:
            self._set_stat("recovered", before.pending)
            self._set_stat("in_flight", before.in_flight)
            logger.warning(
                "The last run in %s was not stopped cleanly. %s recovered. This run fetches again at most the %d "
                "requests in flight at its last commit, and those of the second after it.",
                jobdir,
                counted(before.pending, "pending request"),
                before.in_flight,
            )
        if not self.filter:
            logger.warning(
                "%s records requests as seen before they are on disk. If this crawl is killed, pages found in its last "
                "second or so may count as seen and never be fetched. scrapy_bloom.BloomDupeFilter avoids that.",
                self.crawler.settings["DUPEFILTER_CLASS"],
            )
        if before.pending:
            logger.info("Resuming crawl (%d requests scheduled)", before.pending, extra={"spider": self.crawler.spider})

    def _check_filter_alone(self, store: JobStore, jobdir: Path) -> None:
        if store.before.pending:
            raise UnusableError(
                f"The job in {jobdir}",
                f"holds {counted(store.before.pending, 'pending request')} of scrapy_bloom.DurableScheduler, and "
                f"SCHEDULER is {self.crawler.settings['SCHEDULER']}, under which their pages would count as seen and "
                "never be fetched",
                advice='Set SCHEDULER = "scrapy_bloom.DurableScheduler" to go on; or take them back to Scrapy\'s own '
                f"queue with: scrapy bloom export {jobdir}; or use another JOBDIR.",
            )
        import_seen(jobdir, store.chain, store.database)
        if not store.before.clean:
            logger.warning(
                "The last crawl in %s did not stop cleanly, and Scrapy's scheduler writes its queue only on a clean "
                "stop: requests that were pending may be lost, while the filter takes their pages for seen. Begin anew "
                'with an empty JOBDIR to crawl them all. With ADDONS = {"scrapy_bloom.Addon": 300} no kill loses any.',
                jobdir,
            )

    def _set_stat(self, name: str, value: int) -> None:
        assert self.crawler.stats is not None  # noqa: S101 - the owner has checked
        self.crawler.stats.set_value(f"bloom/frontier/{name}", value)
