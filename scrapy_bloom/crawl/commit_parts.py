"""What belongs to each commit of a job beside its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy import signals

from scrapy_bloom.job.spider_state import SpiderState
from scrapy_bloom.job.starts import NOTE, StartUrls

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.delta import Delta
    from scrapy_bloom.crawl.failures import Failures
    from scrapy_bloom.crawl.progress import Progress
    from scrapy_bloom.job.feed_journal import FeedJournal
    from scrapy_bloom.job.records import Batch, Feed, FeedLength
    from scrapy_bloom.job.store import JobStore


class CommitParts:
    """Feeds, ``spider.state``, start URLs, *failures* and figures of *progress*."""

    def __init__(self, crawler: Crawler, failures: Failures, progress: Progress) -> None:
        self._crawler, self._failures, self._progress = crawler, failures, progress
        self.feeds: list[Feed] = []
        """The feeds whose files are part of each commit."""
        self.journal: FeedJournal | None = None
        """The journal of the feeds, in a fleet's worker that has a job directory."""
        self.start_urls = StartUrls(None, None)
        """The start URLs that a job has taken in."""
        self._spider_state = SpiderState()

    def begin(self, store: JobStore) -> None:
        """Go on with what the last run noted in *store*."""
        self._spider_state.begin(store)
        noted = store.database.notes("state").get(NOTE) if store.is_resumed else None
        self.start_urls = StartUrls(self._crawler.spider, noted)
        self._crawler.signals.connect(self._spider_state.restore, signal=signals.spider_opened)

    def lengths(self) -> list[FeedLength]:
        """Flush the feeds, and return how long their files are, if that has changed."""
        return [length for feed in self.feeds for length in feed.lengths()]

    def add_to(self, batch: Batch, store: JobStore, delta: Delta | None, *, is_last: bool) -> None:
        """Add all parts of this moment to *batch* of *store*, the last one of the run or not."""
        batch.feeds += self.lengths()
        if delta is not None:
            delta.commit_begins()
        batch.note("state", self._spider_state.changed(self._crawler.spider))
        batch.note("state", self.start_urls.changed())
        batch.failed += self._failures.to_commit
        self._failures.to_commit.clear()
        self._progress.prepare_commit(batch, store, is_last=is_last)
