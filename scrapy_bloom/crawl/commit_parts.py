"""What belongs to each commit of a job beside its requests."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy import signals

from scrapy_bloom.frontier.page import Outcome, State
from scrapy_bloom.frontier.store import PageEffects
from scrapy_bloom.job.records import Feeds
from scrapy_bloom.job.spider_state import SpiderState
from scrapy_bloom.job.starts import NOTE, StartUrls

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.delta import Delta
    from scrapy_bloom.crawl.failures import Failures
    from scrapy_bloom.crawl.progress import Progress
    from scrapy_bloom.crawl.spider_changes import SpiderChanges
    from scrapy_bloom.frontier.page import Page
    from scrapy_bloom.job.records import Batch
    from scrapy_bloom.job.store import JobStore

logger = logging.getLogger(__name__)


class CommitParts(PageEffects):
    """Feeds, ``spider.state``, start URLs, *failures* and figures of *progress*."""

    def __init__(self, crawler: Crawler, failures: Failures, progress: Progress) -> None:
        self._crawler, self.failures, self._progress = crawler, failures, progress
        self.feeds = Feeds()
        """Where items go."""
        self.start_urls = StartUrls(None, None)
        """The start URLs that a job has taken in."""
        self._spider_state = SpiderState()
        self._store: JobStore | None = None
        self._delta: Delta | None = None
        self._changes: SpiderChanges | None = None

    def begin(self, store: JobStore | None, delta: Delta | None, changes: SpiderChanges | None) -> None:
        """Go on with what the last run noted in *store*, the store of a job."""
        self._store, self._delta, self._changes = store, delta, changes
        if store is None:
            return
        self._spider_state.begin(store)
        if getattr(self._crawler.spider, "state", None):
            logger.warning("spider.state is replaced by the state that the job keeps: give -a state another name")
        noted = store.database.notes("state").get(NOTE) if store.is_resumed else None
        self.start_urls = StartUrls(self._crawler.spider, noted)
        self._crawler.signals.connect(self._spider_state.restore, signal=signals.spider_opened)

    def take(self, page: Page, batch: Batch | None = None) -> None:
        """Write the items of *page*; if it is committed next, note its failure, and what the next crawl needs of it."""
        for feed, item in page.gave:
            if not self.feeds.write(feed, item):
                page.note_item(failed=True)
                if self._changes is not None:
                    self._changes.lost_copy(page, item)
        page.gave.clear()
        if page.state is not State.COMMITTED:  # its items are committed in parts
            return
        if page.result.outcome is Outcome.FAILED:
            rows = self.failures.rows_of(page.request, page.result.reason)
            if batch is not None:
                batch.failed += rows
        elif self._delta is not None:
            self._delta.done(page)
        if self._changes is not None and batch is not None:
            self._changes.take(page, batch)

    def flush(self) -> None:
        """Hand what was written to the feeds to the operating system: a kill does not lose it."""
        self.feeds.flush()
        if self._delta is not None:
            self._delta.commit_begins()

    def add_to(self, batch: Batch) -> None:
        """Add all parts of this moment to *batch*, which a commit that begins writes."""
        if self._store is None:  # the first commit, which notes that a run has begun
            return
        batch.feeds += self.feeds.notes()
        if self._delta is not None:
            self._delta.commit_begins()
        batch.note("state", self._spider_state.changed(self._crawler.spider))
        batch.note("state", self.start_urls.changed())
        self._progress.prepare_commit(batch, self._store)

    def written(self) -> None:
        """Append to the feeds what the transaction that is written notes of them."""
        self.feeds.committed()
